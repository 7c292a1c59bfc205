"""EXCHANGE_DELETED: an exchange went, with all bindings from it and to it."""

from __future__ import annotations

import msgspec

from smista.records.kinds import Kind
from smista.records.packed import codec


class ExchangeDeleted(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    name: str


encode, decode = codec(Kind.EXCHANGE_DELETED, ExchangeDeleted)
