"""EXCHANGE_DECLARED: an exchange was declared."""

from __future__ import annotations

import msgspec

from smista.core.exchanges import ExchangeSettings
from smista.records.bound import BindingFields
from smista.records.kinds import Kind
from smista.records.packed import codec


class ExchangeDeclared(msgspec.Struct, frozen=True, array_like=True):
    number: int
    namespace: str
    name: str
    settings: ExchangeSettings
    bindings: list[BindingFields]
    """Those that lead from it, when it is relocated. Where they are many, the others follow as BOUND."""


encode, decode = codec(Kind.EXCHANGE_DECLARED, ExchangeDeclared)
