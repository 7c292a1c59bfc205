"""The two lines: messages that are ready, and consumers that wait."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.core.group_turns import TurnLine
from smista.core.message import PLAIN, Message, State
from smista.core.ready import SEGMENT, ReadyLine
from smista.core.waiting import WaitingLine


def message(sequence: int, priority: int = 0) -> Message:
    return Message(sequence, sequence, 1, PLAIN, b"", priority, 0, 0)


def take_all(line: ReadyLine) -> list[int]:
    taken = []
    while (found := line.pop()) is not None:
        taken.append(found.sequence)
    return taken


def leave(line: ReadyLine, gone: Message) -> None:
    gone.state = State.GONE
    line.leave(gone)


def slots(line: ReadyLine) -> int:
    return sum(bucket.slots for bucket in line._buckets.values())


def test_what_comes_back_stands_where_it_stood() -> None:
    line = ReadyLine(is_weighted=False)
    messages = [message(sequence) for sequence in range(6)]
    for each in messages[2:]:
        line.append(each)
    line.put_back(messages[1])
    line.put_back(messages[0])
    assert take_all(line) == [0, 1, 2, 3, 4, 5]


def test_slots_left_behind_are_passed_over() -> None:
    line = ReadyLine(is_weighted=False)
    messages = [message(sequence, sequence % 3) for sequence in range(30)]
    for each in messages:
        line.append(each)
    for each in messages[::2]:
        leave(line, each)
    assert [each.sequence for each in line.in_order()] == sorted(range(1, 30, 2), key=lambda s: (-(s % 3), s))
    oldest = line.oldest()
    assert oldest is not None
    assert oldest.sequence == 1
    assert take_all(line) == sorted(range(1, 30, 2), key=lambda s: (-(s % 3), s))


@pytest.mark.parametrize("keep", ["every seventh", "the first", "the last", "none"])
def test_sweeping_keeps_the_order_and_gives_the_memory_back(keep: str) -> None:
    line = ReadyLine(is_weighted=False)
    count = 3 * SEGMENT + 5
    messages = [message(sequence) for sequence in range(count)]
    for each in messages:
        line.append(each)
    kept = {
        "every seventh": range(0, count, 7),
        "the first": range(20),
        "the last": range(count - 20, count),
        "none": range(0),
    }[keep]
    for each in messages:
        if each.sequence not in kept:
            leave(line, each)
    assert slots(line) <= 2 * len(kept) + 2 * SEGMENT
    line.append(message(count))
    assert take_all(line) == [*kept, count]


def test_sweeping_clears_what_was_put_back_as_well() -> None:
    line = ReadyLine(is_weighted=False)
    messages = [message(sequence) for sequence in range(3 * SEGMENT)]
    for each in reversed(messages):
        line.put_back(each)
    for each in messages[5:]:
        leave(line, each)
    assert slots(line) <= 2 * SEGMENT
    assert take_all(line) == [0, 1, 2, 3, 4]


Step = tuple[str, int, int]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("append", "append", "append", "pop", "put back", "leave", "leave")),
            st.integers(0, 30),
            st.integers(0, 2),
        ),
        max_size=120,
    )
)
def test_a_line_of_tiny_segments_is_a_sorted_list(steps: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smista.core.ready.SEGMENT", 3)
        line = ReadyLine(is_weighted=False)
        waiting: list[Message] = []
        taken: list[Message] = []
        for sequence, (what, which, priority) in enumerate(steps):
            if what == "append":
                waiting.append(message(sequence, priority))
                line.append(waiting[-1])
            elif what == "pop":
                expected = min(waiting, key=lambda m: (-m.priority, m.sequence), default=None)
                assert line.pop() is expected
                if expected is not None:
                    waiting.remove(expected)
                    taken.append(expected)
            elif what == "put back" and taken:
                back = taken.pop(which % len(taken))
                line.put_back(back)
                waiting.append(back)
            elif what == "leave" and waiting:
                leave(line, waiting.pop(which % len(waiting)))
            expected_order = sorted(waiting, key=lambda m: (-m.priority, m.sequence))
            assert list(line.in_order()) == expected_order
            assert line.oldest() is min(waiting, key=lambda m: m.sequence, default=None)
            for level in {each.priority for each in waiting}:
                assert line.position(level) == sum(each.priority >= level for each in waiting)


# -- consumers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Consumer:
    name: str
    priority: int = 0


ANNA, BERT, CLEO = Consumer("anna"), Consumer("bert"), Consumer("cleo")


def test_the_longest_waiting_is_first_and_being_served_sends_one_to_the_back() -> None:
    line: WaitingLine[Consumer] = WaitingLine()
    for consumer in (ANNA, BERT, CLEO):
        line.join(consumer)
    served = []
    for _ in range(5):
        first = line.first()
        assert first is not None
        served.append(first.name)
        line.to_the_back(first)
    assert served == ["anna", "bert", "cleo", "anna", "bert"]


def test_joining_again_keeps_the_place() -> None:
    line: WaitingLine[Consumer] = WaitingLine()
    for consumer in (ANNA, BERT, ANNA):
        line.join(consumer)
    assert (line.first(), len(line)) == (ANNA, 2)


def test_a_higher_priority_is_served_before_a_longer_wait() -> None:
    line: WaitingLine[Consumer] = WaitingLine()
    line.join(ANNA)
    important = Consumer("important", priority=10)
    line.join(important)
    assert line.first() is important
    line.leave(important)
    assert line.first() is ANNA


def test_whoever_leaves_is_not_served() -> None:
    line: WaitingLine[Consumer] = WaitingLine()
    line.join(ANNA)
    line.join(BERT)
    line.leave(ANNA)
    line.leave(CLEO)
    assert (line.first(), len(line)) == (BERT, 1)
    line.leave(BERT)
    assert (line.first(), len(line)) == (None, 0)


def kept_by(line: ReadyLine, messages: list[Message]) -> int:
    """How many that are gone are kept by a line, where there are no others that are referred to."""
    held = sum(len(bucket.returned) + sum(map(len, bucket.segments)) for bucket in line._buckets.values())
    return held - sum(each.state is State.READY for each in messages)


@pytest.mark.parametrize("kind", [ReadyLine, TurnLine])
@pytest.mark.parametrize("alive", [0, 1, 50])
def test_what_left_a_short_line_is_never_more_than_what_stands_in_it(kind: type[ReadyLine], alive: int) -> None:
    line = kind(is_weighted=False)
    messages = [message(sequence) for sequence in range(1_000)]
    for each in messages:
        line.append(each)
    for each in messages[alive:]:
        leave(line, each)
        assert kept_by(line, messages) <= sum(each.state is State.READY for each in messages)
    assert kept_by(line, messages) <= alive
    for each in line.take(alive):
        each.state = State.IN_FLIGHT
    assert slots(line) == 0
    if isinstance(line, TurnLine):
        assert line._ages == []


class Counted(int):
    """A sequence that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < other


@pytest.mark.parametrize("came_back", [1_000, 30_000])
def test_a_look_at_the_next_costs_the_same_however_many_have_come_back(came_back: int) -> None:
    line = ReadyLine(is_weighted=False)
    for sequence in reversed(range(came_back)):
        line.put_back(message(Counted(sequence)))
    Counted.compared = 0
    assert [one.sequence for one in islice(line.in_order(), 100)] == list(range(100))
    assert 100 < Counted.compared < 2_500
