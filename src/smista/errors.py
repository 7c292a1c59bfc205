"""The root of every error a caller can act on, and those that a broker answers whatever is in it: of the broker as a
whole, of requests, of reading the log.

    BrokerError
    ├── BrokerClosed            it was closed, in order
    ├── BrokerStopped           its log failed; nothing is confirmed any more; restart it
    ├── OutcomeUnknown          the log failed while this was being written: it may or may not be there after a restart
    ├── ResourceLow             refused, nothing stored; consuming goes on
    │   ├── LowDisk
    │   └── LowMemory
    ├── RequestError            the request, not the broker's state, is at fault
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
    ├── LogInMemory             the log is where no other process can read it
    ├── BulkReaderFailed        the process that reads the log for others has ended, or met damage
    ├── TooManyReaders          as many are reading the log as may
    └── LogPositionDropped      the log no longer has what was asked for

What a peer or the machine did wrong is a `BrokerError`; what we did wrong is an `assert`. Each package draws its own
part of the tree in its `errors.py`. These stand here because clients raise them too, and must load neither an engine
nor a protocol for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class BrokerError(Exception):
    """Something the caller can act on. Its message is a sentence that names the thing, what happened and the
    cure."""

    code: ClassVar[str] = "broker_error"
    """Stable over releases, so that programs may compare it; the sentence is for people and may change."""


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
        super().__init__(f"Method {method} does not go with this path; {self.allowed} does.")


class UpgradeRequired(RequestError):
    """The stream is spoken over a WebSocket only."""

    code: ClassVar[str] = "upgrade_required"


class RequestTooLarge(RequestError):
    code: ClassVar[str] = "request_too_large"


class UnsupportedMediaType(RequestError):
    code: ClassVar[str] = "unsupported_media_type"


class HostNotAllowed(RequestError):
    """The request came under a name that is not one of this broker's."""

    code: ClassVar[str] = "host_not_allowed"


class OriginNotAllowed(RequestError):
    """A web page asked that is not the broker's own, and not of an allowed origin."""

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
    """What was staged is not what is on disk."""

    code: ClassVar[str] = "stage_damaged"


class RequestCancelled(RequestError):
    """Whoever sent it has taken it back while it waited; it has taken nothing."""

    code: ClassVar[str] = "request_cancelled"


class TooManyRequests(RequestError):
    """More in flight on one stream, or more readers of the metrics, than there may be."""

    code: ClassVar[str] = "too_many_requests"


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
    """What an error says; some, as that there is no memory left, say nothing but what they are."""
    return str(error) or type(error).__name__
