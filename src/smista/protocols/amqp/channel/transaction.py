"""A channel's transaction: what is published and settled under it, until it is committed or rolled back.

    publish ─▶ routed at once, as in RabbitMQ ─┐
    ack, nack, reject ─▶ no longer unacked ────┤ waits ─▶ commit: published, then settled, then answered when on disk
                                               └───────▶ rollback, or the channel closes: dropped; unacked again

It belongs to the channel: that a consumer is cancelled changes nothing about what was delivered to it. A commit that
has begun comes to its end, also without its connection; where it cannot, what it has not settled is unacked again. A
large one is done in slices, and others may see a part of it before it is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from smista.protocols.amqp.channel.acknowledgements import Acknowledgements
from smista.protocols.amqp.channel.outcomes import Outcomes
from smista.protocols.amqp.channel.publisher import Publisher
from smista.protocols.amqp.channel.run import Run
from smista.protocols.amqp.channel.unacked import Settlement
from smista.protocols.amqp.client import Client, Later
from smista.protocols.amqp.wire.replies import PRECONDITION_FAILED, ChannelClosing
from smista.service.values import Receipt, RoutedQueue

KEPT_BYTES_MAX = (256 + 64) << 20
"""Of all that waits for a commit on one connection: it is in memory until then. Two of the largest bodies, and what as
many messages as there may be take beside theirs."""
MESSAGE_BYTES = 600
"""What a message takes beside its body, properties and queues, more or less."""
POINTER_BYTES = 8
OPERATIONS_MAX = 100_000
"""Publishes, and methods that settle, in one transaction."""
SLICE = 500
"""So many are published, settled or put back, or so many bytes published, before everybody else has a turn."""
SLICE_BYTES = 4 << 20

Waiting = tuple[Run, tuple[RoutedQueue, ...]]
Settled = tuple[Settlement, dict[int, Receipt]]


class Transaction:
    __slots__ = (
        "_acknowledgements",
        "_client",
        "_kept_bytes",
        "_operation_count",
        "_outcomes",
        "_publisher",
        "_publishes",
        "_settlements",
    )

    def __init__(
        self, client: Client, publisher: Publisher, outcomes: Outcomes, acknowledgements: Acknowledgements
    ) -> None:
        self._client = client
        self._publisher = publisher
        self._outcomes = outcomes
        self._acknowledgements = acknowledgements
        self._publishes: list[Waiting] = []
        self._settlements: list[Settled] = []
        self._kept_bytes = 0
        self._operation_count = 0

    def publish(self, run: Run, queues: tuple[RoutedQueue, ...]) -> None:
        """Raises what closes the channel, if it is too much."""
        kept_bytes = sum(map(len, run.bodies)) + MESSAGE_BYTES * len(run)
        last_run, last_queues = self._publishes[-1] if self._publishes else (None, None)
        # What is shared with the message before takes no more room.
        envelope = None if last_run is None else last_run.envelopes[-1]
        for each in run.envelopes:
            if each is not envelope:
                kept_bytes += len(each.properties)
                envelope = each
        if queues is not last_queues:
            kept_bytes += POINTER_BYTES * len(queues)
        self._keep(kept_bytes)
        self._count(len(run))
        self._publishes.append((run, queues))

    def _keep(self, kept_bytes: int) -> None:
        client = self._client
        self._kept_bytes += kept_bytes
        client.transacted_bytes += kept_bytes
        if client.transacted_bytes > KEPT_BYTES_MAX:
            raise ChannelClosing(
                PRECONDITION_FAILED,
                f"transactions of {client.transacted_bytes} bytes on one connection are larger than max size "
                f"{KEPT_BYTES_MAX}; commit more often",
            )

    def settle(self, settlement: Settlement, taken: dict[int, Receipt]) -> None:
        """Raises what closes the channel, which then gives these back with the others."""
        if self._settlements and self._settlements[-1][0] is settlement:
            self._settlements[-1][1].update(taken)
        else:
            self._settlements.append((settlement, taken))
        self._count(1)

    def _count(self, operation_count: int) -> None:
        self._operation_count += operation_count
        if self._operation_count > OPERATIONS_MAX:
            raise ChannelClosing(
                PRECONDITION_FAILED, f"transaction of more than {OPERATIONS_MAX} operations; commit more often"
            )

    def roll_back(self) -> Later | None:
        """Nothing was published, and what was settled is unacked as before: at once, or, where it is very much, in
        slices, by a coroutine, which has to come to its end."""
        if sum(len(taken) for _, taken in self._settlements) <= SLICE:
            self.drop()
            return None
        _, settlements = self._take()
        return self._put_back_in_slices([each for _, taken in settlements for each in taken.items()])

    async def _put_back_in_slices(self, together: list[tuple[int, Receipt]]) -> None:
        async for some in self._client.service.fair_turns.slices(together, SLICE):
            self._acknowledgements.unacked.put_back(some)

    def drop(self) -> None:
        """Roll back at once, however much it is: the channel closes."""
        _, settlements = self._take()
        self._put_back(settlements)

    async def commit(self) -> None:
        """Returns when all is on disk. Raises what closes the channel."""
        await self._client.shared.until_publishes_are_taken()
        publishes, taken = self._take()
        settlements = deque(taken)
        self._outcomes.begin_commit()
        try:
            await self._publish_all(publishes)
            # Else the channel is closing, or gone, and gives back what is not settled now.
            if not self._outcomes.is_refused:
                if publishes and any(settlement is Settlement.REQUEUE for settlement, _ in taken):
                    # Whoever waits gets what was published before what goes back, as in RabbitMQ.
                    await asyncio.sleep(0)
                await self._settle_all(settlements)
        finally:
            self._put_back(settlements)
        await self._client.unanswered.together()
        if self._outcomes.is_partial:
            raise ChannelClosing(PRECONDITION_FAILED, "partial tx completion")

    async def _publish_all(self, publishes: list[Waiting]) -> None:
        """Publish them one after the other, but for what is behind the slice in which one was refused."""
        client, outcomes, publisher = self._client, self._outcomes, self._publisher
        count = body_bytes = 0
        for run, queues in publishes:
            publisher.publish(outcomes, run, publisher.present(queues))
            await client.until_done()
            count += len(run) * max(1, len(queues))
            body_bytes += sum(map(len, run.bodies))
            if count >= SLICE or body_bytes >= SLICE_BYTES:
                publisher.flush()
                await client.until_done()
                if outcomes.is_refused:
                    return
                await client.service.room()
                await asyncio.sleep(0)
                count = body_bytes = 0
        publisher.flush()
        await client.until_done()

    async def _settle_all(self, settlements: deque[Settled]) -> None:
        """Settle them one after the other; those that are left when this raises were not settled."""
        count = 0
        while settlements:
            settlement, taken = settlements[0]
            self._acknowledgements.settle(settlement, taken)
            await self._client.until_done()
            settlements.popleft()
            count += len(taken)
            if count >= SLICE:
                await asyncio.sleep(0)
                count = 0

    def _take(self) -> tuple[list[Waiting], list[Settled]]:
        publishes, self._publishes = self._publishes, []
        settlements, self._settlements = self._settlements, []
        self._client.transacted_bytes -= self._kept_bytes
        self._kept_bytes = self._operation_count = 0
        return publishes, settlements

    def _put_back(self, settlements: Iterable[Settled]) -> None:
        for _, taken in settlements:
            self._acknowledgements.unacked.put_back(taken.items())
