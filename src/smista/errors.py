"""The tree of all errors, and those of them that more than one part of the product raises.

    BrokerError
    │
    │   of the broker as a whole, and of requests
    ├── BrokerClosed               it was closed, in order
    ├── BrokerStopped              its log failed; nothing is confirmed any more; restart it
    ├── OutcomeUnknown             it may or may not be there after a restart
    ├── ResourceLow                refused, nothing stored; consuming goes on
    │   ├── LowDisk
    │   └── LowMemory
    ├── AccessDenied               the caller has no permission for this
    ├── RequestError               the request is at fault, not the broker's state
    │   ├── InvalidRequest
    │   ├── UnknownCommand
    │   ├── PathNotFound
    │   ├── MethodNotAllowed
    │   ├── UpgradeRequired
    │   ├── RequestTooLarge
    │   ├── UnsupportedMediaType
    │   ├── HostNotAllowed
    │   ├── OriginNotAllowed
    │   ├── ArrowMissing
    │   ├── StageNotFound
    │   ├── StageBusy
    │   ├── StageDamaged
    │   ├── RequestCancelled
    │   └── TooManyRequests
    ├── LogInMemory                no other process can read the log
    ├── BulkReaderFailed           the process that reads the log has ended, or met damage
    ├── TooManyReaders             the limit of readers of the log is reached
    ├── LogPositionDropped         the log no longer has the blocks asked for
    │
    │   of queues, messages and exchanges
    ├── InvalidArgument            a value of the wrong type or out of range
    │   ├── InvalidName
    │   ├── InvalidPriority
    │   ├── InvalidSettings
    │   └── InvalidReceipt         not a receipt of this broker
    ├── MessageTooLarge
    ├── NamespaceNotFound
    ├── QueueNotFound
    ├── QueueDiffers               declared before with other settings
    ├── QueueFull
    ├── QueueNotEmpty
    ├── QueueInUse
    ├── QueueDeleted               while a consumer waited on it
    ├── QueueInExclusiveUse        another consumer has the queue alone
    ├── DeadLetterCycle
    ├── PolicyNotFound
    ├── MessageNotFound
    ├── StaleReceipt               its delivery is over
    │   └── LeaseExpired           because the lease ran out
    ├── ConsumerNotFound
    ├── ConsumerInUse              another session claims under this name
    ├── ClaimNotFound
    ├── ClaimExpired
    ├── ClaimBroken                some of its messages were removed
    ├── RedriveNotFound
    ├── RedriveRunning             another one sends back the same messages, or as many run as may
    ├── RedriveEnded
    │
    │   of exchanges: `smista.exchange_errors`
    ├── ExchangeNotFound
    ├── InvalidExchange
    ├── ExchangeDiffers            declared before with another setting
    ├── ExchangeReserved           it belongs to the broker
    ├── ExchangeInternal           only other exchanges may publish to it
    ├── ExchangeInUse
    ├── ExchangeCycle
    ├── ReachTooWide               the message would go to too many queues
    ├── BindingTargetNotFound
    ├── InvalidBinding
    │
    │   of clients: `smista.client.errors`
    ├── ClientError
    │   ├── ConnectionFailed       no broker answers; the request was not sent
    │   ├── ConnectionLost         the request may or may not have been carried out
    │   ├── ClientClosed
    │   └── WorkerNotFound
    ├── InternalError              a bug in the broker
    ├── ServerError                a code that the client does not know
    │
    │   of the log: `smista.log.errors`, `smista.records.errors`
    ├── LogError
    │   ├── LogDamaged             stored bytes are wrong or missing
    │   │   └── LogUnreadable      reading failed, and may succeed later
    │   ├── LogForeign             the directory holds something else
    │   ├── LogNewer               written by a later version
    │   ├── LogLocked              another broker has it open
    │   ├── LogFull
    │   ├── LogFailed              writing failed; the outcome is unknown
    │   ├── LogDropped             the block asked for was dropped
    │   ├── LogFenced              another owner writes this log now
    │   ├── LogClosed
    │   └── RecordError            a block holds a record that cannot be read
    │
    │   of starting a server: `smista.server.errors`
    ├── InvalidConfiguration
    ├── CannotListen
    │
    │   of Spark: `smista.spark.errors`, `smista.spark.pipelines.errors`
    └── SparkError
        ├── JavaNotFound
        ├── WrongOption
        ├── WrongColumns
        ├── BrokerUnreachable
        ├── BrokerRefused
        ├── LogPositionLost
        ├── CheckpointForeign
        ├── ClaimLost
        └── PipelineError
            ├── ArchiveDamaged
            ├── ArchiveDiffers
            ├── FolderInUse
            └── PipelineFailed

All can be imported from `smista`; docs/errors.md has their codes and cures. What a peer or the machine did wrong is a
`BrokerError`; a mistake of ours is an `assert`. Those of this module are raised by clients too, which must not import
the core, the engine or a protocol for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class BrokerError(Exception):
    """Something the caller can act on. Its message names the thing, what happened and the cure."""

    code: ClassVar[str] = "broker_error"
    """Stable over releases, for programs; the message is for people and may change."""


class BrokerClosed(BrokerError):
    code: ClassVar[str] = "broker_closed"


class BrokerStopped(BrokerError):
    code: ClassVar[str] = "broker_stopped"


class OutcomeUnknown(BrokerError):
    code: ClassVar[str] = "outcome_unknown"


class ResourceLow(BrokerError):
    code: ClassVar[str] = "resource_low"


class LowDisk(ResourceLow):
    code: ClassVar[str] = "low_disk"


class LowMemory(ResourceLow):
    code: ClassVar[str] = "low_memory"


class AccessDenied(BrokerError):
    code: ClassVar[str] = "access_denied"


class LogInMemory(BrokerError):
    code: ClassVar[str] = "log_in_memory"


class BulkReaderFailed(BrokerError):
    code: ClassVar[str] = "bulk_reader_failed"


class TooManyReaders(BrokerError):
    code: ClassVar[str] = "too_many_readers"


class LogPositionDropped(BrokerError):
    code: ClassVar[str] = "log_position_dropped"


def stopped(error: BaseException) -> BrokerStopped:
    return BrokerStopped(f"The broker has stopped because its log failed; restart it. ({reason(error)})")


def reason(error: BaseException) -> str:
    """The text of an error, or the name of its class if it has none, as MemoryError."""
    return str(error) or type(error).__name__


# -- requests ----------------------------------------------------------------------------------------------------------


class RequestError(BrokerError):
    code: ClassVar[str] = "request_error"


class InvalidRequest(RequestError):
    """It cannot be read, or a field is missing, unknown or of the wrong type."""

    code: ClassVar[str] = "invalid_request"


class UnknownCommand(RequestError):
    code: ClassVar[str] = "unknown_command"


class PathNotFound(RequestError):
    code: ClassVar[str] = "path_not_found"


class MethodNotAllowed(RequestError):
    code: ClassVar[str] = "method_not_allowed"

    def __init__(self, method: str, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(sorted(allowed))
        super().__init__(f"This path does not take method {method}; it takes {self.allowed}.")


class UpgradeRequired(RequestError):
    """The path is for WebSockets only."""

    code: ClassVar[str] = "upgrade_required"


class RequestTooLarge(RequestError):
    code: ClassVar[str] = "request_too_large"


class UnsupportedMediaType(RequestError):
    code: ClassVar[str] = "unsupported_media_type"


class HostNotAllowed(RequestError):
    """The `Host` of the request is not one of this broker's names."""

    code: ClassVar[str] = "host_not_allowed"


class OriginNotAllowed(RequestError):
    """The request is of a web page of an origin that is not allowed."""

    code: ClassVar[str] = "origin_not_allowed"


class ArrowMissing(RequestError):
    """Bulk reads and writes are Arrow, and pyarrow is not installed where the broker runs."""

    code: ClassVar[str] = "arrow_missing"


class StageNotFound(RequestError):
    """A commit names a part that is not staged."""

    code: ClassVar[str] = "stage_not_found"


class StageBusy(RequestError):
    """The batch is being committed."""

    code: ClassVar[str] = "stage_busy"


class StageDamaged(RequestError):
    """The file of a part is not what was staged."""

    code: ClassVar[str] = "stage_damaged"


class RequestCancelled(RequestError):
    """The client cancelled the request while it waited; it has taken nothing."""

    code: ClassVar[str] = "request_cancelled"


class TooManyRequests(RequestError):
    """Too many requests on one stream, or too many readers of the metrics."""

    code: ClassVar[str] = "too_many_requests"


# -- queues, messages, deliveries and claims ---------------------------------------------------------------------------


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

    def __init__(self, message: str, *, is_gone: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone
        """Whether the message is no longer in its queue, in whatever state."""


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


class RedriveNotFound(BrokerError):
    code: ClassVar[str] = "redrive_not_found"


class RedriveRunning(BrokerError):
    code: ClassVar[str] = "redrive_running"

    def __init__(self, message: str, *, queue: str = "") -> None:
        super().__init__(message)
        self.queue = queue
        """The one that the other redrive belongs to."""


class RedriveEnded(BrokerError):
    code: ClassVar[str] = "redrive_ended"


class NamespaceNotFound(BrokerError):
    code: ClassVar[str] = "namespace_not_found"
