"""UNBOUND: a binding was removed."""

from __future__ import annotations

from smista.records.bound import BindingFields
from smista.records.kinds import Kind
from smista.records.packed import codec

encode, decode = codec(Kind.UNBOUND, BindingFields)
