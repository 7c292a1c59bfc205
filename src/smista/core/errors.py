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
    ├── MessageNotFound
    ├── StaleReceipt               the delivery it names is over
    │   └── LeaseExpired           over because its time ran out
    ├── ConsumerNotFound
    ├── ConsumerInUse              another session claims under this name
    ├── ClaimNotFound              never made, acknowledged or released
    ├── ClaimExpired               its messages went back to the queue
    ├── ClaimBroken                some of its messages were taken from under it
    └── NamespaceNotFound

Exchanges add theirs in `exchanges/errors.py`, the log in `log/errors.py`, the running broker in `engine/errors.py`.
"""

from __future__ import annotations

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
