"""One client at the broker: its virtual host, what it has there, and how it lets go of it.

    exclusive queues      go with the connection
    deliveries            to be acknowledged with the next flush; not written yet, and so not acknowledged by themselves
    what is under way     what the broker does not do in one step: messages for very many queues, very many
                          acknowledgements, all that a channel held, which goes back when the channel or connection goes

Whoever leaves, a channel or the whole connection, is out of the line with all its consumers before anything goes back.
Nobody waits for what is under way but the next method of this client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from smista.errors import BrokerError
from smista.protocols.amqp.shared import Shared
from smista.protocols.amqp.wire.connection import Connection
from smista.service.session import Session
from smista.service.values import Receipt, Subscription, Ticket, Unanswered

COLLECTED_MAX = 1_000
"""More acknowledgements than these are not collected, but handed over before the next frame is looked at."""
T = TypeVar("T")
Later = Coroutine[Any, Any, object]
"""What has to be done before the next frame is looked at."""


class Driver(Protocol):
    """Who reads, writes and waits for a client: see `adapter`."""

    @property
    def is_full(self) -> bool:
        """The other side reads too slowly: nothing is delivered to it for now."""

    @property
    def is_flooded(self) -> bool:
        """More answers wait to be read than we keep: nothing is read from it for now."""

    def flush(self) -> None:
        """Write what there is to say."""

    def flush_soon(self) -> None:
        """In this turn of the loop, with what else there is by then."""

    def delivered(self, out_bytes: int) -> None:
        """Messages of so many bytes, more or less, were put into the output."""

    def is_turn_over(self) -> bool:
        """Whether it is somebody else's turn; what is left of the input waits then."""

    def hold(self, work: Later, *, is_only_waiting: bool = False) -> None:
        """Look at no further frame until this is done. It begins when nothing is under way any more, and comes to its
        end whatever becomes of the connection, unless it `is_only_waiting`."""

    def hold_until_done(self) -> None:
        """Look at no further frame as long as anything is under way."""

    def hold_until_room(self) -> None:
        """The log is behind: take nothing more until it has caught up."""

    def block(self) -> None:
        """The broker takes no publishes: say so, and read nothing more until it does again."""

    def fail_soon(self) -> None:
        """By a fault of ours something was lost: end the connection, but not from here."""

    def abort(self) -> None:
        """End the connection, whatever is still on its way."""

    def broker_failed(self, error: BaseException) -> None:
        """The broker cannot confirm anything any more."""


class Windowed(Protocol):
    """A consumer whose credit is opened bit by bit, as what was delivered to it goes out."""

    def open_window(self) -> None: ...


class Engaged(Protocol):
    """A channel that may hold something at the broker."""

    def leave(self) -> tuple[list[Subscription], list[Receipt]]:
        """It is gone: who consumes there and what is held, to be given back."""


class Client:
    __slots__ = (
        "_acknowledged",
        "_handed_over",
        "_owned",
        "_undelivered",
        "_under_way",
        "address",
        "cancelled",
        "connection",
        "driver",
        "engaged",
        "has_published",
        "has_settled",
        "peer",
        "service",
        "session",
        "shared",
        "transacted_bytes",
        "unanswered",
        "user",
        "windowed",
    )

    connection: Connection
    session: Session
    """With the broker, in one virtual host."""

    def __init__(self, shared: Shared, driver: Driver) -> None:
        self.shared = shared
        self.service = shared.service
        self.driver = driver
        self.user = ""
        self.address = ""
        """Of the client's machine."""
        self.peer = ""
        """The same with its port, for the log."""
        self.has_published = False
        self.has_settled = False
        """Any message that was delivered here, since somebody asked."""
        self.transacted_bytes = 0
        """What its channels keep for the commits of their transactions."""
        self.windowed: set[Windowed] = set()
        self.engaged: dict[Engaged, None] = {}
        """Those of its channels that consume or have a transaction, or did so once."""
        self.cancelled: list[Callable[[], None]] | None = None
        """While an answer is being made: how basic.cancel is sent for consumers whose queue has gone. That follows the
        answer, as in RabbitMQ: a client that deletes the queue it consumes from waits for that first."""
        self._owned: set[int] = set()
        """Exclusive queues that it declared, by number."""
        self._under_way: set[asyncio.Future[None]] = set()
        """What is to be waited for until all of that is done."""
        self.unanswered = Unanswered(driver.broker_failed)
        """What its confirms and commits wait for: all that it has published and settled."""
        self._acknowledged: list[Receipt] = []
        self._handed_over: list[Receipt] = []
        self._undelivered: list[Receipt] = []

    @property
    def kept_bytes(self) -> int:
        """What has come in and is not the broker's yet."""
        return self.transacted_bytes + self.connection.arriving.kept_bytes

    # -- settling -----------------------------------------------------------------------------------------------------

    def acknowledge(self, receipts: Iterable[Receipt]) -> None:
        """With what else is acknowledged in this read."""
        self.has_settled = True
        self._acknowledged += receipts
        if len(self._acknowledged) > COLLECTED_MAX:
            self.flush_acknowledged()

    def acknowledge_once_written(self, receipts: list[Receipt]) -> None:
        """What was delivered to somebody who will not acknowledge it."""
        self._handed_over += receipts

    def not_delivered(self, receipts: list[Receipt]) -> None:
        """By a fault of ours: they go back with the connection, which has to end."""
        self._undelivered += receipts
        self.driver.fail_soon()

    def flush_acknowledged(self) -> None:
        if self._acknowledged:
            receipts, self._acknowledged = self._acknowledged, []
            ticket = self.session.acknowledge(receipts)
            self.unanswered.add(ticket)
            if not ticket.is_known:
                self.do_first(ticket, lambda ticket: ticket.result())

    def written(self) -> None:
        """What was delivered is on its way."""
        handed_over, self._handed_over = self._handed_over, []
        if handed_over and not self.service.is_over:
            self.session.acknowledge(handed_over)

    def open_windows(self) -> None:
        if not self.service.is_over:
            for consumer in self.windowed:
                consumer.open_window()

    # -- what is under way ---------------------------------------------------------------------------------------------

    def do_first(self, ticket: Ticket[T], then: Callable[[Ticket[T]], object]) -> None:
        """Call `then` when it is known what came of this: now, or before any further frame is looked at."""
        if ticket.is_known:
            then(ticket)
            return
        done = asyncio.get_running_loop().create_future()

        def known(ticket: Ticket[T]) -> None:
            done.set_result(None)
            try:
                then(ticket)
            except BrokerError as error:
                self.driver.broker_failed(error)

        self._add_under_way(done)
        ticket.when_known(known)
        self.driver.hold_until_done()

    def _add_under_way(self, future: asyncio.Future[None]) -> None:
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    @property
    def has_under_way(self) -> bool:
        return bool(self._under_way)

    async def until_done(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)

    # -- exclusive queues ---------------------------------------------------------------------------------------------

    def own(self, number: int) -> None:
        """An exclusive queue was declared here: it goes with this connection."""
        self._owned.add(number)
        self.shared.queues.owners[number] = self

    def disown(self, number: int) -> None:
        self._owned.discard(number)
        self.shared.queues.owners.pop(number, None)

    def is_exclusive(self, number: int) -> bool:
        """Whether a queue is one connection's alone."""
        return number in self.shared.queues.owners

    def may_use(self, number: int) -> bool:
        """Whether a queue is not another connection's alone."""
        return self.shared.queues.owners.get(number, self) is self

    # -- letting go ---------------------------------------------------------------------------------------------------

    def leave(self, subscriptions: Sequence[Subscription], receipts: Sequence[Receipt]) -> None:
        """Consumers and deliveries of channels that are gone go back to where they were: at once, or soon."""
        if not (subscriptions or receipts) or self.service.is_over:
            return
        rest = self.session.leave(subscriptions, receipts, is_vanished=True)
        self.shared.queues.consumers_left(subscriptions)
        if rest is not None:
            self._add_under_way(rest)

    def leave_all(self) -> None:
        """As `leave`, with all of its channels."""
        subscriptions: list[Subscription] = []
        receipts: list[Receipt] = []
        engaged, self.engaged = self.engaged, {}
        for channel in engaged:
            consuming, held = channel.leave()
            subscriptions += consuming
            receipts += held
        self.leave(subscriptions, receipts)

    def end(self) -> None:
        """Its channels are gone; so are the queues that are this connection's alone, and what was never written."""
        owned, self._owned = self._owned, set()
        unwritten = self._handed_over + self._undelivered
        self._handed_over, self._undelivered = [], []
        if not self.service.is_over:
            if unwritten:
                self.session.give_back(unwritten)
            self.shared.queues.delete_all([(number, False) for number in sorted(owned)])
