"""What a wait says that was in vain."""

from __future__ import annotations

import asyncio

import pytest

from tests import waiting
from tests.waiting import answers, eventually, until


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.01)


def test_it_says_what_it_looked_for_and_what_it_found() -> None:
    depth = [1]
    with pytest.raises(AssertionError, match=r"never happened: .*lambda: len\(depth\) > 1.*the last time: False"):
        eventually(lambda: len(depth) > 1, patience_s=0.01)
    with pytest.raises(AssertionError, match=r"never happened: .*list.clear.*the last time: None\nthis helps"):
        eventually([].clear, patience_s=0.01, show=lambda: "this helps")


@pytest.mark.usefixtures("impatient")
async def test_so_it_does_on_a_loop() -> None:
    depth = [1]
    with pytest.raises(AssertionError, match=r"lambda: len\(depth\) > 1"):
        await until(lambda: len(depth) > 1)


@pytest.mark.usefixtures("impatient")
async def test_so_it_does_where_it_has_to_ask() -> None:
    async def depth() -> int:
        return 3

    with pytest.raises(AssertionError, match=r"lambda depth: depth > 3.*the last time: 3"):
        await answers(depth, lambda depth: depth > 3)


def test_it_ends_when_it_cannot_happen_any_more() -> None:
    with pytest.raises(AssertionError, match="it cannot happen any more"):
        eventually(lambda: False, as_long_as=lambda: False)


def test_what_happened_just_before_its_end_is_found() -> None:
    happened = []

    def is_alive() -> bool:
        happened.append("at the last moment")
        return False

    assert eventually(lambda: happened, as_long_as=is_alive) == ["at the last moment"]


async def test_what_is_there_for_one_turn_is_seen() -> None:
    here = []

    async def pass_by() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        here.append(1)
        await asyncio.sleep(0)
        here.clear()

    passing = asyncio.create_task(pass_by())
    await until(lambda: here)
    await passing
