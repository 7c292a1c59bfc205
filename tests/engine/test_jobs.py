"""Jobs: redrives that go on by themselves, at their pace, over restarts, exactly once."""

from __future__ import annotations

import asyncio

import pytest

from smista.core import jobs
from smista.core.browsing import Wanted
from smista.core.jobs import ENDED_KEPT, Job, JobState
from smista.core.message import Envelope, Reason, State
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.engine import Broker, BrokerSettings
from smista.engine import jobs as engine_jobs
from smista.engine.claim_records import job_record
from smista.engine.jobs import Jobs, JobView
from smista.engine.recovery import Recovery
from smista.errors import (
    BrokerClosed,
    InvalidArgument,
    QueueDeleted,
    QueueFull,
    QueueNotFound,
    RedriveEnded,
    RedriveNotFound,
    RedriveRunning,
)
from smista.log import MemoryLog
from tests.engine.bench import Bench, MemoryPlace, turns, until

SLOW = 0.01
STEP_MS = 100_000
"""So slow that nothing goes before a test lets time pass."""
TINY = BrokerSettings(
    disk_free_bytes_min=0,
    watch_interval_s=0.01,
    block_bytes_max=1024,
    log_retention_ms=0,
    log_retention_bytes=0,
    log_slack_bytes=4096,
)
DEAD = [("orders_dlq", Wanted())]


async def set_aside(bench: Bench, count: int, *, queue: str = "orders", error: str = "") -> None:
    await bench.publish(*[b"%d" % number for number in range(count)], queue=queue)
    await bench.reject(*await bench.broker.receiving.receive(queue, count), error=error)


def the_job(bench: Bench, queue: str = "orders_dlq") -> JobView:
    [job] = bench.broker.jobs.of_queue(queue)
    return job


async def moved(bench: Bench, count: int, queue: str = "orders_dlq") -> None:
    """Until the job that was started last has moved so many, and no more."""
    jobs = bench.broker.jobs
    await until(lambda: any(job.moved >= count for job in jobs.of_queue(queue)[:1]))
    await turns(20)
    assert jobs.of_queue(queue)[0].moved == count


async def ended(bench: Bench, queue: str = "orders_dlq") -> JobView:
    await until(lambda: the_job(bench, queue).state is not JobState.RUNNING)
    return the_job(bench, queue)


# -- what it moves ----------------------------------------------------------------------------------------------------


async def test_it_sends_all_dead_letters_back_and_says_so(orders: Bench) -> None:
    await set_aside(orders, 1000)
    started = await orders.broker.jobs.start(DEAD)
    assert (started.expected, started.to, started.limit, started.per_second) == (1000, None, None, None)
    done = await ended(orders)
    assert (done.id, done.state, done.moved, done.strays) == (started.id, JobState.COMPLETED, 1000, 0)
    assert done.ended_at_ms is not None
    assert done.ended_at_ms >= done.started_at_ms == started.started_at_ms
    assert (orders.counts()[0], orders.counts("orders_dlq")[0]) == (1000, 0)


async def test_whoever_waits_gets_its_end(orders: Bench) -> None:
    await set_aside(orders, 3)
    assert (await orders.broker.jobs.run(DEAD)).moved == 3


async def test_it_is_narrowed_by_filter_limit_and_messages(orders: Bench) -> None:
    await set_aside(orders, 3, error="timeout")
    await set_aside(orders, 2, error="parse")
    run = orders.broker.jobs.run
    assert (await run([("orders_dlq", Wanted(error_contains="parse"))], limit=1)).moved == 1
    page = await orders.broker.browsing.browse("orders_dlq")
    ids = frozenset((message.number, message.created_at_ms) for message in page.messages[1:3])
    assert (await run([("orders_dlq", Wanted(messages=ids))])).moved == 2
    assert orders.counts("orders_dlq")[0] == 2


async def test_headers_are_read_as_those_that_dead_letters_are_routed_by(orders: Bench) -> None:
    orders.broker.read_routing_with(lambda properties: ({"kind": properties.decode()}, ()))
    for kind in (b"a", b"b", b"a"):
        await orders.publish(b"x", envelope=Envelope(kind))
    await orders.reject(*await orders.broker.receiving.receive("orders", 3))
    assert (await orders.broker.jobs.run([("orders_dlq", Wanted(headers={"kind": "a"}))])).moved == 2


async def test_it_searches_several_queues_one_after_the_other(orders: Bench) -> None:
    await set_aside(orders, 2)
    await orders.broker.declaring.alter_queue("orders", QueueSettings(dead_letter=DeadLetterMode.PARK))
    await orders.publish(b"parked")
    await orders.reject(await orders.receive_one())
    places = [("orders", Wanted(state=State.DEAD)), ("gone", Wanted()), ("orders_dlq", Wanted(source="orders"))]
    started = await orders.broker.jobs.start(places)
    assert started.expected == 3
    assert (await ended(orders, "orders")).moved == 3
    assert await orders.bodies() == [b"parked", b"0", b"1"]


async def test_what_never_died_is_left_alone_and_counted(orders: Bench) -> None:
    await set_aside(orders, 2)
    await orders.publish(b"stray", queue="orders_dlq")
    done = await orders.broker.jobs.run(DEAD)
    assert (done.expected, done.moved, done.strays) == (3, 2, 1)
    await orders.declare("elsewhere")
    assert (await orders.broker.jobs.run(DEAD, to="elsewhere")).moved == 1


async def test_it_leaves_alone_what_is_held_and_what_died_since_it_began(orders: Bench) -> None:
    await set_aside(orders, 3)
    held = await orders.receive_one("orders_dlq", lease_ms=10 * STEP_MS)
    running = asyncio.create_task(orders.broker.jobs.run(DEAD, per_second=SLOW))
    await moved(orders, 1)
    await orders.publish(b"new")
    late = [delivery for delivery in await orders.broker.receiving.receive("orders", 10) if delivery.body == b"new"]
    await orders.reject(*late)
    orders.pass_time(STEP_MS)
    await moved(orders, 2)
    orders.pass_time(STEP_MS)
    assert (await running).moved == 2
    await orders.acknowledge(held)
    assert [message.body for message in (await orders.broker.browsing.browse("orders_dlq")).messages] == [b"new"]


# -- its pace ---------------------------------------------------------------------------------------------------------


async def test_it_keeps_to_its_pace(orders: Bench) -> None:
    await set_aside(orders, 5)
    await orders.broker.jobs.start(DEAD, per_second=SLOW)
    for count in range(1, 6):
        await moved(orders, count)
        assert the_job(orders).state is JobState.RUNNING
        orders.pass_time(STEP_MS)
    assert (await ended(orders)).moved == 5


async def test_what_was_missed_is_not_made_up_for(orders: Bench) -> None:
    await set_aside(orders, 5)
    await orders.broker.jobs.start(DEAD, per_second=SLOW)
    await moved(orders, 1)
    orders.pass_time(60 * STEP_MS)
    await moved(orders, 2)


@pytest.mark.parametrize("per_second", [0, -1])
async def test_a_pace_that_is_none_is_refused(orders: Bench, per_second: float) -> None:
    await set_aside(orders, 1)
    with pytest.raises(InvalidArgument):
        await orders.broker.jobs.start(DEAD, per_second=per_second)
    assert orders.broker.jobs.of_queue("orders_dlq") == []


async def test_others_have_their_turns_meanwhile(orders: Bench) -> None:
    for _ in range(3):
        await set_aside(orders, 1000)
    running = asyncio.create_task(orders.broker.jobs.run(DEAD))
    count = 0
    while not running.done():
        await asyncio.sleep(0)
        count += 1
    assert (await running).moved == 3000
    assert count >= 5


# -- how it ends ------------------------------------------------------------------------------------------------------


async def test_a_full_target_ends_it(orders: Bench) -> None:
    await set_aside(orders, 3)
    await orders.broker.declaring.alter_queue("orders", QueueSettings(max_depth=1))
    with pytest.raises(QueueFull, match="1 messages had been moved"):
        await orders.broker.jobs.run(DEAD)
    job = the_job(orders)
    assert (job.state, job.moved, job.code) == (JobState.FAILED, 1, "queue_full")
    assert (orders.counts()[0], orders.counts("orders_dlq")[0]) == (1, 2)
    await orders.restart()
    assert the_job(orders) == job


async def test_a_source_that_is_gone_ends_it(orders: Bench) -> None:
    await set_aside(orders, 2)
    await orders.broker.declaring.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        await orders.broker.jobs.run(DEAD)
    assert the_job(orders).state is JobState.FAILED


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_target_that_is_deleted_ends_it_though_another_one_has_its_name(
    orders: Bench, is_restarted: bool
) -> None:
    await set_aside(orders, 3)
    await orders.declare("elsewhere")
    await orders.broker.jobs.start(DEAD, to="elsewhere", per_second=SLOW)
    await moved(orders, 1)
    await orders.broker.declaring.delete_queue("elsewhere")
    await orders.declare("elsewhere")
    if is_restarted:
        await orders.restart()
    orders.pass_time(STEP_MS)
    job = await ended(orders)
    assert (job.state, job.moved, job.code) == (JobState.FAILED, 1, "queue_deleted")
    assert orders.counts("elsewhere")[0] == 0


async def test_a_target_that_does_not_outlive_a_restart_ends_it(orders: Bench) -> None:
    await set_aside(orders, 3)
    await orders.declare("fleeting", QueueSettings(durable=False))
    await orders.broker.jobs.start(DEAD, to="fleeting", per_second=SLOW)
    await moved(orders, 1)
    await orders.restart()
    await orders.declare("another", QueueSettings(durable=False))
    job = the_job(orders)
    assert (job.state, job.moved, job.code) == (JobState.FAILED, 1, "queue_deleted")
    assert orders.counts("another")[0] == 0


async def test_its_jobs_go_with_a_queue(orders: Bench) -> None:
    await set_aside(orders, 3)
    running = asyncio.create_task(orders.broker.jobs.run(DEAD, per_second=SLOW))
    await moved(orders, 1)
    await orders.broker.declaring.delete_queue("orders_dlq")
    with pytest.raises(QueueDeleted, match="after 1 messages"):
        await running
    await orders.declare("orders_dlq")
    for _ in range(2):
        assert orders.broker.jobs.of_queue("orders_dlq") == []
        await orders.restart()
    assert orders.broker._state.jobs == {}


async def test_who_starts_one_is_told_of_it_though_its_queue_goes_before_that_is_on_disk(orders: Bench) -> None:
    await set_aside(orders, 5)
    broker = orders.broker
    started, _ = await asyncio.gather(
        broker.jobs.start(DEAD, per_second=SLOW), broker.declaring.delete_queue("orders_dlq")
    )
    assert (started.queue, started.state, started.code) == ("orders_dlq", JobState.FAILED, "queue_deleted")


async def test_who_cancels_one_is_told_of_it_though_its_queue_goes_before_that_is_on_disk(orders: Bench) -> None:
    await set_aside(orders, 5)
    broker = orders.broker
    started = await broker.jobs.start(DEAD, per_second=SLOW)
    cancelled, _ = await asyncio.gather(
        broker.jobs.cancel("orders_dlq", started.id), broker.declaring.delete_queue("orders_dlq")
    )
    assert (cancelled.queue, cancelled.state) == ("orders_dlq", JobState.CANCELLED)


async def test_who_waits_for_one_is_told_of_its_end_though_its_queue_goes_before_that_is_on_disk(
    orders: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_aside(orders, 5)
    broker, keeper = orders.broker, orders.broker._keeper
    durable = keeper.durable

    async def deleted_first() -> None:
        monkeypatch.setattr(keeper, "durable", durable)
        await broker.declaring.delete_queue("orders_dlq")

    running = asyncio.create_task(broker.jobs.run(DEAD))
    await asyncio.sleep(0)
    monkeypatch.setattr(keeper, "durable", deleted_first)
    ended = await running
    assert (ended.queue, ended.state, ended.moved) == ("orders_dlq", JobState.COMPLETED, 5)


async def test_a_queue_that_it_has_begun_to_search_ends_it_and_one_that_it_has_not_does_not(orders: Bench) -> None:
    await orders.declare("owner")
    for name in ("a", "b"):
        await orders.declare(name, QueueSettings(dead_letter_queue=f"{name}_letters"))
        await set_aside(orders, 2, queue=name)
    places = [("owner", Wanted()), ("a_letters", Wanted()), ("b_letters", Wanted())]
    await orders.broker.jobs.start(places, per_second=SLOW)
    await moved(orders, 1, "owner")
    await orders.broker.declaring.delete_queue("b_letters")
    orders.pass_time(STEP_MS)
    await moved(orders, 2, "owner")
    orders.pass_time(STEP_MS)
    assert (await ended(orders, "owner")).state is JobState.COMPLETED
    await set_aside(orders, 2, queue="b")
    await orders.broker.jobs.start([("owner", Wanted()), ("b_letters", Wanted())], per_second=SLOW)
    await until(lambda: orders.broker.jobs.of_queue("owner")[0].moved == 1)
    await orders.broker.declaring.delete_queue("b_letters")
    orders.pass_time(STEP_MS)
    await until(lambda: orders.broker.jobs.of_queue("owner")[0].state is JobState.FAILED)


async def test_it_is_cancelled_once(orders: Bench) -> None:
    await set_aside(orders, 3)
    running = asyncio.create_task(orders.broker.jobs.run(DEAD, per_second=SLOW))
    await moved(orders, 1)
    job = await orders.broker.jobs.cancel("orders_dlq", the_job(orders).id)
    assert (job.state, job.moved) == (JobState.CANCELLED, 1)
    assert await running == job
    with pytest.raises(RedriveEnded):
        await orders.broker.jobs.cancel("orders_dlq", job.id)
    orders.pass_time(5 * STEP_MS)
    await turns(20)
    await orders.restart()
    orders.pass_time(5 * STEP_MS)
    await turns(20)
    assert the_job(orders) == job
    assert orders.counts("orders_dlq")[0] == 2


async def test_whether_it_is_cancelled_or_at_its_end_is_decided_once(orders: Bench) -> None:
    await set_aside(orders, 1)
    running = asyncio.create_task(orders.broker.jobs.run(DEAD))
    await turns(1)
    job_id = the_job(orders).id
    await asyncio.wait([running, cancelling := asyncio.create_task(orders.broker.jobs.cancel("orders_dlq", job_id))])
    states = {(await running).state, the_job(orders).state}
    if cancelling.exception() is None:
        states.add((await cancelling).state)
        assert states == {JobState.CANCELLED}
    else:
        assert isinstance(cancelling.exception(), RedriveEnded)
        assert states == {JobState.COMPLETED}


async def test_one_that_is_not_there_cannot_be_cancelled(orders: Bench) -> None:
    for job_id in ("", "x", "00000000-0000-7000-8000-000000000001"):
        with pytest.raises(RedriveNotFound):
            await orders.broker.jobs.cancel("orders", job_id)


async def test_of_those_that_have_ended_the_latest_are_remembered(orders: Bench) -> None:
    await set_aside(orders, 2)
    first = await orders.broker.jobs.start(DEAD, per_second=SLOW)
    await moved(orders, 1)
    await orders.broker.jobs.cancel("orders_dlq", first.id)
    other = await orders.broker.jobs.run([("orders_dlq", Wanted(priority=7))], limit=5)
    assert (other.expected, other.moved) == (1, 0)
    await orders.declare("elsewhere")
    later = [await orders.broker.jobs.run([("elsewhere", Wanted())]) for _ in range(ENDED_KEPT + 3)]
    for _ in range(2):
        assert [job.id for job in orders.broker.jobs.of_queue("elsewhere")] == [job.id for job in reversed(later[3:])]
        assert [job.id for job in orders.broker.jobs.of_queue("orders_dlq")] == [other.id, first.id]
        await orders.restart()


async def test_no_more_than_so_many_run_at_the_same_time(orders: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "RUNNING_MAX", 2)
    for priority in (1, 2):
        for _ in range(2):
            await orders.publish(b"x", priority=priority)
            await orders.reject(await orders.receive_one())
        await orders.broker.jobs.start([("orders_dlq", Wanted(priority=priority))], per_second=SLOW)
    with pytest.raises(RedriveRunning, match="2 redrives of queue 'orders_dlq' are running"):
        await orders.broker.jobs.start([("orders_dlq", Wanted(priority=3))])


# -- one for each message ---------------------------------------------------------------------------------------------

BY_SOURCE = [("orders", Wanted(state=State.DEAD)), ("orders_dlq", Wanted(source="orders"))]
"""As a queue's dead letters are found under its own name."""


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("first", "second"), [(DEAD, BY_SOURCE), (BY_SOURCE, DEAD), (DEAD, DEAD)])
async def test_a_second_one_of_the_same_messages_is_refused_in_the_name_of_the_first(
    orders: Bench, first: list[tuple[str, Wanted]], second: list[tuple[str, Wanted]], *, restarts: bool
) -> None:
    await set_aside(orders, 2)
    running = await orders.broker.jobs.start(first, per_second=SLOW)
    assert running.queue == first[0][0]
    await moved(orders, 1, running.queue)
    if restarts:
        await orders.restart()
    with pytest.raises(RedriveRunning, match=f"{running.id} of queue '{running.queue}' .* of queue 'orders_dlq' too"):
        await orders.broker.jobs.start(second)
    await orders.broker.jobs.cancel(running.queue, running.id)
    await orders.broker.jobs.run(second)
    assert not orders.broker._state.searched


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Wanted(source="orders"), Wanted(source="pizzas")),
        (Wanted(priority=1), Wanted(priority=2)),
        (Wanted(state=State.DEAD), Wanted(state=State.READY)),
        (Wanted(group="a"), Wanted(group="b")),
        (Wanted(reason=Reason.EXPIRED), Wanted(reason=Reason.REJECTED)),
        (Wanted(messages=frozenset({(1, 1)})), Wanted(messages=frozenset({(2, 1)}))),
    ],
)
def test_those_that_cannot_want_the_same_messages_exclude_each_other(one: Wanted, other: Wanted) -> None:
    assert one.excludes(other)
    assert not one.excludes(one)
    assert not one.excludes(Wanted())


# -- lists ------------------------------------------------------------------------------------------------------------


async def test_all_of_a_namespace_are_listed_in_pages_newest_first(
    orders: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_jobs, "QUEUES_AT_ONCE", 2)
    await orders.broker.declaring.declare_queue("far", namespace="away")
    far = await orders.broker.jobs.start([("far", Wanted())], namespace="away")
    started = []
    for name in ("a", "b", "c", "a", "d", "b", "e"):
        if name not in orders.broker.catalog.queue_names():
            await orders.declare(name)
        started.append((await orders.broker.jobs.run([(name, Wanted())])).id)
    seen: list[str] = []
    after: int | None = 0
    while after is not None:
        page, after = await orders.broker.jobs.page(after=after, limit=3)
        seen += [job.id for job in page]
    assert seen == started[::-1]
    assert [job.queue for job in (await orders.broker.jobs.page(limit=10))[0]] == ["e", "b", "d", "a", "c", "b", "a"]
    assert [job.id for job in (await orders.broker.jobs.page(limit=10, namespace="away"))[0]] == [far.id]
    assert [job.id for job in (await orders.broker.jobs.page("a", limit=1))[0]] == [started[3]]
    assert await orders.broker.jobs.page(limit=10, namespace="nowhere") == ([], None)


async def test_one_whose_queue_is_deleted_meanwhile_is_left_out(orders: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_jobs, "QUEUES_AT_ONCE", 1)
    for name in ("a", "b"):
        await orders.declare(name)
        await orders.broker.jobs.run([(name, Wanted())])
    listing = asyncio.create_task(orders.broker.jobs.page(limit=10))
    await asyncio.sleep(0)
    await orders.broker.declaring.delete_queue("a")
    assert [job.queue for job in (await listing)[0]] == ["b"]


async def test_whose_queue_is_deleted_before_it_is_on_disk_that_it_was_started_or_cancelled(orders: Bench) -> None:
    jobs, declaring = orders.broker.jobs, orders.broker.declaring
    await set_aside(orders, 3)
    started, _ = await asyncio.gather(jobs.start(DEAD, per_second=SLOW), declaring.delete_queue("orders_dlq"))
    assert (started.queue, started.state, started.code) == ("orders_dlq", JobState.FAILED, "queue_deleted")
    await set_aside(orders, 3)
    job = await jobs.start(DEAD, per_second=SLOW)
    cancelled, _ = await asyncio.gather(jobs.cancel("orders_dlq", job.id), declaring.delete_queue("orders_dlq"))
    assert (cancelled.queue, cancelled.state) == ("orders_dlq", JobState.CANCELLED)


async def test_a_long_page_is_made_in_turns(orders: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    shown_per_turn = [0]
    view = Jobs._view

    def counting(self: Jobs, job: Job, queue: str) -> JobView:
        if shown_per_turn[-1] == 0:
            asyncio.get_running_loop().call_soon(shown_per_turn.append, 0)
        shown_per_turn[-1] += 1
        return view(self, job, queue)

    for number in range(3):
        await orders.declare(f"q{number}")
        for _ in range(ENDED_KEPT):
            await orders.broker.jobs.run([(f"q{number}", Wanted())])
    monkeypatch.setattr(Jobs, "_view", counting)
    monkeypatch.setattr(engine_jobs, "SHOWN_AT_ONCE", 4)
    page, after = await orders.broker.jobs.page(limit=25)
    assert len(page) == sum(shown_per_turn) == 25
    assert max(shown_per_turn) == 4
    assert after is not None
    assert len((await orders.broker.jobs.page(after=after, limit=25))[0]) == 3 * ENDED_KEPT - 25


# -- those who wait for it --------------------------------------------------------------------------------------------


async def test_it_goes_on_when_whoever_waited_is_gone(orders: Bench) -> None:
    await set_aside(orders, 2)
    running = asyncio.create_task(orders.broker.jobs.run(DEAD, per_second=SLOW))
    await moved(orders, 1)
    running.cancel()
    await turns()
    orders.pass_time(STEP_MS)
    await moved(orders, 2)


async def test_closing_stops_it_where_it_is(orders: Bench) -> None:
    await set_aside(orders, 3)
    running = asyncio.create_task(orders.broker.jobs.run(DEAD, per_second=SLOW))
    await moved(orders, 1)
    await orders.broker.close()
    with pytest.raises(BrokerClosed):
        await running
    await orders.open()
    assert the_job(orders).state is JobState.RUNNING


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_it_goes_on_after_a_restart_and_its_count_is_exact(orders: Bench) -> None:
    await set_aside(orders, 4)
    await orders.publish(b"stray", queue="orders_dlq")
    started = await orders.broker.jobs.start(DEAD, per_second=SLOW)
    for count in range(1, 5):
        # Each start lets one go at once.
        await moved(orders, count)
        # Other dead letters come, and others go back: they are not counted.
        await orders.publish(b"late")
        late = [one for one in await orders.broker.receiving.receive("orders", 10) if one.body == b"late"]
        await orders.reject(*late, error="late")
        assert await orders.broker.redriving.redrive("orders_dlq", Wanted(error_contains="late")) == len(late)
        await orders.restart()
    done = await ended(orders)
    assert (done.id, done.state, done.moved, done.strays) == (started.id, JobState.COMPLETED, 4, 1)
    assert done.expected == 5


async def test_a_kill_at_any_block_changes_neither_the_end_nor_the_count(kept: tuple[Bench, MemoryPlace]) -> None:
    bench, place = kept
    await bench.restart(BrokerSettings(disk_free_bytes_min=0, block_bytes_max=1))
    await bench.declare()
    await set_aside(bench, 7)
    await bench.publish(b"stray", queue="orders_dlq")
    began = place.log.next_position
    await bench.broker.jobs.run(DEAD)
    await bench.broker.durable()
    ends = 0
    for end in range(began, place.log.next_position):
        broker = await Broker.open(up_to(place, end))
        async with broker:
            moved_then = broker.statistics.stats("orders").redriven_total
            if not broker.jobs.of_queue("orders_dlq"):
                # It was killed before anybody heard that it had started.
                assert moved_then == 0
                continue
            ends += 1
            [job] = broker.jobs.of_queue("orders_dlq")
            assert job.moved == moved_then
            await until(lambda: broker.jobs.of_queue("orders_dlq")[0].state is not JobState.RUNNING)  # noqa: B023
            [job] = broker.jobs.of_queue("orders_dlq")
            assert (job.state, job.moved, job.strays, job.expected) == (JobState.COMPLETED, 7, 1, 8)
            assert broker.statistics.stats("orders").ready == 7
    assert ends > 7


def up_to(place: MemoryPlace, end: int) -> MemoryLog:
    log = MemoryLog()
    for position in range(1, end + 1):
        log.append(position, place.log.read(position))
    return log


@pytest.mark.parametrize("is_durable", [False, True])
async def test_of_a_queue_that_is_not_durable_it_is_forgotten(orders: Bench, is_durable: bool) -> None:
    await orders.declare("letters", QueueSettings(durable=is_durable))
    await orders.declare("work", QueueSettings(dead_letter_queue="letters"))
    await set_aside(orders, 2, queue="work")
    await orders.broker.jobs.start([("letters", Wanted())], per_second=SLOW)
    await moved(orders, 1, "letters")
    await orders.restart()
    if is_durable:
        await moved(orders, 2, "letters")
    assert bool(orders.broker._state.jobs) == is_durable


async def test_reclaiming_keeps_it_while_it_runs_and_after_its_end(orders: Bench) -> None:
    await orders.restart(TINY)
    await set_aside(orders, 6)
    await orders.declare("other")
    first = await orders.broker.jobs.start(DEAD, per_second=SLOW)
    log = orders.broker.log
    for count in range(1, 7):
        await moved(orders, count)
        before = log.range().first
        for _ in range(40):
            await orders.publish(b"x" * 500, queue="other")
            await orders.acknowledge(await orders.receive_one("other"))
        await until(lambda: log.range().first > before)  # noqa: B023
        if count % 2:
            await orders.restart()
            log = orders.broker.log
        else:
            orders.pass_time(STEP_MS)
    done = await ended(orders)
    assert (done.id, done.state, done.moved) == (first.id, JobState.COMPLETED, 6)
    for _ in range(2):
        for _ in range(60):
            await orders.publish(b"x" * 500, queue="other")
            await orders.acknowledge(await orders.receive_one("other"))
        await orders.restart()
        assert the_job(orders) == done


async def test_a_start_finds_what_the_broker_knew(kept: tuple[Bench, MemoryPlace]) -> None:
    bench, place = kept
    await bench.declare()
    await set_aside(bench, 5, error="parse")
    ids = frozenset((number, 1) for number in range(3))
    start = bench.broker.jobs.start
    for wanted in (
        Wanted(error_contains="parse", source="orders", state=State.READY, priority=1),
        Wanted(headers={"a": [1, {"b": None}]}, priority=2),
        Wanted(messages=ids, priority=3),
    ):
        await start([("orders_dlq", wanted)], per_second=SLOW)
    await start([("orders_dlq", Wanted(priority=0))], per_second=SLOW, to="orders", limit=4)
    await moved(bench, 1)
    known = bench.broker._state
    await bench.broker.close()
    recovery = Recovery(resident_bytes_max=1 << 40)
    recovery.replay(place.log, None)
    records = [
        [job_record(job) for job in one.jobs[known.queue("orders_dlq").number].values()]
        for one in (known, recovery.state)
    ]
    assert len(records[0]) == 4
    assert records[0] == records[1]


async def test_ids_that_were_asked_for_are_forgotten_with_the_end(orders: Bench) -> None:
    await set_aside(orders, 2)
    page = await orders.broker.browsing.browse("orders_dlq")
    ids = frozenset((message.number, message.created_at_ms) for message in page.messages)
    await orders.broker.jobs.run([("orders_dlq", Wanted(messages=ids))])
    [job] = [job for of_queue in orders.broker._state.jobs.values() for job in of_queue.values()]
    assert job.plan.messages is None


async def test_all_its_queues_are_searched_for_the_same_messages(orders: Bench) -> None:
    with pytest.raises(InvalidArgument, match="the same messages"):
        await orders.broker.jobs.start([("orders", Wanted(messages=frozenset({(1, 2)}))), ("orders", Wanted())])
