"""The subscriptions of one stream: how they begin, get credit, are pushed to, are held back, and end.

session ─▶ `_push` ─▶ a tag for each delivery (`stream_settling`) ─▶ frames into the outbox (`stream_pushing`)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from smista.errors import BrokerClosed, BrokerError, BrokerStopped, ConsumerNotFound, TooManyRequests
from smista.protocols.http.errors import error_body
from smista.protocols.http.formats import Format
from smista.protocols.http.outbox import Outbox
from smista.protocols.http.stream_frames import Credit, Ended, Subscribe, Subscribed, Tags, Unsubscribe
from smista.protocols.http.stream_pushing import Pushing
from smista.protocols.http.stream_settling import Consumer, Settling
from smista.service.fields import Success
from smista.service.principal import Principal
from smista.service.service import Service
from smista.service.values import FOREVER_MS, Delivery

logger = logging.getLogger("smista.stream")

SUBSCRIPTIONS_MAX = 10_000


class Subscriptions:
    def __init__(
        self,
        service: Service,
        principal: Principal,
        spoken: Format,
        outbox: Outbox,
        *,
        on_fault: Callable[[], None],
    ) -> None:
        """`on_fault` is called when messages cannot be pushed, by a fault of ours: the connection has to end."""
        self._service = service
        self._principal = principal
        self._session = service.session(principal)
        """For what names no namespace: receipts and subscriptions."""
        self._format = spoken
        self._outbox = outbox
        self._on_fault = on_fault
        self._pushing = Pushing(spoken, outbox)
        self._settling = Settling(self._session)
        self._consumers: dict[int, Consumer] = {}
        self._next_consumer = 1
        self._is_held_back = False
        """Whether nobody gets anything, because too much waits to be written."""

    async def carry_out(self, command: object) -> object:
        match command:
            case Tags():
                return await self._settling.settle(command)
            case Subscribe():
                return self._subscribe(command)
            case Credit():
                self._consumer(command.subscription).subscription.set_prefetch(command.prefetch)
                return Success()
            case Unsubscribe():
                self._consumer(command.subscription).subscription.cancel()
                del self._consumers[command.subscription]
                return Success()
            case _:
                raise AssertionError(command)

    async def settled(self) -> None:
        """Wait for what is being settled in slices."""
        await self._settling.settled()

    def let_go(self, *, is_vanished: bool) -> None:
        """End all of them: what they hold goes back, as failed deliveries if the consumers vanished. At once, or, where
        it is very much, in slices; all of them are out of the line before."""
        subscriptions = [consumer.subscription for consumer in self._consumers.values()]
        self._consumers.clear()
        # Also of those that have unsubscribed and hold something still.
        self._session.leave(subscriptions, self._settling.take_all(), is_vanished=is_vanished)

    # -- subscribing --------------------------------------------------------------------------------------------------

    def _subscribe(self, command: Subscribe) -> Subscribed:
        if len(self._consumers) >= SUBSCRIPTIONS_MAX:
            raise TooManyRequests(f"This connection has {SUBSCRIPTIONS_MAX} subscriptions; open another one for more.")
        consumer = Consumer(self._next_consumer, command.queue, raw=command.raw)
        session = self._service.session(self._principal, command.namespace)
        consumer.subscription = session.subscribe(
            command.queue,
            lambda deliveries: self._push(consumer, deliveries),
            ended=lambda error: self._end(consumer, error),
            consumer=command.consumer or self._principal.address,
            prefetch=command.prefetch,
            priority=command.priority,
            lease_ms=FOREVER_MS if command.lease_ms is None else command.lease_ms,
        )
        self._next_consumer += 1
        self._consumers[consumer.number] = consumer
        if self._is_held_back:
            consumer.subscription.hold_back(True)
        return Subscribed(consumer.number)

    def _consumer(self, number: int) -> Consumer:
        consumer = self._consumers.get(number)
        if consumer is None:
            raise ConsumerNotFound(f"This connection has no subscription {number}; it may have ended.")
        return consumer

    def _end(self, consumer: Consumer, error: BrokerError) -> None:
        """The broker has ended it."""
        self._consumers.pop(consumer.number, None)
        self._settling.forget(consumer)
        self._outbox.put(self._format.encode(Ended(consumer.number, error_body(error))), is_pushed=True)

    # -- pushing ------------------------------------------------------------------------------------------------------

    def _push(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        first_tag = self._settling.add(consumer, deliveries)
        try:
            self._pushing.push(consumer, deliveries, first_tag)
        except Exception:
            # The broker is in the middle of serving a queue, and others with it: our fault must not become theirs.
            logger.exception("messages could not be pushed", extra={"fields": {"peer": self._principal.address}})
            asyncio.get_running_loop().call_soon(self._on_fault)
        if self._outbox.has_many_pushed and not self._is_held_back:
            self._hold_back(True)
        if consumer.number in self._consumers and consumer.has_stale:
            self._settling.forget_stale(consumer)

    # -- holding back -------------------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Some of what waited to be written has been."""
        if self._is_held_back and not self._outbox.has_many_pushed:
            self._hold_back(False)

    def _hold_back(self, is_held_back: bool) -> None:
        self._is_held_back = is_held_back
        # A broker that has stopped pushes nothing, and ends the subscriptions itself.
        with contextlib.suppress(BrokerClosed, BrokerStopped):
            for consumer in self._consumers.values():
                consumer.subscription.hold_back(is_held_back)
