"""What is submitted is answered by a ticket: once, later, when it is durable, wherever the queue is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Publication
from smista.core.settings import QueueSettings
from smista.engine import Broker, tickets
from smista.engine.interface import Engine
from smista.engine.publishing import FAN_OUT_AT_ONCE
from smista.engine.settling import ACKNOWLEDGED_AT_ONCE
from smista.engine.tickets import PendingTicket, Ticket
from smista.errors import (
    BrokerClosed,
    BrokerError,
    InvalidArgument,
    LowMemory,
    OutcomeUnknown,
    QueueFull,
    QueueNotFound,
    StaleReceipt,
)
from tests.alike import alike
from tests.engine.bench import Bench, MemoryPlace, turns, until
from tests.engine.far_engine import far, losing_answers, losing_requests, near

T = TypeVar("T")
Kept = tuple[Bench, MemoryPlace]
Where = Callable[[Broker], Engine]

somewhere = pytest.mark.parametrize("where", [near, far])


class Answers:
    """The tickets that called back, in order."""

    def __init__(self) -> None:
        self.tickets: list[Ticket[object]] = []

    def __call__(self, ticket: Ticket[object]) -> None:
        self.tickets.append(ticket)

    async def one(self) -> Ticket[object]:
        await until(lambda: bool(self.tickets))
        await turns(20)
        [ticket] = self.tickets
        return ticket


def messages(*bodies: bytes) -> list[Publication]:
    return [Publication(body) for body in bodies]


async def received(engine: Engine, limit: int = 1000, queue: str = "orders") -> list[bytes]:
    return [delivery.body for delivery in await engine.receiving.receive(queue, limit)]


# -- when it is answered ----------------------------------------------------------------------------------------------


@somewhere
async def test_a_ticket_is_answered_when_what_was_submitted_is_durable(kept: Kept, where: Where) -> None:
    bench, place = kept
    await bench.declare()
    engine, answers = where(bench.broker), Answers()
    place.log.gate.clear()
    engine.publishing.submit("orders", messages(b"x")).when_done(answers)
    await place.log.held_up()
    await turns(20)
    assert answers.tickets == []
    place.log.gate.set()
    ticket = await answers.one()
    assert ticket.error is None


@somewhere
async def test_it_calls_back_once_and_never_before_it_was_asked_to(orders: Bench, where: Where) -> None:
    engine = where(orders.broker)
    for ticket in (
        engine.publishing.submit("orders", messages(b"x")),
        engine.publishing.submit("nowhere", messages(b"x")),
        engine.settling.acknowledge([]),
    ):
        answers = Answers()
        ticket.when_done(answers)
        assert answers.tickets == []
        assert await answers.one() is ticket


def pending(settle: Callable[[PendingTicket[None]], object]) -> Ticket[None]:
    ticket: PendingTicket[None] = PendingTicket()
    settle(ticket)
    return ticket


KINDS: dict[str, Callable[[Engine], Ticket[Any]]] = {
    "done": lambda engine: engine.publishing.submit("orders", messages(b"x")),
    "done and durable": lambda engine: engine.settling.acknowledge([]),
    "refused": lambda engine: engine.publishing.submit("nowhere", messages(b"x")),
    "pending": lambda engine: pending(lambda ticket: asyncio.get_running_loop().call_soon(ticket.answer, None)),
    "answered": lambda engine: pending(lambda ticket: ticket.answer(None)),
    "failed": lambda engine: pending(lambda ticket: ticket.fail(OutcomeUnknown("lost"))),
}


@somewhere
@pytest.mark.parametrize("later", range(6))
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
async def test_whoever_waits_goes_on_behind_those_called_back(
    orders: Bench, where: Where, make: Callable[[Engine], Ticket[Any]], later: int
) -> None:
    ticket, answers = make(where(orders.broker)), Answers()
    ticket.when_done(answers)
    await turns(later)
    with contextlib.suppress(BrokerError):
        await ticket
    assert answers.tickets == [ticket]


async def test_those_are_all_the_kinds_there_are(orders: Bench) -> None:
    own = {kind for kind in vars(tickets).values() if getattr(kind, "__module__", "") == tickets.__name__}
    kinds = {kind for kind in own if hasattr(kind, "__await__")} - {Ticket}
    assert {type(make(orders.broker)) for make in KINDS.values()} == kinds


@somewhere
async def test_it_calls_back_also_whoever_asks_late(orders: Bench, where: Where) -> None:
    engine, answers = where(orders.broker), Answers()
    ticket = engine.publishing.submit("orders", messages(b"x"))
    await turns(20)
    await orders.broker.durable()
    ticket.when_done(answers)
    assert (await answers.one()).error is None


async def test_what_nobody_asks_about_is_not_written_for_its_own_sake(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    await bench.publish(b"x", b"y")
    first, second = await bench.broker.receiving.receive("orders", 2)
    await bench.broker.durable()
    begun = place.log.begun_count
    bench.broker.settling.acknowledge([first.receipt])
    await turns()
    assert place.log.begun_count == begun, "it goes with the next block that somebody waits for"
    await bench.broker.settling.acknowledge([second.receipt])
    assert place.log.begun_count == begun + 1


@somewhere
async def test_whoever_waits_may_be_cancelled_and_it_is_done_all_the_same(orders: Bench, where: Where) -> None:
    engine = where(orders.broker)

    async def wait() -> None:
        await engine.publishing.submit("orders", messages(b"x"))

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await turns(20)
    assert await received(engine) == [b"x"]


# -- what it says -----------------------------------------------------------------------------------------------------


@somewhere
async def test_each_publication_has_its_result(orders: Bench, where: Where) -> None:
    await orders.declare("small", QueueSettings(max_depth=2))
    results = await where(orders.broker).publishing.submit("small", messages(b"a", b"b", b"c"))
    assert [type(result).__name__ for result in results] == ["Published", "Published", "QueueFull"]


@somewhere
async def test_of_bodies_that_are_alike_those_that_were_refused_are_named(orders: Bench, where: Where) -> None:
    await orders.declare("small", QueueSettings(max_depth=1))
    refused = await where(orders.broker).publishing.submit_alike("small", alike([b"a", b"b"]))
    [(place, error)] = refused
    assert place == 1
    assert isinstance(error, QueueFull)


@somewhere
async def test_each_receipt_has_its_outcome(orders: Bench, where: Where) -> None:
    engine = where(orders.broker)
    await orders.publish(b"x", b"y")
    first, second = await engine.receiving.receive("orders", 2)
    assert await engine.settling.acknowledge([first.receipt]) == [None]
    stale, done = await engine.settling.acknowledge([first.receipt, second.receipt])
    assert isinstance(stale, StaleReceipt)
    assert done is None


@somewhere
async def test_one_error_goes_for_all_of_what_could_not_be_done(orders: Bench, where: Where) -> None:
    engine = where(orders.broker)
    with pytest.raises(QueueNotFound):
        await engine.publishing.submit("nowhere", messages(b"x", b"y"))
    with pytest.raises(QueueNotFound):
        await engine.publishing.submit_alike("nowhere", alike([b"x"]))
    with pytest.raises(BrokerError, match="lease_ms"):
        await engine.settling.extend([], -1)
    orders.broker._keeper.pressure.refusal = LowMemory("low")
    with pytest.raises(LowMemory):
        await engine.publishing.submit("orders", messages(b"x"))


@somewhere
async def test_a_log_that_fails_leaves_the_outcome_unknown(kept: Kept, where: Where) -> None:
    bench, place = kept
    await bench.declare()
    engine, answers = where(bench.broker), Answers()
    place.log.is_failing = True
    engine.publishing.submit("orders", messages(b"x")).when_done(answers)
    ticket = await answers.one()
    assert isinstance(ticket.error, OutcomeUnknown)
    with pytest.raises(OutcomeUnknown):
        ticket.result()


@somewhere
async def test_a_broker_that_is_closed_refuses(where: Where) -> None:
    bench = Bench(MemoryPlace())
    engine = where(await bench.open())
    await bench.declare()
    await bench.broker.close()
    with pytest.raises(BrokerClosed):
        await engine.publishing.submit("orders", messages(b"x"))
    with pytest.raises(BrokerClosed):
        await engine.settling.acknowledge([])


# -- several queues ---------------------------------------------------------------------------------------------------


@somewhere
@pytest.mark.parametrize("count", [3, FAN_OUT_AT_ONCE + 1])
async def test_several_queues_take_it_each_for_itself(orders: Bench, where: Where, count: int) -> None:
    names = [f"q{number}" for number in range(count)]
    for name in names:
        orders.broker.declaring.submit_queue(name, QueueSettings(max_depth=1 if name == "q1" else None)).result()
    await orders.publish(b"before", queue="q1")
    names[2] = "gone"
    results = await where(orders.broker).publishing.submit_to_queues(names, Publication(b"x"))
    errors = {place: type(result) for place, result in enumerate(results) if isinstance(result, BrokerError)}
    assert errors == {1: QueueFull, 2: QueueNotFound}
    assert len(results) == count
    assert await received(where(orders.broker), queue=names[-1] if count > 3 else "q0") == [b"x"]


@somewhere
@pytest.mark.parametrize("count", [2, FAN_OUT_AT_ONCE + 1])
async def test_a_queue_that_is_named_twice_takes_nothing(orders: Bench, where: Where, count: int) -> None:
    engine = where(orders.broker)
    with pytest.raises(InvalidArgument, match="named twice"):
        await engine.publishing.submit_to_queues(["orders", *map(str, range(count)), "orders"], Publication(b"x"))
    assert orders.counts() == (0, 0, 0, 0)


@somewhere
@pytest.mark.parametrize("count", [2, FAN_OUT_AT_ONCE + 1])
async def test_an_exchange_takes_it_for_all_its_queues(orders: Bench, where: Where, count: int) -> None:
    broker = orders.broker
    await broker.declaring.declare_exchange("all", ExchangeSettings(ExchangeKind.FANOUT))
    names = [f"q{number}" for number in range(count)]
    for name in names:
        broker.declaring.submit_queue(name).result()
    await asyncio.gather(*(broker.declaring.bind(Binding.to_queue("all", name)) for name in names))
    publication = Publication(b"x", Envelope(exchange="all"))
    placed = await where(broker).publishing.publish_to_exchange("all", publication)
    assert [one.queue for one in placed] == names


# -- very many --------------------------------------------------------------------------------------------------------


@somewhere
async def test_very_many_are_settled_in_slices_and_answered_once(orders: Bench, where: Where) -> None:
    count = 2 * ACKNOWLEDGED_AT_ONCE + 1
    await orders.declare("wide", QueueSettings(max_prefetch=65_535))
    await orders.publish(*[b"x"] * count, queue="wide")
    deliveries = await orders.broker.receiving.receive("wide", count)
    engine, answers = where(orders.broker), Answers()
    engine.settling.acknowledge([delivery.receipt for delivery in deliveries]).when_done(answers)
    await asyncio.sleep(0)
    assert orders.counts("wide")[2] > 0, "not all of them in one step"
    assert (await answers.one()).result() == [None] * count
    assert orders.counts("wide") == (0, 0, 0, 0)


async def test_what_takes_more_than_one_step_is_known_before_it_is_durable(kept: Kept) -> None:
    bench, place = kept
    names = [f"q{number}" for number in range(FAN_OUT_AT_ONCE + 1)]
    for name in names:
        bench.broker.declaring.submit_queue(name).result()
    await bench.broker.durable()
    place.log.gate.clear()
    answers = Answers()
    ticket = bench.broker.publishing.submit_to_queues(names, Publication(b"x"))
    ticket.when_done(answers)
    known = Answers()
    ticket.when_known(known)
    assert not ticket.is_known
    assert await known.one() is ticket
    await place.log.held_up()
    assert ticket.is_known
    assert answers.tickets == []
    place.log.gate.set()
    assert (await answers.one()).error is None


# -- a program that relies on nothing else ----------------------------------------------------------------------------


async def publish_all(engine: Engine, bodies: Sequence[bytes]) -> None:
    """Whatever becomes of the answers: a batch is submitted until one comes, under the same id."""
    for start in range(0, len(bodies), 10):
        while True:
            try:
                await engine.publishing.submit("orders", messages(*bodies[start : start + 10]), batch_id=f"b{start}")
                break
            except OutcomeUnknown:
                continue


async def work_off(engine: Engine, count: int) -> list[bytes]:
    """Receive and acknowledge, some together, until nothing is left."""
    seen: list[bytes] = []
    while len(seen) < count:
        deliveries = await engine.receiving.receive("orders", 7)
        while True:
            try:
                await engine.settling.acknowledge([delivery.receipt for delivery in deliveries])
                break
            except OutcomeUnknown:
                continue
        seen += [delivery.body for delivery in deliveries]
    return seen


@pytest.mark.parametrize("where", [near, far, losing_requests, losing_answers])
async def test_nothing_is_lost_or_doubled_wherever_the_queue_is(orders: Bench, where: Where) -> None:
    bodies = [b"%d" % number for number in range(200)]
    engine = where(orders.broker)
    await publish_all(engine, bodies)
    assert await work_off(engine, len(bodies)) == bodies
    assert orders.counts() == (0, 0, 0, 0)
