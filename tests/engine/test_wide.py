"""A message that goes to very many queues keeps nobody waiting: one at a time, in all or in none, or some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

import pytest

from smista.core.dead_letter_target import find_way
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings, Work, route
from smista.core.exchanges.matcher import PASSED
from smista.core.message import Envelope, Publication, Receipt
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.engine import Broker, Published
from smista.engine.fair_turns import FairTurns
from smista.errors import QueueDeleted, QueueFull
from smista.exchange_errors import ReachTooWide
from tests.alike import alike
from tests.engine.bench import Bench, Consumer, MemoryPlace, stored, until

WIDTH = 60
COUNT = 8


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queues are many here."""
    monkeypatch.setattr("smista.engine.publishing.FAN_OUT_AT_ONCE", 10)
    monkeypatch.setattr("smista.core.dead_letters.COPIES_AT_ONCE", 50)
    monkeypatch.setattr("smista.engine.staging.COPIES_AT_ONCE", 50)
    monkeypatch.setattr("smista.engine.slices.SLICE_S", 0.0)
    monkeypatch.setattr("smista.engine.deadlines.SLICE_S", 0.0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(MemoryPlace())
    await bench.open()
    for number in range(WIDTH):
        await bench.declare(f"q{number}")
        await bench.broker.declaring.bind(Binding.to_queue("amq.fanout", f"q{number}"))
    yield bench
    await bench.broker.close()


def placed(broker: Broker) -> int:
    return broker._state.next_sequence


def tried(broker: Broker) -> int:
    return broker._state.looked_at


async def most_in_a_turn(broker: Broker, work: asyncio.Future[Any], count: Callable[[Broker], int] = placed) -> int:
    """How many messages entered queues in one turn of the loop, at most, until some work was done."""
    most = 0
    before = count(broker)
    while not work.done():
        await asyncio.sleep(0)
        most, before = max(most, count(broker) - before), count(broker)
    return most


async def test_one_after_the_other_goes_to_very_many_queues(bench: Bench) -> None:
    broker = bench.broker
    work = asyncio.gather(
        *(broker.publishing.publish_to_exchange("amq.fanout", Publication(b"x")) for _ in range(COUNT))
    )
    assert await most_in_a_turn(broker, work) == WIDTH
    assert [len(results) for results in await work] == [WIDTH] * COUNT
    assert {bench.counts(f"q{number}")[0] for number in range(WIDTH)} == {COUNT}


async def test_one_for_few_queues_does_not_wait_for_them(bench: Bench) -> None:
    broker = bench.broker
    await broker.declaring.bind(Binding.to_queue("amq.direct", "q1", "one"))
    wide = [
        asyncio.ensure_future(broker.publishing.publish_to_exchange("amq.fanout", Publication(b"x")))
        for _ in range(COUNT)
    ]
    await broker.publishing.publish_to_exchange("amq.direct", Publication(b"y", Envelope(routing_key="one")))
    assert not wide[-1].done()
    await asyncio.gather(*wide)


@pytest.mark.parametrize(
    ("key", "extra_keys"),
    [
        pytest.param("", [f"a.a.a.{number}" for number in range(60)], id="many keys"),
        pytest.param(".".join(["a"] * 100), [], id="one key of many words"),
    ],
)
async def test_one_after_the_other_looks_long_for_its_way(
    bench: Bench, key: str, extra_keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = bench.broker
    for number in range(1, 5):
        await broker.declaring.bind(Binding.to_queue("amq.topic", "q1", ".".join(["#", "a"] * number + ["#"])))
    at_once = 20
    monkeypatch.setattr("smista.engine.publishing.WORK_AT_ONCE", at_once)
    done = 0
    spend = Work.spend

    def noted(work: Work, count: int) -> None:
        nonlocal done
        # Refused before it is done: what is refused is not.
        spend(work, count)
        done += count

    monkeypatch.setattr(Work, "spend", noted)

    def publish() -> Coroutine[Any, Any, list[Published]]:
        publication = Publication(b"x", Envelope(routing_key=key))
        return broker.publishing.publish_to_exchange("amq.topic", publication, extra_keys=extra_keys)

    await publish()
    alone = done
    assert alone > 20 * at_once
    work = asyncio.gather(*(publish() for _ in range(COUNT)))
    assert await most_in_a_turn(broker, work, lambda _: done) < 2 * alone
    assert done <= (COUNT + 1) * (alone + at_once), "a way was looked for twice"
    assert bench.counts("q1")[0] == COUNT + 1


def reach_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to all queues goes to one too many."""
    monkeypatch.setitem(cast("dict[str, Any]", route.__kwdefaults__), "queues_max", WIDTH - 1)


async def test_a_message_for_too_many_queues_is_stored_in_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reach_less(monkeypatch)
    with pytest.raises(ReachTooWide, match=f"more than {WIDTH - 1} queues"):
        await bench.broker.publishing.publish_to_exchange("amq.fanout", Publication(b"x"))
    assert {bench.counts(f"q{number}")[0] for number in range(WIDTH)} == {0}


# -- dead letters -----------------------------------------------------------------------------------------------------


async def dying(bench: Bench, **settings: object) -> None:
    """A queue whose dead letters go to all the others."""
    await bench.declare(
        "dying",
        QueueSettings(dead_letter=DeadLetterMode.MOVE_OR_DROP, dead_letter_exchange="amq.fanout", **settings),  # type: ignore[arg-type]
    )


async def all_dead(bench: Bench) -> None:
    await until(lambda: {bench.counts(f"q{number}")[0] for number in range(WIDTH)} == {COUNT})


async def test_what_expires_goes_to_very_many_queues_some_at_a_time(bench: Bench) -> None:
    await dying(bench, message_ttl_ms=10_000)
    await bench.broker.publishing.publish("dying", [Publication(b"x")] * COUNT)
    bench.pass_time(ms=20_000)
    assert await most_in_a_turn(bench.broker, asyncio.ensure_future(all_dead(bench))) == WIDTH


async def test_what_is_over_as_it_enters_goes_to_very_many_queues_some_at_a_time(bench: Bench) -> None:
    await dying(bench, message_ttl_ms=0)
    before = placed(bench.broker)
    bench.broker.publishing.submit("dying", [Publication(b"x")] * COUNT).result()
    assert placed(bench.broker) - before <= COUNT + 2 * WIDTH
    assert await most_in_a_turn(bench.broker, asyncio.ensure_future(all_dead(bench))) == WIDTH


async def held(bench: Bench) -> list[Receipt]:
    await bench.broker.publishing.publish("dying", [Publication(b"x")] * COUNT)
    return [delivery.receipt for delivery in await bench.broker.receiving.receive("dying", COUNT)]


async def test_what_is_rejected_goes_to_very_many_queues_some_at_a_time(bench: Bench) -> None:
    await dying(bench)
    receipts = await held(bench)
    work = asyncio.ensure_future(bench.broker.settling.nack(receipts, requeue=False))
    assert await most_in_a_turn(bench.broker, work) == WIDTH
    assert await work == [False] * COUNT
    await all_dead(bench)


@pytest.mark.parametrize("how", ["rejected", "expired"])
async def test_what_very_many_full_queues_do_not_take_is_tried_some_at_a_time(bench: Bench, how: str) -> None:
    for number in range(WIDTH):
        await bench.broker.declaring.alter_queue(f"q{number}", QueueSettings(max_depth=1))
    await bench.broker.publishing.publish_to_exchange("amq.fanout", Publication(b"full"))
    await dying(bench, message_ttl_ms=10_000)
    receipts = await held(bench) if how == "rejected" else []
    if receipts:
        work: asyncio.Future[Any] = asyncio.ensure_future(bench.broker.settling.nack(receipts, requeue=False))
    else:
        await bench.broker.publishing.publish("dying", [Publication(b"x")] * COUNT)
        bench.pass_time(ms=20_000)
        work = asyncio.ensure_future(until(lambda: not any(bench.counts("dying"))))
    assert await most_in_a_turn(bench.broker, work, tried) == WIDTH
    assert not any(bench.counts("dying")), "dropped"


async def test_what_a_consumer_vanished_with_goes_to_very_many_queues_some_at_a_time(bench: Bench) -> None:
    await dying(bench, max_retries=0)
    receipts = await held(bench)
    rest = bench.broker.subscribing.leave_all([], receipts, is_vanished=True)
    assert rest is not None
    assert await most_in_a_turn(bench.broker, rest) == WIDTH
    await all_dead(bench)


async def test_what_is_released_too_late_goes_to_very_many_queues_some_at_a_time(bench: Bench) -> None:
    await dying(bench, message_ttl_ms=10_000, lease_ms=60_000)
    receipts = await held(bench)
    bench.pass_time(ms=20_000)
    work = asyncio.ensure_future(bench.broker.settling.release(receipts))
    assert await most_in_a_turn(bench.broker, work) == WIDTH
    assert await work == [None] * COUNT
    await all_dead(bench)


async def test_rows_of_a_claim_that_ends_go_to_very_many_queues_some_at_a_time(bench: Bench) -> None:
    await dying(bench, max_retries=0)
    await bench.broker.publishing.publish("dying", [Publication(b"x")] * COUNT)
    claim = await bench.broker.claiming.claim(
        "dying", "c", session="s", after=0, max_rows=100, max_bytes=1000, lease_ms=10_000
    )
    assert claim is not None
    bench.pass_time(ms=20_000)
    assert await most_in_a_turn(bench.broker, asyncio.ensure_future(all_dead(bench))) == WIDTH


async def test_a_dead_letter_for_too_many_queues_is_parked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reach_less(monkeypatch)
    await dying(bench)
    await bench.broker.settling.nack(await held(bench), requeue=False)
    assert bench.counts("dying") == (0, 0, 0, COUNT)


async def test_those_for_too_many_queues_are_parked_some_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach_less(monkeypatch)
    monkeypatch.setattr("smista.core.exchanges.router.DESTINATIONS_PER_WORK", 1)
    monkeypatch.setattr("smista.core.dead_letter_target.WORK_PER_COPY", 1)
    await dying(bench)
    work = asyncio.ensure_future(bench.broker.settling.nack(await held(bench), requeue=False))
    assert await most_in_a_turn(bench.broker, work, lambda broker: broker.statistics.stats("dying").dead) == 1


@pytest.mark.parametrize("how", ["rejected", "expired"])
async def test_dead_letters_that_pass_very_many_exchanges_go_some_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("smista.core.dead_letter_target.WORK_PER_COPY", PASSED)
    for number in range(WIDTH):
        await bench.broker.declaring.declare_exchange(f"x{number}", ExchangeSettings(ExchangeKind.FANOUT))
        await bench.broker.declaring.bind(Binding.to_exchange("amq.topic", f"x{number}", "#"))
    await bench.broker.declaring.bind(Binding.to_queue("x0", "q0"))
    await bench.declare("dying", QueueSettings(dead_letter_exchange="amq.topic", message_ttl_ms=10_000))
    if how == "rejected":
        work: asyncio.Future[Any] = asyncio.ensure_future(bench.broker.settling.nack(await held(bench), requeue=False))
    else:
        await bench.broker.publishing.publish("dying", [Publication(b"x")] * COUNT)
        bench.pass_time(ms=20_000)
        work = asyncio.ensure_future(until(lambda: not any(bench.counts("dying"))))
    assert await most_in_a_turn(bench.broker, work, lambda broker: broker.statistics.message_count("q0")) == 1
    assert bench.counts("q0") == (COUNT, 0, 0, 0)


async def test_dead_letters_with_long_headers_go_some_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read to find where each of them goes."""
    monkeypatch.setattr("smista.core.dead_letter_target.READ_PER_COPY", 1)
    await bench.broker.declaring.bind(Binding.to_queue("amq.topic", "q0", "#"))
    await bench.declare("dying", QueueSettings(dead_letter_exchange="amq.topic"))
    await bench.broker.publishing.publish("dying", [Publication(b"x", Envelope(properties=b"p" * WIDTH))] * COUNT)
    receipts = [delivery.receipt for delivery in await bench.broker.receiving.receive("dying", COUNT)]
    work = asyncio.ensure_future(bench.broker.settling.nack(receipts, requeue=False))
    assert await most_in_a_turn(bench.broker, work, lambda broker: broker.statistics.message_count("q0")) == 1
    assert bench.counts("q0") == (COUNT, 0, 0, 0)


# -- what is published to a full queue --------------------------------------------------------------------------------

SETS_ASIDE = [Overflow.DEAD_LETTER_OLDEST, Overflow.DEAD_LETTER_NEWEST]


async def full(bench: Bench, name: str, overflow: Overflow) -> None:
    """A queue that holds all it may; what it sets aside goes to all the others."""
    await bench.declare(name, QueueSettings(max_depth=1, overflow=overflow, dead_letter_exchange="amq.fanout"))
    await bench.publish(b"first", queue=name)


@pytest.mark.parametrize("overflow", SETS_ASIDE)
async def test_a_batch_that_has_very_many_queues_get_dead_letters_enters_some_at_a_time(
    bench: Bench, overflow: Overflow
) -> None:
    await full(bench, "full", overflow)
    batch = [Publication(b"%d" % number) for number in range(COUNT)]
    work = asyncio.ensure_future(bench.broker.publishing.publish("full", batch, batch_id="b"))
    assert await most_in_a_turn(bench.broker, work) <= WIDTH + 2
    await all_dead(bench)
    is_oldest = overflow is Overflow.DEAD_LETTER_OLDEST
    assert [isinstance(one, Published) for one in await work] == [is_oldest] * COUNT
    expected = [b"first", *(one.body for one in batch)]
    assert await bench.bodies(queue="q0") == (expected[:-1] if is_oldest else expected[1:])
    assert await bench.bodies(queue="full") == [expected[-1] if is_oldest else expected[0]]


async def test_a_batch_that_was_cut_is_recognised(bench: Bench) -> None:
    await full(bench, "full", Overflow.DEAD_LETTER_OLDEST)
    batch = [Publication(b"%d" % number) for number in range(COUNT)]
    first = await bench.broker.publishing.publish("full", batch, batch_id="b")
    again = await bench.broker.publishing.publish("full", batch, batch_id="b")
    assert [stored(one).number for one in again] == [stored(one).number for one in first]
    await all_dead(bench)


async def test_a_queue_that_is_deleted_refuses_what_is_left_of_a_batch(bench: Bench) -> None:
    await full(bench, "full", Overflow.DEAD_LETTER_OLDEST)
    work = asyncio.ensure_future(bench.broker.publishing.publish("full", [Publication(b"x")] * COUNT))
    await asyncio.sleep(0)
    await bench.broker.declaring.delete_queue("full")
    results = await work
    assert isinstance(results[0], Published)
    assert isinstance(results[-1], QueueDeleted)


@pytest.mark.parametrize("overflow", SETS_ASIDE)
async def test_a_batch_that_may_not_wait_leaves_what_has_to_leave_to_later_turns(
    bench: Bench, overflow: Overflow
) -> None:
    await full(bench, "full", overflow)
    before = placed(bench.broker)
    refused = bench.broker.publishing.submit_alike("full", alike([b"x"] * COUNT)).result()
    assert len(refused) == (0 if overflow is Overflow.DEAD_LETTER_OLDEST else COUNT)
    assert placed(bench.broker) - before <= COUNT + 3 * WIDTH
    assert await most_in_a_turn(bench.broker, asyncio.ensure_future(all_dead(bench))) == WIDTH
    assert bench.counts("full") == (1, 0, 0, 0)


MANY = 1_000
LARGE = [Publication(b"x" * (MANY // COUNT))] * COUNT
"""Each has very many small messages leave."""


def gone(broker: Broker) -> int:
    return sum(queue.counters.published - queue.depth for queue in broker._state.queues.values())


async def full_of_small_ones(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.core.trimming.TRIMMED_AT_ONCE", 10)
    await bench.declare("full", QueueSettings(max_bytes=MANY, overflow=Overflow.DROP_OLDEST))
    await bench.broker.publishing.publish("full", [Publication(b"x")] * MANY)


async def test_a_batch_that_pushes_out_very_many_messages_enters_some_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await full_of_small_ones(bench, monkeypatch)
    work = asyncio.ensure_future(bench.broker.publishing.publish("full", LARGE))
    assert await most_in_a_turn(bench.broker, work, gone) <= 150
    await until(lambda: bench.counts("full") == (COUNT, 0, 0, 0))


async def test_a_batch_that_may_not_wait_pushes_out_some_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await full_of_small_ones(bench, monkeypatch)
    bench.broker.publishing.submit_alike("full", alike([one.body for one in LARGE])).result()
    assert gone(bench.broker) <= 150
    work = asyncio.ensure_future(until(lambda: bench.counts("full") == (COUNT, 0, 0, 0)))
    assert await most_in_a_turn(bench.broker, work, gone) <= 150


async def test_one_for_several_queues_pushes_out_some_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await full_of_small_ones(bench, monkeypatch)
    others = [f"full{number}" for number in range(COUNT)]
    for name in others:
        await bench.declare(name, QueueSettings(max_bytes=MANY, overflow=Overflow.DROP_OLDEST))
        await bench.broker.publishing.publish(name, [Publication(b"x")] * MANY)
    bench.broker.publishing.submit_to_queues(["full", *others], Publication(b"x" * MANY)).result()
    assert gone(bench.broker) <= 150
    await until(lambda: all(bench.counts(name) == (1, 0, 0, 0) for name in others))


async def test_a_batch_that_enters_one_by_one_makes_no_more_dead_letters_in_a_turn(bench: Bench) -> None:
    """As in a queue of AMQP that has consumers and refuses what does not fit."""
    settings = QueueSettings(
        max_depth=1, limit_ready_only=True, overflow=Overflow.DEAD_LETTER_NEWEST, dead_letter_exchange="amq.fanout"
    )
    await bench.declare("full", settings)
    consumer = Consumer()
    bench.broker.subscribing.subscribe("full", consumer.deliver, prefetch=1)
    await bench.publish(b"held", b"ready", queue="full")
    await until(lambda: bench.counts("full") == (1, 0, 1, 0))
    work: asyncio.Future[Any] = asyncio.ensure_future(
        bench.broker.publishing.publish("full", [Publication(b"x")] * COUNT)
    )
    assert await most_in_a_turn(bench.broker, work) <= 2 * WIDTH + 2
    assert [type(one) for one in await work] == [QueueFull] * COUNT
    assert await most_in_a_turn(bench.broker, asyncio.ensure_future(all_dead(bench))) <= 2 * WIDTH
    assert bench.counts("full") == (1, 0, 1, 0)


async def test_a_batch_whose_dead_letters_nobody_takes_is_refused_some_at_a_time(bench: Bench) -> None:
    for number in range(WIDTH):
        await bench.broker.declaring.alter_queue(f"q{number}", QueueSettings(max_depth=1))
    await bench.broker.publishing.publish_to_exchange("amq.fanout", Publication(b"full"))
    await full(bench, "full", Overflow.DEAD_LETTER_OLDEST)
    work = asyncio.ensure_future(bench.broker.publishing.publish("full", [Publication(b"x")] * COUNT))
    assert await most_in_a_turn(bench.broker, work, tried) == WIDTH
    assert [type(one) for one in await work] == [QueueFull] * COUNT
    assert bench.counts("full") == (1, 0, 0, 0)


@pytest.mark.parametrize("overflow", SETS_ASIDE)
async def test_a_message_for_several_full_queues_whose_dead_letters_go_to_very_many(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, overflow: Overflow
) -> None:
    names = [f"full{number}" for number in range(COUNT)]
    for name in names:
        await full(bench, name, overflow)
    looked_for = 0

    def counted(*given: Any) -> Any:
        nonlocal looked_for
        looked_for += 1
        return find_way(*given)

    monkeypatch.setattr("smista.core.dead_letters.find_way", counted)
    before = placed(bench.broker)
    bench.broker.publishing.submit_to_queues(names, Publication(b"x")).result()
    assert placed(bench.broker) - before <= COUNT + 3 * WIDTH
    assert looked_for <= 4
    # Not by `counts`: each call of the broker that looks at a queue does some of what is left.
    q0 = bench.broker._state.queue("q0")
    work = asyncio.ensure_future(until(lambda: q0.message_count == COUNT))
    assert await most_in_a_turn(bench.broker, work) <= 2 * WIDTH
    await all_dead(bench)
    assert {bench.counts(name) for name in names} == {(1, 0, 0, 0)}


# -- fair turns ------------------------------------------------------------------------------------------------------


async def test_in_each_turn_of_the_loop_one_of_them_goes_on() -> None:
    turns = FairTurns()
    done: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            await turns.turn()
            done.append(name)

    workers = asyncio.gather(work("a"), work("b"), work("c"))
    counts = []
    while not workers.done():
        before = len(done)
        await asyncio.sleep(0)
        counts.append(len(done) - before)
    assert max(counts) == 1
    assert done == ["a", "b", "c"] * 3


async def test_what_is_done_in_turns_comes_in_order_and_so_many_in_a_turn() -> None:
    turns = FairTurns()
    done: list[int] = []

    note = done.append

    async def work() -> None:
        async for number in turns.in_turns(range(10), 3):
            note(number)

    worker = asyncio.ensure_future(work())
    counts = []
    while not worker.done():
        before = len(done)
        await asyncio.sleep(0)
        counts.append(len(done) - before)
    assert max(counts) == 3
    assert done == list(range(10))


async def test_one_that_was_cancelled_is_passed_over() -> None:
    turns = FairTurns()
    first, second = asyncio.ensure_future(turns.turn()), asyncio.ensure_future(turns.turn())
    await asyncio.sleep(0)
    first.cancel()
    await second


async def test_a_long_step_is_followed_by_turns_for_everybody_else() -> None:
    turns = FairTurns()
    turns.rest(5)
    work = asyncio.ensure_future(turns.turn())
    for _ in range(5):
        await asyncio.sleep(0)
        assert not work.done()
    await work
