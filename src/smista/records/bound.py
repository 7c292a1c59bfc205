"""BOUND: a binding was made."""

from __future__ import annotations

import msgspec

from smista.records.kinds import Kind
from smista.records.packed import codec


class BindingFields(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    source: str
    destination_kind: str
    """`queue` or `exchange`."""
    destination: str
    key: str
    arguments: dict[str, object]


encode, decode = codec(Kind.BOUND, BindingFields)
