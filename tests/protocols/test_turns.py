"""How long input may keep the loop: a turn has a bound, everything is done in order, and the quiet pass the busy."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.protocols.turns import SLICE_S, TURN_S, Share, Turns
from tests.waiting import until

STEPS_OF_A_REQUEST = 6
"""In how many turns a publish is read, put into a block, written behind the one before it, and answered."""
OTHERS_WAIT_S_MAX = 0.04


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Connection:
    """Pieces of work come in; each takes its time, and is done in order."""

    def __init__(self, turns: Turns, clock: Clock) -> None:
        self._clock = clock
        self.todo: deque[float] = deque()
        self.share = Share(turns, self.go_on)
        self.worked_s = 0.0
        self.done = 0
        self.is_reading = True

    def receive(self, *pieces_s: float) -> None:
        assert self.is_reading
        self.todo += pieces_s
        self.go_on()

    def go_on(self) -> None:
        self.is_reading = False
        if not self.share.begin():
            return
        while self.todo:
            piece_s = self.todo.popleft()
            self._clock.now_s += piece_s
            self.worked_s += piece_s
            self.done += 1
            if self.todo and self.share.is_over():
                break
        self.is_reading = not self.share.end()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_little_is_done_at_once(clock: Clock) -> None:
    one = Connection(Turns(clock), clock)
    one.receive(SLICE_S / 4, SLICE_S / 4)
    assert one.done == 2
    assert one.is_reading


async def test_much_is_spread_over_turns(clock: Clock) -> None:
    one = Connection(Turns(clock), clock)
    one.receive(*[SLICE_S / 2] * 100)
    per_turn = []
    while one.todo:
        before = one.worked_s
        await asyncio.sleep(0)
        per_turn.append(one.worked_s - before)
    assert one.done == 100
    assert max(per_turn) <= TURN_S + SLICE_S
    assert len(per_turn) > 10


async def test_all_together_have_one_turn(clock: Clock) -> None:
    turns = Turns(clock)
    many = [Connection(turns, clock) for _ in range(50)]
    for one in many:
        one.receive(SLICE_S, SLICE_S)
    assert sum(one.done for one in many) <= TURN_S / SLICE_S + 1
    while any(one.todo for one in many):
        before = clock.now_s
        await asyncio.sleep(0)
        assert clock.now_s - before <= TURN_S + SLICE_S
    assert all(one.done == 2 and one.is_reading for one in many)


async def test_the_quiet_pass_the_busy(clock: Clock) -> None:
    turns = Turns(clock)
    busy = [Connection(turns, clock) for _ in range(100)]
    for one in busy:
        one.receive(*[SLICE_S] * 50)
    for _ in range(200):
        await asyncio.sleep(0)
    quiet = Connection(turns, clock)
    quiet.receive(SLICE_S / 10)
    turn_count = 0
    while quiet.todo:
        await asyncio.sleep(0)
        turn_count += 1
    assert turn_count <= 2


async def test_a_request_of_many_turns_is_answered_soon_beside_a_flood(clock: Clock) -> None:
    """A hostile client may cost another one 50 ms; what is not input, as serving and sealing, needs its time too."""
    turns = Turns(clock)
    flood, quiet = Connection(turns, clock), Connection(turns, clock)
    flood.receive(*[SLICE_S / 2] * 1_000)
    began_s = clock.now_s
    for step in range(1, STEPS_OF_A_REQUEST + 1):
        quiet.receive(SLICE_S / 10)
        await until(lambda step=step: quiet.done == step)  # type: ignore[misc]  # mypy cannot infer such a lambda
        await asyncio.sleep(0)
    assert flood.todo, "the flood was over too early"
    assert clock.now_s - began_s < OTHERS_WAIT_S_MAX


async def test_what_was_used_long_ago_is_forgotten(clock: Clock) -> None:
    turns = Turns(clock)
    once_busy, busy = Connection(turns, clock), Connection(turns, clock)
    once_busy.receive(*[SLICE_S] * 500)
    await until(lambda: not once_busy.todo)
    clock.now_s += 60.0
    await asyncio.sleep(0)
    busy.receive(*[SLICE_S] * 500)
    for _ in range(20):
        await asyncio.sleep(0)
    once_busy.receive(SLICE_S)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not once_busy.todo
    assert busy.todo


async def test_nobody_waits_for_more_turns_than_there_are_others_before_it(clock: Clock) -> None:
    """However many keep coming, each of them new."""
    turns = Turns(clock)
    before = [Connection(turns, clock) for _ in range(20)]
    for one in before:
        one.receive(*[SLICE_S] * 3)
    busy = Connection(turns, clock)
    busy.share.used_s = 10.0
    busy.receive(SLICE_S)
    for _ in range(len(before) + 1):
        for _ in range(5):
            Connection(turns, clock).receive(SLICE_S)
        await asyncio.sleep(0)
    assert busy.done


@given(
    st.lists(st.tuples(st.integers(0, 4), st.lists(st.floats(0.0, 3 * SLICE_S), min_size=1, max_size=20)), max_size=30)
)
def test_everything_is_done_and_a_turn_has_a_bound(arrivals: list[tuple[int, list[float]]]) -> None:
    async def run() -> None:
        clock = Clock()
        turns = Turns(clock)
        connections = [Connection(turns, clock) for _ in range(5)]
        sent = [0] * 5
        for number, pieces_s in arrivals:
            while not connections[number].is_reading:
                before = clock.now_s
                await asyncio.sleep(0)
                # One piece may go over the end of a slice, and one slice over the end of a turn.
                assert clock.now_s - before <= TURN_S + SLICE_S + 3 * SLICE_S + 1e-9
            connections[number].receive(*pieces_s)
            sent[number] += len(pieces_s)
        await until(lambda: all(one.is_reading for one in connections))
        assert [one.done for one in connections] == sent
        await asyncio.sleep(0)
        assert turns._end_s is None

    asyncio.run(run())


async def test_a_long_flood_leaves_nothing_behind(clock: Clock) -> None:
    turns = Turns(clock)
    busy = [Connection(turns, clock) for _ in range(10)]
    for _ in range(300):
        for one in busy:
            if one.is_reading:
                one.receive(*[SLICE_S] * 3)
        await asyncio.sleep(0)
        assert len(turns._least) <= 200
        assert len(turns._longest) <= 200


async def test_after_a_long_step_those_who_have_used_much_rest_and_the_quiet_do_not(clock: Clock) -> None:
    turns = Turns(clock)
    busy, quiet = Connection(turns, clock), Connection(turns, clock)
    long_s = 5 * TURN_S
    busy.receive(*[long_s] * 3)
    assert busy.done == 1
    for turn in range(1, 6):
        await asyncio.sleep(0)
        quiet.receive(SLICE_S / 100)
        assert (quiet.done, busy.done) == (turn, 1)
    await until(lambda: busy.done == 3)
    # Neither where all of it was done: what comes next has to wait.
    busy.receive(SLICE_S)
    assert busy.done == 3
    await until(lambda: busy.done == 4)
