"""Errors about exchanges and bindings, with all that their sentences and those who catch them need to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from smista.errors import BrokerError


class ExchangeNotFound(BrokerError):
    code: ClassVar[str] = "exchange_not_found"

    def __init__(self, exchange: str, namespace: str) -> None:
        super().__init__(
            f"Exchange {exchange!r} does not exist in namespace {namespace!r}: declare it first, or check its name."
        )
        self.exchange = exchange
        self.namespace = namespace


class InvalidExchange(BrokerError):
    code: ClassVar[str] = "invalid_exchange"

    def __init__(self, exchange: str, problem: str, cure: str) -> None:
        super().__init__(f"Exchange {exchange!r} cannot be declared, {problem}: {cure}.")
        self.exchange = exchange


class ExchangeDiffers(BrokerError):
    code: ClassVar[str] = "exchange_differs"

    def __init__(self, exchange: str, namespace: str, *, setting: str, present: object, asked: object) -> None:
        super().__init__(
            f"Exchange {exchange!r} in namespace {namespace!r} exists with {setting} {_shown(present)}, "
            f"not {_shown(asked)}: declare it with {setting} {_shown(present)}, or delete it first."
        )
        self.exchange = exchange
        self.namespace = namespace
        self.setting = setting
        self.present = present
        self.asked = asked


class ExchangeReserved(BrokerError):
    code: ClassVar[str] = "exchange_reserved"

    def __init__(self, exchange: str, action: str, cure: str) -> None:
        named = f"Exchange {exchange!r}" if exchange else "The default exchange"
        super().__init__(f"{named} belongs to the broker and cannot be {action}: {cure}.")
        self.exchange = exchange
        self.action = action


class ExchangeInternal(BrokerError):
    code: ClassVar[str] = "exchange_internal"

    def __init__(self, exchange: str, namespace: str) -> None:
        super().__init__(
            f"Exchange {exchange!r} in namespace {namespace!r} is internal: "
            "publish to an exchange that has a binding to it."
        )
        self.exchange = exchange
        self.namespace = namespace


class ExchangeInUse(BrokerError):
    code: ClassVar[str] = "exchange_in_use"

    def __init__(self, exchange: str, namespace: str, binding_count: int) -> None:
        bindings = "1 binding" if binding_count == 1 else f"{binding_count} bindings"
        super().__init__(
            f"Exchange {exchange!r} in namespace {namespace!r} has {bindings} and was to be deleted only "
            "if unused: unbind first, or delete it without if-unused."
        )
        self.exchange = exchange
        self.namespace = namespace
        self.binding_count = binding_count


class ExchangeCycle(BrokerError):
    code: ClassVar[str] = "exchange_cycle"

    def __init__(self, path: Sequence[str], step: str) -> None:
        """`path` begins and ends with the same exchange; `step` is what would have closed it."""
        super().__init__(
            f"The {step} from exchange {path[0]!r} to {path[1]!r} would let messages go in a circle, "
            f"{' -> '.join(path)}: leave it out, or remove another step of the circle first."
        )
        self.path = tuple(path)


class ReachTooWide(BrokerError):
    code: ClassVar[str] = "reach_too_wide"

    def __init__(self, exchange: str, what: str, limit: int, would: str = "go to") -> None:
        super().__init__(
            f"From exchange {exchange!r} a message would {would} more than {limit} {what}, which is the most: bind "
            "less to it, or publish it in several parts by different keys."
        )
        self.exchange = exchange


class BindingTargetNotFound(BrokerError):
    code: ClassVar[str] = "binding_target_not_found"

    def __init__(self, kind: str, name: str, namespace: str, exchange: str) -> None:
        super().__init__(
            f"{kind.capitalize()} {name!r}, to be bound to exchange {exchange!r}, does not exist in "
            f"namespace {namespace!r}: declare it first, or check its name."
        )
        self.kind = kind
        self.name = name
        self.namespace = namespace
        self.exchange = exchange


class InvalidBinding(BrokerError):
    code: ClassVar[str] = "invalid_binding"

    def __init__(self, exchange: str, destination: str, problem: str, cure: str) -> None:
        super().__init__(f"The binding of {destination!r} to exchange {exchange!r} is invalid, {problem}: {cure}.")
        self.exchange = exchange
        self.destination = destination


def _shown(setting: object) -> str:
    if setting is None:
        return "none"
    return str(setting).lower() if isinstance(setting, bool) else repr(str(setting))
