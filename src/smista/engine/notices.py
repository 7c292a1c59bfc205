"""What a broker tells its operator by itself: a line of the standard `logging` when something changes for the worse or
the better, none while it stays as it is. The same is in the measures, for who looks at those.

    publishing     refused, and why ◀─────▶ taken again
    the reserve    spent ◀────────────────▶ set aside again
    a block        waits for room ◀───────▶ written
    a block        cannot be read ◀───────▶ can be read again
    blocks         left out, by every start until they are dropped
    a block        damaged, and how many messages were set aside for it
    dead letters   how many of which queue, and why; at most one line for each queue every ten seconds
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from smista.core.message import Reason
from smista.core.queue import Queue
from smista.errors import ResourceLow
from smista.log.errors import LogDamaged, LogError, LogUnreadable
from smista.repeats import Repeats

logger = logging.getLogger("smista.engine")


class Notices:
    def __init__(self, left_out: frozenset[int]) -> None:
        """`left_out` are the blocks that the start left out."""
        self.damaged_messages = 0
        """How many messages were set aside because their bodies cannot be read."""
        self._damaged = set(left_out)
        self._reported: set[int] = set()
        self._unreadable: set[int] = set()
        self._refusal_code: str | None = None
        self._is_reserve_spent = False
        self._waiting_since_s: float | None = None
        self._dead_lettered: Repeats[tuple[str, str]] = Repeats(_log_dead_lettered)
        if left_out:
            logger.warning(
                "damaged blocks are left out, by this start or an earlier one that was to serve the rest: what they "
                "changed is lost",
                extra=_fields(blocks=len(left_out), first=min(left_out), last=max(left_out)),
            )

    @property
    def damaged_blocks(self) -> int:
        return len(self._damaged)

    @property
    def unreadable_blocks(self) -> int:
        """How many blocks could not be read when they were last tried; what they hold may be sound."""
        return len(self._unreadable)

    def is_unreadable(self, position: int) -> bool:
        return position in self._unreadable

    # -- room ---------------------------------------------------------------------------------------------------------

    def update(self, *, refusal: ResourceLow | None, is_reserve_spent: bool, room: dict[str, int | None]) -> None:
        """How it stands with disk and memory. `room` is what to tell beside a change."""
        code = None if refusal is None else refusal.code
        if code != self._refusal_code:
            self._refusal_code = code
            if refusal is None:
                logger.info("publishing is taken again", extra=_fields(**room))
            else:
                logger.warning("publishing is refused: %s", refusal, extra=_fields(code=code, **room))
        if is_reserve_spent != self._is_reserve_spent:
            self._is_reserve_spent = is_reserve_spent
            if is_reserve_spent:
                logger.warning("the log has given up its reserve for acknowledgements", extra=_fields(**room))
            else:
                logger.info("the log has set its reserve aside again", extra=_fields(**room))

    def waits_for_room(self, position: int, free_bytes: int | None) -> None:
        if self._waiting_since_s is None:
            self._waiting_since_s = time.monotonic()
            logger.error(
                "the disk is full: a block waits for room, and with it every call that changes something; "
                "free some space",
                extra=_fields(position=position, disk_free_bytes=free_bytes),
            )

    def written(self, position: int) -> None:
        if self._waiting_since_s is not None:
            waited_ms = round((time.monotonic() - self._waiting_since_s) * 1000)
            self._waiting_since_s = None
            logger.info(
                "the block that waited for room has been written", extra=_fields(position=position, waited_ms=waited_ms)
            )

    # -- damage -------------------------------------------------------------------------------------------------------

    def damaged(self, position: int, damage: LogError, messages: int) -> None:
        """A block is damaged, or could not be read for as long as somebody waited for it; so many messages were set
        aside for it just now."""
        self.damaged_messages += messages
        if not isinstance(damage, LogUnreadable):
            self._damaged.add(position)
        if messages or position not in self._reported:
            self._reported.add(position)
            logger.error("%s", damage, extra=_fields(code=damage.code, position=position, set_aside=messages))

    def unreadable(self, position: int, error: LogDamaged, again_s: float) -> None:
        if position not in self._unreadable:
            self._unreadable.add(position)
            logger.error(
                "%s; trying again every %g s", error, again_s, extra=_fields(code=error.code, position=position)
            )

    def readable(self, position: int) -> None:
        if position in self._unreadable:
            self._unreadable.discard(position)
            logger.info("a block can be read again", extra=_fields(position=position))

    # -- messages -----------------------------------------------------------------------------------------------------

    def dead_lettered(self, queue: Queue, reason: Reason) -> None:
        """A message was set aside, moved to its dead-letter queue or parked."""
        self._dead_lettered.note((queue.namespace, queue.name), reason.name.lower())

    def closing(self) -> None:
        """Tell what was only counted so far."""
        self._dead_lettered.flush()


def _log_dead_lettered(queue: tuple[str, str] | None, reasons: Counter[str]) -> None:
    fields: dict[str, object] = {"count": reasons.total(), "reasons": dict(reasons)}
    if queue is None:
        logger.info("messages of many more queues were dead-lettered", extra=_fields(**fields))
    else:
        named = _fields(namespace=queue[0], queue=queue[1], **fields)
        logger.info("messages of queue %r were dead-lettered", queue[1], extra=named)


def _fields(**values: object) -> dict[str, dict[str, object]]:
    """What stands beside a line, in the form that the server's logs take."""
    return {"fields": values}
