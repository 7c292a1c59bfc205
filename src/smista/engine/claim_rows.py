"""The rows of a claim, read some thousand at a time, as often as they are asked for.

While it is open a claim reads the same. A row that somebody took from under it makes reading it an error, never a
shorter batch: all of them are checked before the first is handed out, and each again when its turn comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from smista.core import claims
from smista.core.claims import Claim, ClaimState
from smista.core.message import Envelope, Message
from smista.core.queue import Queue
from smista.engine.running import Running

READ_AT_ONCE = 4_096
READ_BYTES_AT_ONCE = 8 << 20


class ClaimedRows(msgspec.Struct, frozen=True):
    """Some rows of a claim, a list for each thing that is known of them. Copies: nothing changes them later."""

    queue: str
    claim: int
    first: int
    numbers: list[int]
    sequences: list[int]
    bodies: list[bytes]
    created_at_ms: list[int]
    delivered_at_ms: list[int]
    delivery_counts: list[int]
    priorities: list[int]
    envelopes: list[Envelope]


class ClaimRows:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._keeper = running.keeper

    async def read(self, queue: Queue, claim: Claim, start: int, end: int | None) -> AsyncIterator[ClaimedRows]:
        """Raises at once where any of them is gone; when that happens later, while they are read, the iterator does."""
        end = claim.row_count if end is None else min(end, claim.row_count)
        for first in range(start, end, READ_AT_ONCE):
            claims.messages_of(queue, claim, first, min(first + READ_AT_ONCE, end))
            await asyncio.sleep(0)
        return self._read_rows(queue, claim, start, end)

    async def _read_rows(self, queue: Queue, claim: Claim, start: int, end: int) -> AsyncIterator[ClaimedRows]:
        average = max(1, claim.body_bytes // max(1, claim.row_count))
        step = max(1, min(READ_AT_ONCE, READ_BYTES_AT_ONCE // average))
        for first in range(start, end, step):
            self._running.enter()
            last = min(first + step, end)
            messages = self._rows(queue, claim, first, last)
            if not self._keeper.are_at_hand(messages):
                await self._keeper.fetch(messages)
                # Reading took time.
                messages = self._rows(queue, claim, first, last)
            rows = _copied(queue, claim, first, messages)
            self._keeper.handed_over(messages)
            yield rows

    def _rows(self, queue: Queue, claim: Claim, start: int, end: int) -> list[Message]:
        if claim.state is not ClaimState.OPEN:
            claims.look_up(queue, claim.claimant, claim.number)
        return claims.messages_of(queue, claim, start, end)


def _copied(queue: Queue, claim: Claim, first: int, messages: list[Message]) -> ClaimedRows:
    deliveries = [message.deliveries for message in messages]
    bodies = [message.body for message in messages]
    return ClaimedRows(
        queue.name,
        claim.number,
        first,
        [message.number for message in messages],
        [message.sequence for message in messages],
        [body for body in bodies if type(body) is bytes],
        [message.created_at_ms for message in messages],
        [one.last_at_ms for one in deliveries if one is not None],
        [one.count for one in deliveries if one is not None],
        [message.priority for message in messages],
        [message.envelope for message in messages],
    )
