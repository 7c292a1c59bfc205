"""Looking without touching: by state, by filter, page by page."""

from __future__ import annotations

import pytest

from smista.core.browsing import Wanted, get
from smista.core.message import Reason, State
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.errors import InvalidArgument, MessageNotFound
from tests.core.bench import START_MS, Bench, bodies


@pytest.fixture
def mixed() -> Bench:
    bench = Bench(QueueSettings(dead_letter=DeadLetterMode.PARK))
    bench.state.read_routing = lambda properties: ({"size": int(properties or b"0")}, ())
    bench.publish(b"dead")
    bench.reject(bench.receive_one(), error="disk is full")
    bench.publish(b"tried")
    bench.nack(bench.receive_one(), delay_ms=0, error="network is down")
    bench.publish(b"held", priority=9, properties=b"9")
    bench.receive_one()
    bench.pass_time(ms=1000)
    bench.publish(b"later", delay_ms=5000, group="g")
    bench.publish(b"ready", priority=3)
    return bench


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), [b"dead", b"tried", b"held", b"later", b"ready"]),
        (Wanted(state=State.READY), [b"tried", b"ready"]),
        (Wanted(state=State.SCHEDULED), [b"later"]),
        (Wanted(state=State.IN_FLIGHT), [b"held"]),
        (Wanted(state=State.DEAD), [b"dead"]),
        (Wanted(state=State.GONE), []),
        (Wanted(priority=3), [b"ready"]),
        (Wanted(group="g"), [b"later"]),
        (Wanted(reason=Reason.REJECTED), [b"dead"]),
        (Wanted(reason=Reason.EXPIRED), []),
        (Wanted(source="orders"), [b"dead"]),
        (Wanted(source="elsewhere"), []),
        (Wanted(error_contains="down"), [b"tried"]),
        (Wanted(error_contains="is"), [b"dead", b"tried"]),
        (Wanted(created_from_ms=START_MS + 1000), [b"later", b"ready"]),
        (Wanted(created_before_ms=START_MS + 1000), [b"dead", b"tried", b"held"]),
        (Wanted(deliveries_min=1), [b"dead", b"tried", b"held"]),
        (Wanted(messages=frozenset({(1, START_MS), (2, START_MS + 1), (4, START_MS + 1000)})), [b"dead", b"later"]),
        (Wanted(headers={"size": 9}), [b"held"]),
        (Wanted(headers={"size": 9, "colour": None}), [b"held"]),
        (Wanted(headers={"size": 8}), []),
        (Wanted(state=State.READY, priority=0), [b"tried"]),
    ],
)
def test_filters(mixed: Bench, wanted: Wanted, expected: list[bytes]) -> None:
    before = mixed.all_stats()
    assert bodies(mixed.browse(wanted).messages) == expected
    assert bodies(mixed.matching(wanted)) == expected
    assert mixed.all_stats() == before


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_follow_each_other_without_gap_or_repetition(orders: Bench, limit: int) -> None:
    ids = orders.publish_many(7)
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        page = orders.browse(after=after, limit=limit)
        assert len(page.messages) <= limit
        found += [message.number for message in page.messages]
        after = page.after
    assert found == ids


def test_a_page_in_which_nothing_matches_still_leads_on(orders: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.core.browsing.LOOKED_AT_MAX", 3)
    for number in range(10):
        orders.publish(b"%d" % number, priority=number)
    page = orders.browse(Wanted(priority=9))
    found = page.messages
    while page.after is not None:
        page = orders.browse(Wanted(priority=9), after=page.after)
        found += page.messages
    assert bodies(found) == [b"9"]


def test_what_happens_between_two_pages_is_no_trouble(orders: Bench) -> None:
    orders.publish_many(6)
    page = orders.browse(limit=2)
    assert page.after is not None
    for delivery in orders.receive(4):
        orders.acknowledge(delivery)
    assert bodies(orders.browse(after=page.after, limit=10).messages) == [b"4", b"5"]


def test_walking_through_all_that_matches_ends_even_if_each_comes_back_behind() -> None:
    bench = Bench(QueueSettings(dead_letter=DeadLetterMode.PARK))
    for number in range(5):
        bench.publish(b"%d" % number)
        bench.reject(bench.receive_one())
    moved = bench.redrive(bench.matching(), out_of=bench.queue)
    assert bodies(moved) == [b"0", b"1", b"2", b"3", b"4"]
    assert bench.counts() == (5, 0, 0, 0)


def test_an_empty_queue_has_one_empty_page(orders: Bench) -> None:
    page = orders.browse()
    assert (page.messages, page.after) == ([], None)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_page_has_a_sensible_size(orders: Bench, limit: int) -> None:
    with pytest.raises(InvalidArgument, match=str(limit)):
        orders.browse(limit=limit)


def test_one_message_by_its_place(orders: Bench) -> None:
    sequence = orders.publish(b"here").number
    assert get(orders.queue, sequence).body == b"here"
    orders.receive_one()
    assert get(orders.queue, sequence).state is State.IN_FLIGHT
    with pytest.raises(MessageNotFound, match="'orders'"):
        get(orders.queue, sequence + 1)
