"""What can go wrong with a log, one class per thing the caller can do about it.

    BrokerError
    └── LogError          log_error          the log cannot be used as asked
        ├── LogDamaged    log_damaged        stored bytes are wrong or missing; nothing wrong was handed out
        │   └── LogUnreadable log_unreadable reading failed; the bytes may be sound, and a later try may succeed
        ├── LogForeign    log_foreign        this directory holds something else; it was not touched
        ├── LogNewer      log_newer          written by a later Smista
        ├── LogLocked     log_locked         another broker has it open
        ├── LogFull       log_full           no space; nothing was written; try again when there is some
        ├── LogFailed     log_failed         writing or syncing failed; the outcome is unknown; this object is finished
        ├── LogDropped    log_dropped        the block asked for was dropped
        ├── LogFenced     log_fenced         another owner writes this log now; this object is finished
        ├── LogClosed     log_closed         the log was closed
        └── RecordError   log_record_invalid a block holds what is no record (in `smista.records`)

A block that met `LogFull` may be tried again. After `LogFailed` or `LogFenced` it may or may not be there on the next
start: the answer to whoever waits for it is "unknown".
"""

from __future__ import annotations

from typing import ClassVar

from smista.errors import BrokerError

_CURE = (
    "restore the directory from a backup, or serve what is left with --on-damage serve (on_damage=... in Python): "
    "messages that were only in damaged blocks are lost then, and what was settled there comes back"
)


class LogError(BrokerError):
    """The log cannot be used as asked."""

    code: ClassVar[str] = "log_error"


class LogDamaged(LogError):
    """Stored bytes are wrong, missing or unreadable. `position` is the first block concerned, if one can be
    named."""

    code: ClassVar[str] = "log_damaged"
    _state: ClassVar[str] = "is damaged"
    _cure: ClassVar[str] = _CURE

    def __init__(self, log: str, *, position: int | None, what: str, cure: str = "") -> None:
        where = f"block {position} of the log" if position is not None else "the log"
        super().__init__(f"{where} in {log} {self._state}: {what}; {cure or self._cure}")
        self.position = position
        self.what = what


class LogUnreadable(LogDamaged):
    """Reading a block failed: the disk reported an error, or memory ran out. What is stored may be sound."""

    code: ClassVar[str] = "log_unreadable"
    _state: ClassVar[str] = "could not be read"
    _cure: ClassVar[str] = "check the disk; what is stored there may be sound"


class LogForeign(LogError):
    """The directory holds something that is not a Smista log. Nothing in it was changed."""

    code: ClassVar[str] = "log_foreign"

    def __init__(self, log: str, *, what: str) -> None:
        super().__init__(f"{log} does not hold a Smista log: {what}; choose an empty directory")


class LogNewer(LogError):
    """The log was written in a format that this version does not know. Nothing was changed."""

    code: ClassVar[str] = "log_newer"

    def __init__(self, log: str, *, found: int, known: int) -> None:
        super().__init__(
            f"the log in {log} has format {found}, and this version of Smista knows formats up to {known}; "
            "start the newer Smista that wrote it"
        )


class LogLocked(LogError):
    """Another broker has the log open. `pid` is its process, if it could be read."""

    code: ClassVar[str] = "log_locked"

    def __init__(self, log: str, *, pid: int | None) -> None:
        owner = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"the log in {log} is in use by {owner}; stop that broker or choose another directory")
        self.pid = pid


class LogFull(LogError):
    """There is no space for the block. Nothing was written, and the same block may be tried again."""

    code: ClassVar[str] = "log_full"

    def __init__(self, log: str) -> None:
        super().__init__(f"the disk that holds the log in {log} is full and nothing was written; free some space")


class LogFailed(LogError):
    """Opening, writing or syncing failed. What was being written may or may not be there after a restart."""

    code: ClassVar[str] = "log_failed"

    def __init__(self, log: str, *, why: str, is_opening: bool = False, is_damage: bool = False) -> None:
        if is_opening:
            super().__init__(
                f"the log in {log} cannot be opened: {why}; see that this user may write there, or choose another "
                "directory"
            )
            return
        cure = (
            f"{_CURE}; then export its queues and import them in a new directory"
            if is_damage
            else "check the disk, then restart the broker"
        )
        super().__init__(f"the log in {log} failed and takes nothing more: {why}; {cure}")


class LogDropped(LogError):
    """The block was dropped. `first_position` is the oldest that is left."""

    code: ClassVar[str] = "log_dropped"

    def __init__(self, log: str, *, position: int, first_position: int) -> None:
        super().__init__(
            f"block {position} of the log in {log} was dropped; go on from block {first_position}, "
            "and raise log_retention to keep more"
        )
        self.position = position
        self.first_position = first_position


class LogFenced(LogError):
    """Another owner has written the block at `position`, so this one must stop."""

    code: ClassVar[str] = "log_fenced"

    def __init__(self, log: str, *, position: int) -> None:
        super().__init__(f"block {position} of the log in {log} belongs to another owner; stop and hand over to it")
        self.position = position


class LogClosed(LogError):
    """The log was closed."""

    code: ClassVar[str] = "log_closed"

    def __init__(self, log: str) -> None:
        super().__init__(f"the log in {log} is closed; open it again")
