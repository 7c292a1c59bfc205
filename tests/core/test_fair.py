"""Fair queues: a group that floods its queue does not make the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.core.claims import take
from smista.core.fair import FairLine, Group
from smista.core.message import Envelope, Message, Publication, State
from smista.core.settings import Overflow, PriorityPolicy, QueueSettings
from smista.errors import InvalidSettings
from tests.core import invariants
from tests.core.bench import Bench, Delivery, bodies

LEASE_MS = 32_000
FAIR = QueueSettings(fair=True, lease_ms=LEASE_MS)


@pytest.fixture
def fair() -> Bench:
    return Bench(FAIR)


def publish(bench: Bench, *names: str, priority: int | None = None) -> None:
    """`a1` is a message of group a, `1` is one of none."""
    for name in names:
        bench.publish(name.encode(), group=name[0] if name[0].isalpha() else None, priority=priority)


def flood(bench: Bench, group: str, count: int) -> None:
    envelope = Envelope(group=group)
    bench.publish_all([Publication(b"%s%d" % (group.encode(), number), envelope) for number in range(1, count + 1)])


# -- who is next ------------------------------------------------------------------------------------------------------


def test_a_group_with_little_in_flight_goes_before_one_that_floods_the_queue(fair: Bench) -> None:
    flood(fair, "a", 1000)
    assert fair.receive_bodies(50) == [b"a%d" % number for number in range(1, 51)]
    publish(fair, "b1", "b2", "b3")
    assert fair.receive_bodies(4) == [b"b1", b"b2", b"b3", b"a51"]


def test_groups_take_turns_while_nobody_holds_anything(fair: Bench) -> None:
    publish(fair, "a1", "a2", "a3", "b1", "b2", "c1")
    served = []
    while taken := fair.receive():
        served.append(taken[0].body)
        fair.acknowledge(taken[0])
    assert served == [b"a1", b"b1", b"c1", b"a2", b"b2", b"a3"]


def test_one_receive_is_shared_out_too(fair: Bench) -> None:
    publish(fair, "a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert fair.receive_bodies(5) == [b"a1", b"b1", b"c1", b"a2", b"b2"]


def test_where_consumers_are_slow_each_group_has_the_same_number_in_flight(fair: Bench) -> None:
    flood(fair, "a", 100)
    held = fair.receive(12)
    flood(fair, "b", 50)
    flood(fair, "c", 3)
    for _ in range(40):
        fair.acknowledge(held.pop(0))
        held += fair.receive()
    assert Counter(delivery.group for delivery in held) == {"a": 6, "b": 6}


def test_messages_without_a_group_are_one_group_together(fair: Bench) -> None:
    publish(fair, "1", "2", "3", "4", "a1", "a2")
    assert fair.receive_bodies(4) == [b"1", b"a1", b"2", b"a2"]
    publish(fair, "b1")
    assert fair.receive_bodies() == [b"b1", b"3", b"4"]


def test_without_any_groups_the_oldest_goes_first_as_in_any_queue(fair: Bench) -> None:
    fair.publish_many(5)
    first, second = fair.receive(2)
    fair.release(second)
    fair.release(first)
    assert fair.receive_bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_within_a_group_what_comes_back_stands_where_it_stood_and_nothing_is_locked(fair: Bench) -> None:
    publish(fair, "a1", "a2", "a3", "a4")
    first, _ = fair.receive(2)
    fair.release(first)
    assert fair.receive_bodies() == [b"a1", b"a3", b"a4"]


def test_groups_that_keep_coming_do_not_starve_one_that_was_there(fair: Bench) -> None:
    flood(fair, "a", 3)
    served = []
    for number in range(6):
        fair.publish(group=f"new {number}")
        delivery = fair.receive_one()
        served.append(delivery.group)
        fair.acknowledge(delivery)
    assert served == ["a", "new 0", "a", "new 1", "new 2", "a"]


# -- what is in flight ------------------------------------------------------------------------------------------------


def settle(bench: Bench, delivery: Delivery) -> dict[str, Callable[[], object]]:
    return {
        "acknowledged": lambda: bench.acknowledge(delivery),
        "nacked": lambda: bench.nack(delivery),
        "rejected": lambda: bench.reject(delivery),
        "released": lambda: bench.release(delivery),
        "lease ran out": lambda: bench.pass_time(ms=LEASE_MS),
    }


@pytest.mark.parametrize("how", ["acknowledged", "nacked", "rejected", "released", "lease ran out"])
def test_what_is_settled_counts_no_more(fair: Bench, how: str) -> None:
    publish(fair, "a1", "a2", "b1")
    held, other = fair.receive(2)
    assert (held.body, other.body) == (b"a1", b"b1")
    fair.extend(other, lease_ms=10 * LEASE_MS)
    publish(fair, "b2")
    settle(fair, held)[how]()
    assert fair.receive_one().group == "a"
    invariants.check(fair.state)


def test_an_acknowledgement_that_comes_late_is_not_counted_twice(fair: Bench) -> None:
    publish(fair, "a1", "a2")
    first, _ = fair.receive(2)
    fair.pass_time(ms=LEASE_MS)
    fair.acknowledge(first)
    invariants.check(fair.state)
    assert fair.receive_bodies() == [b"a2"]


def test_a_claim_is_shared_out_and_counts(fair: Bench) -> None:
    flood(fair, "a", 10)
    publish(fair, "b1", "b2")
    claimed = take(fair.state, fair.queue, "spark", 6, now_ms=fair.now_ms)
    assert bodies(claimed) == [b"a1", b"b1", b"a2", b"b2", b"a3", b"a4"]
    publish(fair, "c1", "b3")
    assert fair.receive_bodies(2) == [b"c1", b"b3"]


def test_a_group_is_forgotten_when_nothing_of_it_is_left(fair: Bench) -> None:
    for number in range(100):
        fair.publish(group=f"group {number}", priority=number % 3)
    for delivery in fair.receive(100):
        fair.acknowledge(delivery)
    assert fair.receive() == []
    assert fair.queue.fair is not None
    assert (fair.queue.fair._in_flight, fair.queue.fair._buckets) == ({}, {})


# -- priorities -------------------------------------------------------------------------------------------------------


def test_priority_goes_before_fairness(fair: Bench) -> None:
    publish(fair, "b1", "b2", priority=0)
    publish(fair, "a1", "a2", "a3", priority=9)
    assert fair.receive_bodies(4) == [b"a1", b"a2", b"a3", b"b1"]


def test_what_is_in_flight_counts_at_every_priority(fair: Bench) -> None:
    publish(fair, "a1", "b1", "a2", "b2", priority=0)
    publish(fair, "b8", "b9", priority=9)
    held = fair.receive(2)
    assert fair.receive_bodies(2) == [b"a1", b"a2"]
    for delivery in held:
        fair.acknowledge(delivery)
    publish(fair, "a3", priority=0)
    assert fair.receive_bodies() == [b"b1", b"b2", b"a3"]


def test_weighted_priorities_are_fair_within_each_of_them() -> None:
    bench = Bench(QueueSettings(fair=True, priority_policy=PriorityPolicy.WEIGHTED))
    for priority in (0, 1):
        publish(bench, "a1", "a2", "a3", "a4", "b1", "b2", priority=priority)
    taken = bench.receive(8)
    assert Counter(delivery.priority for delivery in taken) == {1: 5, 0: 3}
    assert Counter(delivery.group for delivery in taken) == {"a": 4, "b": 4}


# -- everything else a queue does -------------------------------------------------------------------------------------


def test_what_has_expired_is_passed_over_and_does_not_count_as_in_flight(fair: Bench) -> None:
    fair.publish(b"a1", group="a", ttl_ms=5)
    publish(fair, "a2", "a3", "b1")
    fair.now_ms += 6
    assert fair.receive_bodies(3) == [b"b1", b"a2", b"a3"]
    assert bodies(fair.dead_letters()) == [b"a1"]
    invariants.check(fair.state)


def test_a_delayed_message_joins_its_group_when_its_time_comes(fair: Bench) -> None:
    fair.publish(b"a1", group="a", delay_ms=1600)
    flood(fair, "b", 10)
    fair.receive(3)
    fair.pass_time(ms=1600)
    assert fair.receive_bodies(2) == [b"a1", b"b4"]


def test_peek_shows_what_comes_next(fair: Bench) -> None:
    flood(fair, "a", 5)
    publish(fair, "1", "2", "b1", "c1")
    publish(fair, "b8", "c8", "b9", priority=9)
    fair.receive(1)
    expected = fair.peek()
    assert fair.peek(3) == expected[:3]
    assert fair.receive_bodies() == expected


def test_a_full_queue_lets_go_of_the_oldest_whatever_its_group() -> None:
    bench = Bench(QueueSettings(fair=True, max_depth=4, overflow=Overflow.DROP_OLDEST))
    publish(bench, "a1", "b1", "a2", "a3")
    held = bench.receive_one()
    publish(bench, "c1", "c2")
    bench.release(held)
    assert sorted(bench.peek()) == [b"a1", b"a3", b"c1", b"c2"]
    publish(bench, "c3")
    assert sorted(bench.peek()) == [b"a3", b"c1", b"c2", b"c3"]


def test_a_queue_that_lets_everything_in_lets_go_of_the_oldest_of_the_highest_priority() -> None:
    bench = Bench(QueueSettings(fair=True, max_depth=3, limit_ready_only=True, overflow=Overflow.DROP_OLDEST))
    publish(bench, "a1", "b1", "c1", "d1")
    assert bench.peek() == [b"b1", b"c1", b"d1"]


def test_the_age_of_a_queue_is_that_of_its_oldest_message(fair: Bench) -> None:
    publish(fair, "a1", "a2")
    held = fair.receive_one()
    fair.now_ms += 1000
    publish(fair, "b1")
    assert fair.stats().oldest_age_ms == 1000, "a2, though b1 comes next"
    fair.receive(1)
    fair.receive(1)
    assert fair.stats().oldest_age_ms == 0
    fair.now_ms += 500
    fair.release(held)
    assert fair.stats().oldest_age_ms == 1500


def test_a_purge_of_what_is_ready_leaves_in_flight_what_is(fair: Bench) -> None:
    publish(fair, "a1", "a2", "b1")
    held = fair.receive_one()
    assert fair.purge(ready_only=True) == 2
    publish(fair, "a3", "b2")
    assert fair.receive_bodies() == [b"b2", b"a3"]
    fair.acknowledge(held)
    invariants.check(fair.state)


def test_a_purge_forgets_what_was_in_flight(fair: Bench) -> None:
    publish(fair, "a1", "a2")
    fair.receive(2)
    fair.purge()
    publish(fair, "a3", "b1")
    assert fair.receive_bodies() == [b"a3", b"b1"]
    invariants.check(fair.state)


def test_dead_letters_lie_in_a_fair_queue_and_come_back_to_their_group(fair: Bench) -> None:
    publish(fair, "a1", "a2", "b1")
    fair.reject(fair.receive_one())
    [letter] = fair.dead_letters()
    assert fair.find("orders_dlq").settings.fair
    fair.redrive([letter])
    assert fair.receive_bodies() == [b"b1", b"a2", b"a1"]


def test_a_queue_can_become_fair_and_stop_being_it(orders: Bench) -> None:
    publish(orders, "a1", "a2", "a3", "b1", "b2")
    held = orders.receive(2)
    orders.alter(QueueSettings(fair=True))
    invariants.check(orders.state)
    assert orders.receive_bodies(2) == [b"b1", b"b2"]
    orders.alter(QueueSettings(ordered=True))
    assert orders.receive_bodies() == []
    orders.acknowledge(held[0])
    orders.alter(QueueSettings())
    assert orders.receive_bodies() == [b"a3"]
    invariants.check(orders.state)


def test_a_queue_is_not_ordered_and_fair(fair: Bench) -> None:
    both = QueueSettings(ordered=True, fair=True)
    with pytest.raises(InvalidSettings, match="ordered or fair"):
        fair.declare("both", both)
    with pytest.raises(InvalidSettings, match="ordered or fair"):
        fair.alter(both)
    assert fair.queue.settings == FAIR


# -- the line itself --------------------------------------------------------------------------------------------------


def message(sequence: int, group: Group = None, priority: int = 0) -> Message:
    return Message(sequence, sequence, 1, Envelope(group=group), b"", priority, 0, 0)


def test_the_rankings_do_not_grow_with_what_happened() -> None:
    line = FairLine(is_weighted=False)
    held = [message(sequence, "a") for sequence in range(1000)]
    for each in held:
        line.hold(each)
    line.append(message(1000, "a"))
    for sequence in range(2000, 3000):
        passing = message(sequence, f"group {sequence}")
        line.append(passing)
        assert line.pop() is passing
        line.let_go(passing)
    for each in held:
        line.let_go(each)
    assert len(line._buckets[0]._ages._entries) < 100
    assert len(line._buckets[0]._turns._entries) < 100


def test_a_row_gives_back_the_memory_of_what_has_left_it() -> None:
    line = FairLine(is_weighted=False)
    messages = [message(sequence, "a") for sequence in range(1000)]
    for each in messages[::2]:
        line.append(each)
    for each in messages[1::2]:
        line.put_back(each)
    for each in messages[1:]:
        each.state = State.GONE
        line.leave(each)
    assert line._buckets[0]._rows["a"].slots < 100
    assert line.take(1000) == messages[:1]


class Model:
    """The rule in plain lists."""

    def __init__(self) -> None:
        self.waiting: list[Message] = []
        self.taken: list[Message] = []
        self.turns: dict[tuple[int, Group], int] = {}
        self.clock = 0

    def enter(self, entering: Message) -> None:
        self.waiting.append(entering)
        if (entering.priority, entering.envelope.group) not in self.turns:
            self.turn(entering)

    def turn(self, of: Message) -> None:
        self.clock += 1
        self.turns[of.priority, of.envelope.group] = self.clock

    def leave(self, leaving: Message) -> None:
        self.waiting.remove(leaving)
        place = (leaving.priority, leaving.envelope.group)
        if all((each.priority, each.envelope.group) != place for each in self.waiting):
            del self.turns[place]

    def take(self) -> Message | None:
        held = Counter(each.envelope.group for each in self.taken)

        def rank(each: Message) -> tuple[int, int, int, int]:
            group = each.envelope.group
            return -each.priority, held[group], self.turns[each.priority, group], each.sequence

        found = min(self.waiting, key=rank, default=None)
        if found is not None:
            self.turn(found)
            self.leave(found)
            self.taken.append(found)
        return found


STEPS = st.tuples(
    st.sampled_from(("append", "append", "append", "pop", "pop", "take", "put back", "let go", "untake", "leave")),
    st.integers(0, 30),
    st.sampled_from((None, "a", "b", "c")),
    st.sampled_from((0, 0, 1)),
)


@given(st.lists(STEPS, max_size=120))
def test_a_line_of_tiny_segments_keeps_the_rule(steps: list[tuple[str, int, Group, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smista.core.ready.SEGMENT", 3)
        patch.setattr("smista.core.fair._SLACK", 2)
        line, model = FairLine(is_weighted=False), Model()
        for sequence, (what, which, group, priority) in enumerate(steps):
            if what == "append":
                new = message(sequence, group, priority)
                line.append(new)
                model.enter(new)
            elif what == "pop":
                assert line.pop() is model.take()
            elif what == "take":
                expected = [found for _ in range(which % 5) if (found := model.take()) is not None]
                assert line.take(which % 5) == expected
            elif what == "leave" and model.waiting:
                leaving = model.waiting[which % len(model.waiting)]
                model.leave(leaving)
                leaving.state = State.GONE
                line.leave(leaving)
            elif model.taken and what in ("put back", "let go", "untake"):
                settled = model.taken.pop(which % len(model.taken))
                if what == "untake":
                    line.untake(settled)
                else:
                    line.let_go(settled)
                if what == "put back":
                    line.put_back(settled)
                if what != "let go":
                    model.enter(settled)
            assert line.oldest() is min(model.waiting, key=lambda each: each.sequence, default=None)
            assert line.first() is min(model.waiting, key=lambda each: (-each.priority, each.sequence), default=None)
            for level in {each.priority for each in model.waiting}:
                assert line.position(level) == sum(each.priority >= level for each in model.waiting)
        expected = list(line.in_order())
        assert line.take(1000) == expected, "in_order says what will be taken"
        assert Counter(each.sequence for each in expected) == Counter(each.sequence for each in model.waiting)
