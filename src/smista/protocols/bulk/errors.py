"""What can go wrong with reading in bulk, and what a caller can do about it.

BrokerError
├── LogInMemory           the log is where no other process can read it
├── BulkReaderFailed      the process that reads for others has ended, or met damage
├── TooManyReaders        as many are reading as may
└── LogPositionDropped    the log no longer has what was asked for
"""

from __future__ import annotations

from typing import ClassVar

from smista.errors import BrokerError
from smista.log.errors import LogDropped, LogError


class LogInMemory(BrokerError):
    code: ClassVar[str] = "log_in_memory"


class BulkReaderFailed(BrokerError):
    code: ClassVar[str] = "bulk_reader_failed"


class TooManyReaders(BrokerError):
    code: ClassVar[str] = "too_many_readers"


class LogPositionDropped(BrokerError):
    code: ClassVar[str] = "log_position_dropped"


def error_answer(error: LogError) -> tuple[str, str, str]:
    """Status, code and sentence for what can go wrong while blocks are read."""
    if isinstance(error, LogDropped):
        return "410 Gone", LogPositionDropped.code, dropped(error.position, error.first_position)
    return "503 Service Unavailable", BulkReaderFailed.code, str(error)


def dropped(position: int, first: int) -> str:
    """The sentence for a position below what is kept."""
    return (
        f"Block {position} of the log has been dropped; the first that is kept is {first}. Read on from there, and "
        "raise --log-retention-ms and --log-retention-bytes to keep more."
    )
