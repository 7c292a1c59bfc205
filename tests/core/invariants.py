"""What is true of a broker's memory between any two commands, whoever gave them.

`check(state)` raises an AssertionError that says which queue and message are wrong. It looks into private parts on
purpose: it is the only place in the tests that does, so that a change of structure is a change here.
"""

from __future__ import annotations

import gc
from collections import Counter

from smista.core.calendar import COARSE_SHIFT, TICK_MS, TICK_SHIFT, Calendar
from smista.core.fair import FairLine, Group
from smista.core.group_turns import TurnLine
from smista.core.groups import Groups
from smista.core.message import Message, State
from smista.core.queue import Queue
from smista.core.ready import SEGMENT, Bucket, ReadyLine
from smista.core.state import BrokerState


def check(state: BrokerState) -> None:
    numbers: set[int] = set()
    for queue in state.queues.values():
        _check_tables(state, queue)
        _check_bytes(state, queue)
        _check_deliveries(queue)
        _check_groups(queue)
        _check_line(queue)
        _check_gone(queue)
        _check_deadlines(queue, state.fleeting.get(queue, []))
        for message in queue.messages():
            assert message.sequence not in numbers, f"{_name(queue, message)} is in two queues"
            numbers.add(message.sequence)
    _check_names(state)


def _check_names(state: BrokerState) -> None:
    named = {id(queue) for space in state.namespaces.values() for queue in space.queues.values()}
    assert named == {id(queue) for queue in state.queues.values()}, "names and numbers lead to different queues"
    for number, queue in state.queues.items():
        assert queue.number == number < state.next_queue
        assert not queue.is_deleted


def _check_tables(state: BrokerState, queue: Queue) -> None:
    seen: set[int] = set()
    for table, expected in zip(
        (queue.ready, queue.scheduled, queue.in_flight, queue.dead),
        (State.READY, State.SCHEDULED, State.IN_FLIGHT, State.DEAD),
        strict=True,
    ):
        for sequence, message in table.items():
            name = _name(queue, message)
            assert sequence == message.sequence < state.next_sequence, f"{name} is filed under {sequence}"
            assert message.state is expected, f"{name} is {message.state!r} among {expected!r}"
            assert message.queue == queue.number, f"{name} believes to be in queue {message.queue}"
            assert sequence not in seen, f"{name} is in two tables"
            assert message.number <= sequence
            seen.add(sequence)
    assert queue.depth == len(seen) - len(queue.dead)
    assert queue.message_count == len(seen), (
        f"{queue.name}: {queue.message_count} are counted, but {len(seen)} messages are there"
    )


def _check_bytes(state: BrokerState, queue: Queue) -> None:
    held = sum(message.body_bytes for message in queue.messages())
    assert queue.body_bytes == held, f"{queue.name}: counts {queue.body_bytes} bytes and holds {held}"
    for table, counted in ((queue.ready, queue.ready_bytes), (queue.dead, queue.dead_bytes)):
        there = sum(message.body_bytes for message in table.values())
        assert counted == there, f"{queue.name}: counts {counted} bytes in a table that has {there}"


def _check_deliveries(queue: Queue) -> None:
    for message in queue.in_flight.values():
        assert message.deliveries is not None, f"{_name(queue, message)} is in flight and was never delivered"
        assert message.deliveries.is_open
    for message in queue.messages():
        deliveries = message.deliveries
        if deliveries is not None:
            assert deliveries.count >= deliveries.failure_count >= len(deliveries.failures[-1:]), _name(queue, message)
            assert deliveries.count >= 1
    for message in queue.dead.values():
        assert message.deaths, f"{_name(queue, message)} is dead and nobody knows why"


def _check_groups(queue: Queue) -> None:
    if queue.groups is None:
        assert not queue.is_attached or not queue.settings.ordered
        return
    unfinished: dict[str, list[int]] = {}
    for table in (queue.ready, queue.scheduled, queue.in_flight):
        for message in table.values():
            if message.envelope.group is not None:
                unfinished.setdefault(message.envelope.group, []).append(message.sequence)
    rows = {group: [message.sequence for message in row] for group, row in _rows(queue.groups).items()}
    expected = {group: sorted(sequences) for group, sequences in unfinished.items()}
    assert rows == expected, f"{queue.name}: the groups are {rows} and should be {expected}"


def _rows(groups: Groups) -> dict[str, list[Message]]:
    return {group: [message for part in row for message in part] for group, row in groups._rows.items()}


def _check_gone(queue: Queue) -> None:
    """Nothing that a queue is made of keeps messages that are gone, for nobody counts them: none where nothing is
    ready, and else no more than the slots that a line and the ages of its messages may have (see `_check_bucket`)."""
    gone = gone_in(queue)
    bound = 2 * len(queue.ready)
    assert len(gone) <= bound, f"{queue.name}: {len(gone)} that are gone are kept, and may be {bound}: {gone[:3]}"


def gone_in(queue: Queue) -> list[Message]:
    """The messages that a queue keeps alive though they are gone, wherever it does."""
    found: dict[int, Message] = {}
    seen = {id(queue.calendar), id(queue.woken)}
    left: list[object] = [queue]
    while left:
        for one in gc.get_referents(left.pop()):
            if isinstance(one, Message):
                if one.state is State.GONE:
                    found[one.sequence] = one
            elif gc.is_tracked(one) and not isinstance(one, type) and id(one) not in seen:
                seen.add(id(one))
                left.append(one)
    return list(found.values())


def _check_line(queue: Queue) -> None:
    """The line holds exactly the ready messages that may go out, each once, in order, and counts them rightly."""
    if not queue.is_attached:
        return
    firsts = {row[0].sequence for row in _rows(queue.groups).values()} if queue.groups is not None else set()
    expected = sorted(
        (-message.priority, message.sequence)
        for message in queue.ready.values()
        if queue.groups is None or message.envelope.group is None or message.sequence in firsts
    )
    if queue.line is None:
        assert not expected, f"{queue.name}: {len(expected)} messages are ready and there is no line"
        return
    assert isinstance(queue.line, FairLine) is queue.settings.fair, f"{queue.name}: a line of the wrong kind"
    assert isinstance(queue.line, TurnLine) is queue.settings.group_turns, f"{queue.name}: a line of the wrong kind"
    held = [(-message.priority, message.sequence) for message in queue.line.in_order()]
    if isinstance(queue.line, (FairLine, TurnLine)):
        assert [priority for priority, _ in held] == sorted(priority for priority, _ in held)
        held.sort()
    if isinstance(queue.line, FairLine):
        _check_fairness(queue, queue.line)
    else:
        _check_slots(queue, queue.line)
        oldest = queue.line.oldest()
        sequences = [sequence for _, sequence in expected]
        assert (None if oldest is None else oldest.sequence) == min(sequences, default=None), (
            f"{queue.name}: the oldest"
        )
    assert held == expected, f"{queue.name}: the line holds {held} and should hold {expected}"


def _check_slots(queue: Queue, line: ReadyLine) -> None:
    assert sorted(line._buckets) == sorted(-negated for negated in line._priorities)
    for priority, bucket in line._buckets.items():
        _check_bucket(f"{queue.name}: priority {priority}", bucket)


def _check_bucket(name: str, bucket: Bucket) -> None:
    live = sum(1 for _ in bucket.in_order())
    slots = len(bucket.returned) + sum(map(len, bucket.segments))
    assert (bucket.count, bucket.slots) == (live, slots), (
        f"{name} counts {bucket.count} messages in {bucket.slots} slots and has {live} in {slots}"
    )
    # Where there are more, they are swept a segment at a time.
    assert slots > SEGMENT or slots <= 2 * live, f"{name} has {slots} slots for {live} messages"


def _check_fairness(queue: Queue, line: FairLine) -> None:
    """It knows who has what in flight, no group it need not know, and no entry of a ranking lies too high."""
    assert queue.fair is line
    assert sorted(line._buckets) == sorted(-negated for negated in line._priorities)
    in_flight: Counter[Group] = Counter(message.envelope.group for message in queue.in_flight.values())
    assert line._in_flight == dict(in_flight), f"{queue.name}: believes {line._in_flight} to be in flight"
    for priority, bucket in line._buckets.items():
        name = f"{queue.name}: priority {priority}"
        assert bucket.count == sum(row.count for row in bucket._rows.values()), f"{name} counts wrongly"
        assert bucket._rows.keys() == bucket._turns._keys.keys() == bucket._ages._keys.keys()
        for group, row in bucket._rows.items():
            _check_bucket(f"{name}, group {group!r}", row)
            assert row.count, f"{name} keeps an empty row for group {group!r}"
            turn, age = bucket._turns._keys[group], bucket._ages._keys[group]
            assert turn <= (in_flight[group], row.turn), f"{name} would serve group {group!r} too late"
            assert age <= next(row.in_order()).sequence, f"{name} would find group {group!r} too young"
            assert (turn, group) in bucket._turns._entries
            assert (age, group) in bucket._ages._entries


def _check_deadlines(queue: Queue, leaving: list[Message]) -> None:
    """`leaving` are those whose time was over as they came: no deadline, they go when those who wait were served."""
    if not queue.is_attached:
        return
    for message in queue.messages():
        name = _name(queue, message)
        match message.state:
            case State.SCHEDULED:
                assert message.deadline_ms == message.ready_at_ms, f"{name} is due at one time and woken at another"
            case State.READY:
                expected = None if message in leaving and message.deadline_ms is None else message.expires_at_ms
                assert message.deadline_ms == expected, f"{name} will not expire when it should"
            case State.DEAD:
                assert message.deadline_ms is None, f"{name} is dead and still has a deadline"
        if message.deadline_ms is not None:
            assert _is_held(queue.calendar, message), f"{name} has a deadline that the calendar does not know"
    if queue.message_count and queue.settings.retention_ms is not None:
        assert queue.deadline_ms is not None, f"{queue.name}: nobody will look after its retention"
    if queue.deadline_ms is not None:
        assert _is_held(queue.calendar, queue), f"{queue.name}: the calendar does not know when to look after it"


def _is_held(calendar: Calendar, entry: Message | Queue) -> bool:
    assert entry.deadline_ms is not None
    near = calendar._ticks.get((entry.deadline_ms + TICK_MS - 1) >> TICK_SHIFT)
    far = calendar._coarse.get(entry.deadline_ms >> COARSE_SHIFT)
    if any(bucket is not None and bucket.get(entry.sequence) is entry for bucket in (near, far)):
        return True
    # Between two slices the rest of a bucket lies in an iterator, which cannot be looked into without using it up.
    return calendar._due is not None or calendar._spreading is not None


def _name(queue: Queue, message: Message) -> str:
    return f"{queue.name}: message {message.sequence} (number {message.number})"
