"""The subscriptions of one stream, what each of them holds, and the commands about both.

    broker ─▶ `_push` ─▶ a tag for each delivery ─▶ frames into the outbox
    ack, nack, release ─▶ the tag is void ─▶ the broker

A tag is a delivery's number on the connection. Who holds it is in `_holders`, and the receipt that it stands for is
with the holder; an `up_to` is about one holder, a `tags` may be about several.

Very many are settled in slices, by an errand of the broker's that comes to its end also when the connection goes. The
stream starts nothing more of its peer's meanwhile (`settled`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import UNSET

from smista.core.errors import ConsumerNotFound, InvalidReceipt
from smista.engine import (
    FOREVER_MS,
    SETTLED_AT_ONCE,
    Broker,
    Delivery,
    Receipt,
    Subscription,
)
from smista.errors import BrokerClosed, BrokerError, BrokerStopped
from smista.protocols.http.commands.base import Success
from smista.protocols.http.commands.receiving import common_action, show_outcome
from smista.protocols.http.errors import InvalidRequest, TooManyRequests, error_body
from smista.protocols.http.formats import Format
from smista.protocols.http.messages import MessageView, show_delivery
from smista.protocols.http.outbox import Outbox
from smista.protocols.http.stream_frames import (
    AcknowledgeTags,
    Credit,
    Ended,
    ExtendTags,
    NackTags,
    Pushed,
    ReleaseTags,
    SettledTags,
    Subscribe,
    Subscribed,
    Tags,
    Unsubscribe,
)

logger = logging.getLogger("smista.stream")

SUBSCRIPTIONS_MAX = 10_000
FRAME_BYTES_MAX = 768 * 1024
"""What pushed messages may take together: many clients take no frame above 1 MiB. One alone may take more."""
VIEW_BYTES = 400
"""What a pushed message takes beside its body, about; with much in its headers it is more."""
STALE_TAGS_MAX = 1_000

_CANNOT_WRITE = (TypeError, ValueError, OverflowError)
"""What an encoder raises for a value that its format has no words for."""


class Consumer:
    """A subscription, and what it holds by tag, in the order of delivery."""

    __slots__ = ("held", "number", "order", "prefetch", "raw", "subscription")

    def __init__(self, number: int, *, raw: bool) -> None:
        self.number = number
        self.raw = raw
        self.prefetch = 0
        """What it was promised; the subscription's own is lower while it is held back."""
        self.held: dict[int, Receipt] = {}
        self.order: deque[int] = deque()
        """Its tags, and some that are void. Not `held` itself: a dict walks over all that was taken from its front,
        each time anew."""
        self.subscription: Subscription

    def up_to(self, last: int) -> list[int]:
        """What it holds up to a tag; takes as long as that is much, however much is behind it."""
        self.forget_void()
        order, held = self.order, self.held
        while order and order[0] not in held:
            order.popleft()
        tags = []
        for tag in order:
            if tag > last:
                break
            if tag in held:
                tags.append(tag)
        return tags

    def forget_void(self) -> None:
        if len(self.order) > 2 * len(self.held) + STALE_TAGS_MAX:
            self.order = deque(self.held)


class Subscriptions:
    def __init__(
        self, broker: Broker, spoken: Format, outbox: Outbox, *, peer: str, on_fault: Callable[[], None]
    ) -> None:
        """`on_fault` is called when messages cannot be pushed, by a fault of ours: the connection has to end."""
        self._broker = broker
        self._format = spoken
        self._outbox = outbox
        self._peer = peer
        self._on_fault = on_fault
        self._consumers: dict[int, Consumer] = {}
        self._holders: dict[int, Consumer] = {}
        """By tag, who holds it; also of consumers that have unsubscribed."""
        self._errands: dict[asyncio.Task[None], Sequence[Receipt]] = {}
        """What is being done in slices, and the receipts that are settled by it."""
        self._next_tag = 1
        self._next_consumer = 1
        self._is_held_back = False
        """Whether nobody gets more than one message, because too much waits to be written."""

    async def carry_out(self, command: object) -> object:
        match command:
            case Tags():
                return await self._settle(command)
            case Subscribe():
                return self._subscribe(command)
            case Credit():
                self._set_credit(self._consumer(command.subscription), command.prefetch)
                return Success()
            case Unsubscribe():
                self._unsubscribe(self._consumer(command.subscription))
                return Success()
            case _:
                raise AssertionError(command)

    def let_go(self, *, is_vanished: bool) -> None:
        """End all of them: what they hold goes back, as failed deliveries if the consumers vanished. At once, or, where
        it is very much, in slices; all of them are out of the line before."""
        subscriptions = [consumer.subscription for consumer in self._consumers.values()]
        # Also of those that have unsubscribed and hold something still.
        holders = dict.fromkeys(subscriptions) | {holder.subscription: None for holder in self._holders.values()}
        being_settled = {receipt for receipts in self._errands.values() for receipt in receipts}
        receipts = [receipt for holder in holders for receipt in holder.held.values() if receipt not in being_settled]
        self._consumers.clear()
        self._holders.clear()
        if self._broker.failure is None and not self._broker.is_closed:
            give_back = self._broker.vanish_now if is_vanished else self._broker.release_some
            self._broker.leave(subscriptions, receipts, give_back)

    # -- subscribing --------------------------------------------------------------------------------------------------

    def _subscribe(self, command: Subscribe) -> Subscribed:
        if len(self._consumers) >= SUBSCRIPTIONS_MAX:
            raise TooManyRequests(f"This connection has {SUBSCRIPTIONS_MAX} subscriptions; open another one for more.")
        consumer = Consumer(self._next_consumer, raw=command.raw)
        consumer.subscription = self._broker.subscribe(
            command.queue,
            lambda deliveries: self._push(consumer, deliveries),
            ended=lambda error: self._end(consumer, error),
            consumer=command.consumer or self._peer,
            prefetch=command.prefetch,
            priority=command.priority,
            lease_ms=FOREVER_MS if command.lease_ms is None else command.lease_ms,
            namespace=command.namespace,
        )
        consumer.prefetch = consumer.subscription.prefetch
        self._next_consumer += 1
        self._consumers[consumer.number] = consumer
        self._tell_prefetch(consumer)
        return Subscribed(consumer.number)

    def _set_credit(self, consumer: Consumer, prefetch: int) -> None:
        self._broker.set_prefetch(consumer.subscription, prefetch)
        consumer.prefetch = prefetch
        self._tell_prefetch(consumer)

    def _unsubscribe(self, consumer: Consumer) -> None:
        del self._consumers[consumer.number]
        self._broker.cancel(consumer.subscription, keeps_held=True)
        # What was on its way, its body being fetched, will not be handed over any more.
        self._broker.release_now(consumer.subscription.fetching)

    def _consumer(self, number: int) -> Consumer:
        consumer = self._consumers.get(number)
        if consumer is None:
            raise ConsumerNotFound(f"This connection has no subscription {number}; it may have ended.")
        return consumer

    def _end(self, consumer: Consumer, error: BrokerError) -> None:
        """The broker has ended it."""
        self._consumers.pop(consumer.number, None)
        for tag in consumer.held:
            self._holders.pop(tag, None)
        consumer.held.clear()
        self._outbox.put(self._format.encode(Ended(consumer.number, error_body(error))), is_pushed=True)

    # -- settling -----------------------------------------------------------------------------------------------------

    async def _settle(self, command: Tags) -> SettledTags:
        if (command.tags is None) == (command.up_to is None):
            raise InvalidRequest("Give either `tags` or `up_to`.")
        if command.tags is None:
            assert command.up_to is not None
            results = await self._outcomes(command, self._up_to(command.up_to))
        else:
            results = await self._outcomes_of_any(command, command.tags)
        await self._broker.durable()
        return _settled(results)

    def _up_to(self, last: int) -> list[int]:
        holder = self._holders.get(last)
        if holder is None:
            raise _unknown_tag(last)
        return holder.up_to(last)

    async def _outcomes_of_any(self, command: Tags, tags: list[int]) -> list[Any]:
        """What came of each tag, one by one; those that are not held here have failed."""
        if len(set(tags)) != len(tags):
            raise InvalidRequest("A tag stands twice in `tags`.")
        holders = self._holders
        known = [tag for tag in tags if tag in holders]
        outcomes = await self._outcomes(command, known)
        if len(known) == len(tags):
            return outcomes
        by_tag = dict(zip(known, outcomes, strict=True))
        return [by_tag[tag] if tag in by_tag else _unknown_tag(tag) for tag in tags]

    async def _outcomes(self, command: Tags, tags: list[int]) -> list[Any]:
        """What came of each tag, all of them held here. All but `extend` void them, whatever comes of it."""
        holders = self._holders
        if isinstance(command, ExtendTags):
            return await self._extend([holders[tag].held[tag] for tag in tags], command.lease_ms)
        receipts = [holders.pop(tag).held.pop(tag) for tag in tags]
        settle = self._settle_by(command)
        results: list[Any] = []

        def settle_some(some: Sequence[Receipt]) -> int:
            outcomes = settle(some)
            results.extend(outcomes)
            return len(outcomes)

        is_acknowledged = isinstance(command, AcknowledgeTags)
        work = self._broker.settle_many(
            receipts, settle_some, is_acknowledged=is_acknowledged, goes_back=not is_acknowledged
        )
        if work is not None:
            await self._run_errand(work, receipts)
        return results

    def _settle_by(self, command: Tags) -> Callable[[Sequence[Receipt]], Sequence[Any]]:
        broker = self._broker
        match command:
            case AcknowledgeTags():
                return broker.acknowledge_now
            case NackTags(requeue=requeue, delay_ms=delay_ms, error=error):
                return lambda receipts: broker.nack_now(
                    receipts, requeue=requeue, delay_ms=delay_ms, error=error, is_cut=True
                )
            case ReleaseTags():
                return lambda receipts: broker.release_now(receipts, is_cut=True)
            case _:
                raise AssertionError(command)

    async def _extend(self, receipts: list[Receipt], lease_ms: int) -> list[Any]:
        if len(receipts) <= SETTLED_AT_ONCE:
            return list(await self._broker.extend(receipts, lease_ms))
        results: list[Any] = []

        async def extend_all() -> None:
            for start in range(0, len(receipts), SETTLED_AT_ONCE):
                results.extend(await self._broker.extend(receipts[start : start + SETTLED_AT_ONCE], lease_ms))

        await self._run_errand(extend_all(), ())
        return results

    async def _run_errand(self, work: Coroutine[Any, Any, None], receipts: Sequence[Receipt]) -> None:
        """Have something done to its end, also when whoever asked for it goes."""
        failure: BrokerError | None = None

        async def run() -> None:
            nonlocal failure
            try:
                await work
            except BrokerError as error:
                # Kept, not raised: there may be nobody left to hear of it.
                failure = error

        errand = self._broker.run_errand(run())
        self._errands[errand] = receipts
        errand.add_done_callback(self._errands.pop)
        await asyncio.shield(errand)
        if failure is not None:
            raise failure

    async def settled(self) -> None:
        """Wait for what is being done in slices."""
        while self._errands:
            await asyncio.wait(self._errands)

    # -- pushing ------------------------------------------------------------------------------------------------------

    def _push(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        try:
            self._hand_over(consumer, deliveries)
        except Exception:
            # The broker is in the middle of serving a queue, and others with it: our fault must not become theirs.
            logger.exception("messages could not be pushed", extra={"fields": {"peer": self._peer}})
            asyncio.get_running_loop().call_soon(self._on_fault)

    def _hand_over(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        spoken, raw = self._format, consumer.raw
        held, holders, order = consumer.held, self._holders, consumer.order
        views: list[MessageView] = []
        tag = self._next_tag
        for delivery in deliveries:
            view = show_delivery(delivery, spoken, raw=raw)
            view.tag = tag
            held[tag] = delivery.receipt
            holders[tag] = consumer
            order.append(tag)
            tag += 1
            views.append(view)
        consumer.forget_void()
        self._next_tag = tag
        # Sizes are added up for all at once, since anything done for each counts: 0.4 us of 7 when it was done so.
        size = sum([len(delivery.body) for delivery in deliveries]) + len(deliveries) * VIEW_BYTES
        step = max(1, len(deliveries) * FRAME_BYTES_MAX // max(size, FRAME_BYTES_MAX))
        for start in range(0, len(deliveries), step):
            self._put(consumer, views[start : start + step], deliveries[start : start + step])
        if self._outbox.has_many_pushed and not self._is_held_back:
            self._hold_back(is_held_back=True)
        if len(held) > consumer.prefetch + STALE_TAGS_MAX:
            self._forget_stale(consumer)

    def _put(self, consumer: Consumer, views: list[MessageView], deliveries: list[Delivery]) -> None:
        try:
            frame = self._format.encode(Pushed(consumer.number, views))
        except _CANNOT_WRITE:
            views = [self._writable(view, delivery) for view, delivery in zip(views, deliveries, strict=True)]
            frame = self._format.encode(Pushed(consumer.number, views))
        if len(frame) <= FRAME_BYTES_MAX or len(views) == 1:
            self._outbox.put(frame, is_pushed=True)
            return
        half = len(views) // 2
        self._put(consumer, views[:half], deliveries[:half])
        self._put(consumer, views[half:], deliveries[half:])

    def _writable(self, view: MessageView, delivery: Delivery) -> MessageView:
        """The message without what this format has no words for: MessagePack knows no integers beyond 64 bits, JSON no
        keys but text. The bytes of the body say what its value would; headers that cannot be written are left out."""
        if self._can_write(view):
            return view
        plain = show_delivery(delivery, self._format, raw=True)
        plain.tag = view.tag
        if not self._can_write(plain):
            logger.warning("headers that %s has no words for were left out", self._format.name)
            plain.headers = {}
        return plain

    def _can_write(self, view: MessageView) -> bool:
        try:
            self._format.encode(view)
        except _CANNOT_WRITE:
            return False
        return True

    def _forget_stale(self, consumer: Consumer) -> None:
        """Tags of messages whose lease ran out and that were never settled: nobody can settle them any more."""
        held = consumer.subscription.held
        for tag, receipt in list(consumer.held.items()):
            if held.get(receipt.sequence) != receipt:
                del consumer.held[tag], self._holders[tag]

    # -- holding back -------------------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Some of what waited to be written has been."""
        if self._is_held_back and not self._outbox.has_many_pushed:
            self._hold_back(is_held_back=False)

    def _hold_back(self, *, is_held_back: bool) -> None:
        self._is_held_back = is_held_back
        # A broker that has stopped pushes nothing, and says so itself.
        with contextlib.suppress(BrokerClosed, BrokerStopped):
            for consumer in self._consumers.values():
                self._tell_prefetch(consumer)

    def _tell_prefetch(self, consumer: Consumer) -> None:
        """Have the broker go by what a consumer was promised, or by the least there is."""
        subscription = consumer.subscription
        prefetch = 1 if self._is_held_back else min(consumer.prefetch, subscription.queue.settings.max_prefetch)
        if prefetch != subscription.prefetch:
            self._broker.set_prefetch(subscription, prefetch)


def _unknown_tag(tag: int) -> InvalidReceipt:
    return InvalidReceipt(f"This connection holds no message under tag {tag}; it may have settled it.")


def _settled(results: list[Any]) -> SettledTags:
    if results.count(None) == len(results):
        return SettledTags(True)
    action = common_action(results)
    if action is not UNSET:
        return SettledTags(True, action)
    has_failed = any(isinstance(result, BrokerError) for result in results)
    return SettledTags(not has_failed, results=[show_outcome(result) for result in results])
