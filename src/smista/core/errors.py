"""What a caller can do wrong, one class each, with a stable code and a sentence that names the thing and the cure.

    BrokerError
    ├── InvalidArgument            a value of the wrong type or out of range
    │   ├── InvalidName
    │   ├── InvalidPriority
    │   ├── InvalidSettings
    │   └── InvalidReceipt         not a receipt this broker ever gave out
    ├── MessageTooLarge
    ├── QueueNotFound
    ├── QueueDiffers               declared again with other settings
    ├── QueueFull
    ├── QueueNotEmpty, QueueInUse  a conditional delete was refused
    ├── QueueDeleted               the queue went away while somebody waited on it
    ├── QueueInExclusiveUse        another consumer holds the queue alone
    ├── DeadLetterCycle            dead letters would go round in a circle
    ├── PolicyNotFound
    ├── MessageNotFound
    ├── StaleReceipt               the delivery it names is over
    │   └── LeaseExpired           over because its time ran out
    ├── ConsumerNotFound
    ├── ConsumerInUse              another session claims under this name
    ├── ClaimNotFound              never made, acknowledged or released
    ├── ClaimExpired               its messages went back to the queue
    ├── ClaimBroken                some of its messages were taken from under it
    ├── NamespaceNotFound
    ├── ExchangeNotFound
    ├── InvalidExchange            this name cannot be an exchange's
    ├── ExchangeDiffers            declared again with another setting
    ├── ExchangeReserved           amq.* and the default exchange belong to the broker
    ├── ExchangeInternal           only other exchanges may send to it
    ├── ExchangeInUse              a conditional delete was refused
    ├── ExchangeCycle              a message could go round for ever
    ├── ReachTooWide               a message would go to more than one publish may reach
    ├── BindingTargetNotFound      the queue or exchange to bind does not exist
    └── InvalidBinding             key or arguments make no rule

Those of a running broker are in `smista.errors`, those of the log in `smista.log.errors`. Clients raise these too, so
nothing else of the core is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from smista.errors import BrokerError


class InvalidArgument(BrokerError):
    code: ClassVar[str] = "invalid_argument"


class InvalidName(InvalidArgument):
    code: ClassVar[str] = "invalid_name"


class InvalidPriority(InvalidArgument):
    code: ClassVar[str] = "invalid_priority"


class InvalidSettings(InvalidArgument):
    code: ClassVar[str] = "invalid_settings"


class InvalidReceipt(InvalidArgument):
    code: ClassVar[str] = "invalid_receipt"


class MessageTooLarge(BrokerError):
    code: ClassVar[str] = "message_too_large"


class QueueNotFound(BrokerError):
    code: ClassVar[str] = "queue_not_found"


class QueueDiffers(BrokerError):
    code: ClassVar[str] = "queue_differs"


class QueueFull(BrokerError):
    code: ClassVar[str] = "queue_full"


class QueueNotEmpty(BrokerError):
    code: ClassVar[str] = "queue_not_empty"


class QueueInUse(BrokerError):
    code: ClassVar[str] = "queue_in_use"


class QueueDeleted(BrokerError):
    code: ClassVar[str] = "queue_deleted"


class QueueInExclusiveUse(BrokerError):
    code: ClassVar[str] = "queue_in_exclusive_use"


class DeadLetterCycle(BrokerError):
    code: ClassVar[str] = "dead_letter_cycle"


class PolicyNotFound(BrokerError):
    code: ClassVar[str] = "policy_not_found"


class MessageNotFound(BrokerError):
    code: ClassVar[str] = "message_not_found"


class StaleReceipt(BrokerError):
    code: ClassVar[str] = "stale_receipt"


class LeaseExpired(StaleReceipt):
    code: ClassVar[str] = "ack_deadline_exceeded"


class ConsumerNotFound(BrokerError):
    code: ClassVar[str] = "consumer_not_found"


class ConsumerInUse(BrokerError):
    code: ClassVar[str] = "consumer_in_use"


class ClaimNotFound(BrokerError):
    code: ClassVar[str] = "claim_not_found"


class ClaimExpired(BrokerError):
    code: ClassVar[str] = "claim_expired"


class ClaimBroken(BrokerError):
    code: ClassVar[str] = "claim_broken"


class NamespaceNotFound(BrokerError):
    code: ClassVar[str] = "namespace_not_found"


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
