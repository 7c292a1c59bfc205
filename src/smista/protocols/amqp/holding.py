"""What a connection has in the broker: its channels with all they hold, and its exclusive queues; and how it lets go.

Whoever leaves, a channel or the whole connection, is out of the line with all its consumers before anything goes back.
What goes back is very much at times: it goes in slices then, and nobody but those who need it back waits for it: the
connection does, with its next method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from smista.engine import Receipt
from smista.protocols.amqp.outgoing import Outgoing

if TYPE_CHECKING:
    from smista.protocols.amqp.channel import Channel
    from smista.protocols.amqp.connection import AmqpConnection
    from smista.protocols.amqp.consuming import Consumer
    from smista.protocols.amqp.door import AmqpDoor


class Holding(Outgoing):
    def __init__(self, door: AmqpDoor) -> None:
        super().__init__(door)
        self._owned: set[int] = set()
        """Exclusive queues that it declared, by number."""
        self._going_back: set[asyncio.Future[None]] = set()
        """What is to be waited for until all that its channels held is back."""

    def own(self, number: int) -> None:
        """An exclusive queue was declared here: it goes with this connection."""
        self._owned.add(number)
        self.door.exclusive[number] = cast("AmqpConnection", self)

    def disown(self, number: int) -> None:
        self._owned.discard(number)
        self.door.exclusive.pop(number, None)

    def consumer_left(self, consumer: Consumer) -> None:
        self.wide_consumers.discard(consumer)
        self.door.consumer_left(consumer)

    def _leave(self, channels: Iterable[Channel]) -> None:
        """Everything that channels hold goes back to where it was: at once, or it is still `_going_back`."""
        consumers: list[Consumer] = []
        receipts: list[Receipt] = []
        for channel in channels:
            consuming, held = channel.let_go()
            consumers += consuming
            receipts += held
        if not self._is_broker_well:
            return
        broker = self.door.broker
        rest = broker.leave([consumer.subscription for consumer in consumers], receipts, broker.vanish_now)
        self.wide_consumers.difference_update(consumers)
        self.door.consumers_left(consumers)
        if rest is not None:
            self._going_back.add(rest)
            rest.add_done_callback(self._going_back.discard)

    async def _until_back(self) -> None:
        while self._going_back:
            await asyncio.wait(self._going_back)

    def _end_all(self) -> None:
        """Channels, and the queues that are this connection's alone."""
        self.flush_acknowledged()
        channels, self.channels = self.channels, {}
        self._leave(channels.values())
        owned, self._owned = self._owned, set()
        unwritten = self.take_unwritten()
        if self._is_broker_well:
            self.door.broker.release_now(unwritten)
            self.door.delete_all([(number, False) for number in sorted(owned)])
