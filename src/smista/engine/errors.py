"""What can go wrong with a running broker.

BrokerError
├── BrokerClosed       it was closed, in order
├── BrokerStopped      its log failed; nothing is confirmed any more; restart it
├── OutcomeUnknown     the log failed while this was being written: it may or may not be there after a restart
└── ResourceLow        refused, nothing stored; consuming goes on
    ├── LowDisk
    └── LowMemory
"""

from __future__ import annotations

from typing import ClassVar

from smista.errors import BrokerError


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
