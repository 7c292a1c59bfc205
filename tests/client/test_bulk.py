"""How `put_many` cuts what it is given."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from smista.client.batch import Batch
from smista.client.bulk import batches, batches_as_they_come
from smista.client.publication import Publication
from smista.core.errors import InvalidArgument


def shown(batch: Batch) -> tuple[str | None, int]:
    return ("messages" if batch.messages is not None else batch.content_type), batch.count


def test_batches_are_as_many_as_asked_for() -> None:
    assert [shown(batch) for batch in batches([b"x"] * 7, 3, 10_000)] == [(None, 3), (None, 3), (None, 1)]


def test_batches_end_before_they_are_too_large() -> None:
    assert [batch.count for batch in batches([b"x" * 400] * 5, 100, 1_000)] == [2, 2, 1]


def test_one_that_is_too_large_goes_alone() -> None:
    assert [batch.count for batch in batches([b"x", b"y" * 5_000, b"z"], 100, 1_000)] == [1, 1, 1]


def test_nothing_makes_no_batch() -> None:
    assert list(batches([], 3, 1_000)) == []


def test_a_batch_holds_what_can_be_sent_alike_and_order_is_kept() -> None:
    mixed = [b"1", b"2", {"n": 3}, "4", Publication(5, priority=1), Publication(b"6", deduplication_id="six"), b"7"]
    found = list(batches(mixed, 100, 10_000))
    assert [shown(batch) for batch in found] == [
        (None, 2),
        ("application/json", 2),
        ("messages", 2),
        (None, 1),
    ]
    assert [batch.own_ids for batch in found] == [set(), set(), {1}, set()]


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        list(batches([b"1", object()], 10, 1_000))


async def test_an_async_source_that_never_waits_gives_full_batches() -> None:
    async def source() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield b"x"

    counts = [batch.count async for batch in batches_as_they_come(source(), 300, 1 << 20)]
    assert counts == [300, 300, 300, 100]


async def test_an_async_source_that_waits_has_its_messages_sent_meanwhile() -> None:
    more = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        await more.wait()
        yield b"3"

    arriving = batches_as_they_come(source(), 300, 1 << 20)
    first = await anext(arriving)
    assert first.bodies == [b"1", b"2"]
    more.set()
    assert (await anext(arriving)).bodies == [b"3"]
    with pytest.raises(StopAsyncIteration):
        await anext(arriving)


async def test_what_an_async_source_raises_comes_after_what_it_gave() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"1"
        raise LookupError("no more")

    arriving = batches_as_they_come(source(), 300, 1 << 20)
    assert (await anext(arriving)).bodies == [b"1"]
    with pytest.raises(LookupError, match="no more"):
        await anext(arriving)
