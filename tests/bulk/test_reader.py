"""How many may read the log: counted from when they ask, however many ask at the same time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from smista.bulk.frames import Planned, Reply
from smista.bulk.reader import PLANS_MAX, READERS_MAX, LogReader
from smista.errors import TooManyReaders
from smista.service.log_reading import MakePlan, Plan


async def test_a_place_is_taken_from_when_it_is_asked_for() -> None:
    reader = LogReader()
    with contextlib.ExitStack() as places:
        for _ in range(READERS_MAX):
            places.enter_context(reader.place())
        with pytest.raises(TooManyReaders), reader.place():
            pass
        assert reader.measures.readers == READERS_MAX
    assert reader.measures.readers == 0


async def test_a_place_stays_taken_for_whom_the_process_writes_to() -> None:
    reader = LogReader()
    with reader.place() as place:
        place.is_handed_over = True
    assert reader.measures.readers == 1


async def test_only_so_many_plans_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    is_made = asyncio.Event()

    async def reply(self: LogReader, request: MakePlan, connection: None) -> Reply:
        await is_made.wait()
        return Planned(request.id, Plan(1, 1, partitions=[]))

    monkeypatch.setattr(LogReader, "_request", reply)
    reader = LogReader()

    def plan() -> asyncio.Future[Plan]:
        return asyncio.ensure_future(reader.plan(MakePlan(0, 1, 1, 1, 1, 1)))

    plans = [plan() for _ in range(PLANS_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyReaders):
        await plan()
    is_made.set()
    assert len(await asyncio.gather(*plans)) == PLANS_MAX
    assert await plan() == Plan(1, 1, partitions=[])
