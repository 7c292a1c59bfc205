"""The root of every error a caller can act on, and what can go wrong with a running broker.

    BrokerError
    ├── BrokerClosed       it was closed, in order
    ├── BrokerStopped      its log failed; nothing is confirmed any more; restart it
    ├── OutcomeUnknown     the log failed while this was being written: it may or may not be there after a restart
    └── ResourceLow        refused, nothing stored; consuming goes on
        ├── LowDisk
        └── LowMemory

What a peer or the machine did wrong is a `BrokerError`; what we did wrong is an `assert`. Each package draws its own
part of the tree in its `errors.py`. Those of the engine stand here because clients raise them too, and must not load an
engine for that.
"""

from __future__ import annotations

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


def stopped(error: BaseException) -> BrokerStopped:
    return BrokerStopped(f"The broker has stopped because its log failed; restart it. ({error})")
