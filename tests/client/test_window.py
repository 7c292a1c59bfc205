import asyncio

import pytest

from smista.client.window import Window


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_there_is_room_until_the_count_is_reached() -> None:
    window = Window(2, 1_000)
    await window.enter(1, 10)
    await window.enter(1, 10)
    third = asyncio.create_task(window.enter(1, 10))
    await turns()
    assert not third.done()
    window.leave(1, 10)
    await third


async def test_there_is_room_until_the_bytes_are_reached() -> None:
    window = Window(100, 100)
    await window.enter(1, 90)
    second = asyncio.create_task(window.enter(1, 20))
    await turns()
    assert not second.done()
    window.leave(1, 90)
    await second


async def test_what_is_larger_than_the_window_goes_alone() -> None:
    window = Window(10, 100)
    await window.enter(50, 5_000)
    second = asyncio.create_task(window.enter(1, 1))
    await turns()
    assert not second.done()
    window.leave(50, 5_000)
    await second


async def test_first_come_first_served() -> None:
    window = Window(3, 1_000)
    await window.enter(3, 1)
    order: list[str] = []

    async def enter(name: str, count: int) -> None:
        await window.enter(count, 1)
        order.append(name)

    tasks = [asyncio.create_task(enter(name, count)) for name, count in (("large", 3), ("small", 1))]
    await turns()
    window.leave(2, 1)
    await turns()
    assert order == []  # the small one would fit, and waits behind the large one
    window.leave(1, 0)
    await turns()
    window.leave(3, 1)
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


async def test_one_that_stops_waiting_does_not_hold_up_the_next() -> None:
    window = Window(1, 1_000)
    await window.enter(1, 1)
    first, second = (asyncio.create_task(window.enter(1, 1)) for _ in range(2))
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    window.leave(1, 1)
    await second


async def test_room_granted_to_one_that_was_cancelled_goes_to_the_next() -> None:
    window = Window(1, 1_000)
    await window.enter(1, 1)
    first, second = (asyncio.create_task(window.enter(1, 1)) for _ in range(2))
    await turns()
    window.leave(1, 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
