"""What the consumers of one stream hold by tag, and the commands that settle it.

    ack, nack, release ─▶ the tag is void ─▶ a ticket of the session's ─▶ what came of each tag

A tag is a delivery's number on the connection. The receipt that it stands for is with its holder; an `up_to` is about
one holder, a `tags` may be about several.

Very many are settled in slices, which come to their end also when the connection goes. The stream starts nothing more
of its peer's meanwhile (`settled`).
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

from msgspec import UNSET

from smista.errors import BrokerError, InvalidReceipt, InvalidRequest
from smista.protocols.http.commands.receiving import common_action, show_outcome
from smista.protocols.http.stream_frames import (
    AcknowledgeTags,
    ExtendTags,
    NackTags,
    ReleaseTags,
    SettledTags,
    Tags,
)
from smista.service.session import Session
from smista.service.values import Delivery, Receipt, Subscription, Ticket

STALE_TAGS_MAX = 1_000


class Consumer:
    """A subscription, and what it holds by tag, in the order of delivery."""

    __slots__ = ("held", "number", "order", "queue", "raw", "stale_above", "subscription")

    def __init__(self, number: int, queue: str, *, raw: bool) -> None:
        self.number = number
        self.queue = queue
        self.raw = raw
        self.held: dict[int, Receipt] = {}
        self.order: deque[int] = deque()
        """Its tags, and some that are void. Not `held` itself: a dict walks over all that was taken from its front,
        each time anew."""
        self.stale_above = 0
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

    @property
    def has_stale(self) -> bool:
        """Whether it holds more than it may: the leases of some have run out."""
        return len(self.held) > max(self.stale_above, self.subscription.prefetch + STALE_TAGS_MAX)


class Settling:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._holders: dict[int, Consumer] = {}
        """By tag, who holds it; also of consumers that have unsubscribed."""
        self._under_way: dict[Ticket[Any], None] = {}
        """What is being settled in slices."""
        self._next_tag = 1

    # -- what is held -------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer, deliveries: list[Delivery]) -> int:
        """A consumer holds these from now on, under the tags from the one that this returns."""
        first = self._next_tag
        tags = range(first, first + len(deliveries))
        consumer.held.update(zip(tags, [delivery.receipt for delivery in deliveries], strict=True))
        self._holders.update(dict.fromkeys(tags, consumer))
        consumer.order += tags
        consumer.forget_void()
        self._next_tag = tags.stop
        return first

    def forget(self, consumer: Consumer) -> None:
        """What it holds is gone, with its queue."""
        for tag in consumer.held:
            self._holders.pop(tag, None)
        consumer.held.clear()

    def take_all(self) -> list[Receipt]:
        """All that anybody holds, which nobody does any more; without what is being settled."""
        holders = dict.fromkeys(self._holders.values())
        self._holders.clear()
        return [receipt for holder in holders for receipt in holder.held.values()]

    def forget_stale(self, consumer: Consumer) -> None:
        """Messages whose lease ran out, and that somebody else has by now: nobody can settle them here any more."""
        tags, receipts = list(consumer.held), list(consumer.held.values())
        # Not looked for again before it may be worth it.
        consumer.stale_above = 2 * len(tags)

        def answered(ticket: Ticket[list[bool]]) -> None:
            if ticket.error is None:
                for tag, can_be_settled in zip(tags, ticket.result(), strict=True):
                    if not can_be_settled and consumer.held.pop(tag, None) is not None:
                        del self._holders[tag]
                consumer.stale_above = 2 * len(consumer.held)

        self._session.can_be_settled(receipts).when_done(answered)

    # -- settling -----------------------------------------------------------------------------------------------------

    async def settle(self, command: Tags) -> SettledTags:
        if (command.tags is None) == (command.up_to is None):
            raise InvalidRequest("Give either `tags` or `up_to`.")
        if command.tags is None:
            assert command.up_to is not None
            return _settled(await self._submit(command, self._up_to(command.up_to)))
        return _settled(await self._outcomes_of_any(command, command.tags))

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
        outcomes = await self._submit(command, known)
        if len(known) == len(tags):
            return outcomes
        by_tag = dict(zip(known, outcomes, strict=True))
        return [by_tag[tag] if tag in by_tag else _unknown_tag(tag) for tag in tags]

    def _submit(self, command: Tags, tags: list[int]) -> Ticket[list[Any]]:
        """For what comes of each tag, all of them held here. All but `extend` void them, whatever comes of it."""
        ticket = self._ticket(command, tags)
        if not ticket.is_known:
            self._under_way[ticket] = None
            ticket.when_done(self._under_way.pop)
        return ticket

    def _ticket(self, command: Tags, tags: list[int]) -> Ticket[list[Any]]:
        session, holders = self._session, self._holders
        if isinstance(command, ExtendTags):
            return session.extend([holders[tag].held[tag] for tag in tags], command.lease_ms)
        receipts = [holders.pop(tag).held.pop(tag) for tag in tags]
        match command:
            case AcknowledgeTags():
                return session.acknowledge(receipts)
            case NackTags(requeue=requeue, delay_ms=delay_ms, error=error):
                return session.nack(receipts, requeue=requeue, delay_ms=delay_ms, error=error)
            case ReleaseTags():
                return session.release(receipts)
            case _:
                raise AssertionError(command)

    async def settled(self) -> None:
        """Wait for what is being settled in slices."""
        while self._under_way:
            # Whoever asked for it gets the error.
            with contextlib.suppress(Exception):
                await next(iter(self._under_way))


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
