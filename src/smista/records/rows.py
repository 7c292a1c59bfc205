"""The rows of the log: one row is one thing that happened to one message (a purge, a deletion: to one queue).

Each kind of record that has rows says in its module, in `collect`, which columns they fill. It hands them to a `Rows`,
which is where the process that reads the log in bulk collects them, by runs: rows that differ in their sequence alone.
Nothing here is done for each row, and nothing is decoded that was not asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from smista.core.message import Reason

if TYPE_CHECKING:
    from smista.records.enqueued import Outline

PackedEnvelope = tuple[bytes, bytes]
"""An envelope but for its properties, and those."""
NONE = -1
"""Stands for null."""
KINDS = (
    "enqueued",
    "delivered",
    "extended",
    "returned",
    "rescheduled",
    "ready",
    "acknowledged",
    "expired",
    "removed",
    "dead_lettered",
    "moved",
    "purged",
    "deleted",
)
"""The kinds of rows, by number."""
ENQUEUED, DELIVERED, EXTENDED, RETURNED, RESCHEDULED, READY, ACKNOWLEDGED, EXPIRED, REMOVED = range(9)
DEAD_LETTERED, MOVED, PURGED, DELETED = range(9, 13)
REASONS = ["", *(reason.name.lower() for reason in Reason), "all", "ready"]
"""Reasons as rows have them, by number. The last two say what was purged."""
ALL_PURGED, READY_PURGED = len(REASONS) - 2, len(REASONS) - 1


class Rows(Protocol):
    """Where the rows of records are collected."""

    has_errors: bool
    """Whether the texts of errors were asked for."""

    def step(self, kind: int, queue: int, count: int) -> int:
        """The next so many rows are of this kind and queue. The queue's code; negative when they were not asked for:
        then there is nothing more to do."""
        ...

    def run(self, kind: int, code: int, at_ms: int, count: int) -> None:
        """Collect them: rows of which nothing more is known."""
        ...

    def detailed_run(
        self,
        kind: int,
        code: int,
        at_ms: int,
        count: int,
        *,
        reason: int = NONE,
        deadline_ms: int = NONE,
        consumer: int = NONE,
        ready_at_ms: int = NONE,
        target_queue: int = NONE,
        target_sequence: int = NONE,
        delivery_count: int = NONE,
        purged: int = NONE,
        error: int = NONE,
    ) -> None:
        """Collect them, with what all of them have in common."""
        ...

    def take_sequences(self, block: bytes, start: int, end: int, count: int) -> None:
        """The sequences of a run, as they stand in the block."""
        ...

    def take_sequence(self, sequence: int) -> None:
        """The sequence of a run of one; `NONE` where a row has none."""
        ...

    def take_run(self, block: bytes, run: Outline) -> None:
        """The entries of a run, as they stand in an ENQUEUED record."""
        ...

    def take_entry(
        self,
        sequence: int,
        priority: int,
        envelope: PackedEnvelope,
        body: memoryview,
        *,
        ready_at_ms: int | None = None,
        expires_at_ms: int | None = None,
        created_at_ms: int | None = None,
        number: int | None = None,
    ) -> None:
        """The entry of a run of one; what is None is as in any message that is published now."""
        ...

    def readdress(self, sequence: int, exchange: str, routing_key: str) -> None:
        """The last run, if it moved this message, moved it to that exchange."""
        ...

    def queue_code(self, number: int) -> int:
        """The code of a queue, whether its rows were asked for or not."""
        ...

    def consumer_code(self, name: bytes) -> int: ...

    def error_code(self, text: str) -> int: ...
