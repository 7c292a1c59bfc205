"""How `put_many` cuts what it is given."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from smista.client.batch import Batch
from smista.client.bulk import Batches, BatchesAsTheyCome
from smista.client.publication import Publication
from smista.errors import InvalidArgument


def shown(batch: Batch) -> tuple[str | None, int]:
    return ("messages" if batch.messages is not None else batch.content_type), batch.count


def test_batches_are_as_many_as_asked_for() -> None:
    assert [shown(batch) for batch in Batches([b"x"] * 7, 3, 10_000)] == [(None, 3), (None, 3), (None, 1)]


def test_batches_end_before_they_are_too_large() -> None:
    assert [batch.count for batch in Batches([b"x" * 400] * 5, 100, 1_000)] == [2, 2, 1]


def test_one_that_is_too_large_goes_alone() -> None:
    assert [batch.count for batch in Batches([b"x", b"y" * 5_000, b"z"], 100, 1_000)] == [1, 1, 1]


def test_nothing_makes_no_batch() -> None:
    assert list(Batches([], 3, 1_000)) == []


def test_a_batch_holds_what_can_be_sent_alike_and_order_is_kept() -> None:
    mixed = [b"1", b"2", {"n": 3}, "4", Publication(5, priority=1), Publication(b"6", deduplication_id="six"), b"7"]
    found = list(Batches(mixed, 100, 10_000))
    assert [shown(batch) for batch in found] == [
        (None, 2),
        ("application/json", 2),
        ("messages", 2),
        (None, 1),
    ]
    assert [batch.own_ids for batch in found] == [set(), set(), {1}, set()]


def test_what_is_no_message_is_refused_in_its_place() -> None:
    [first, second] = Batches([object(), b"1", object(), b"2", Publication(3, headers={"x": object()}), "4"], 10, 1_000)
    assert (first.bodies, list(first.refused), first.total) == ([b"1", b"2"], [0, 2, 4], 5)
    assert (second.bodies, second.refused) == ([b'"4"'], {})
    assert [first.place_of(0), first.place_of(1)] == [1, 3]
    assert all(isinstance(error, InvalidArgument) for error in first.refused.values())


def test_however_many_are_refused_a_batch_has_an_end() -> None:
    assert [batch.total for batch in Batches([object()] * 25, 10, 1_000)] == [10, 10, 5]


def test_what_a_source_raises_ends_it_after_what_it_gave() -> None:
    def source() -> Iterator[bytes]:
        yield b"1"
        raise LookupError("no more")

    found = Batches(source(), 300, 1 << 20)
    assert [batch.bodies for batch in found] == [[b"1"]]
    assert isinstance(found.failure, LookupError)


async def test_an_async_source_that_never_waits_gives_full_batches() -> None:
    async def source() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield b"x"

    counts = [batch.count async for batch in BatchesAsTheyCome(source(), 300, 1 << 20)]
    assert counts == [300, 300, 300, 100]


async def test_an_async_source_that_waits_has_its_messages_sent_meanwhile() -> None:
    more = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        await more.wait()
        yield b"3"

    arriving = aiter(BatchesAsTheyCome(source(), 300, 1 << 20))
    first = await anext(arriving)
    assert first.bodies == [b"1", b"2"]
    more.set()
    assert (await anext(arriving)).bodies == [b"3"]
    with pytest.raises(StopAsyncIteration):
        await anext(arriving)


async def test_what_an_async_source_raises_ends_it_after_what_it_gave() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"1"
        raise LookupError("no more")

    found = BatchesAsTheyCome(source(), 300, 1 << 20)
    assert [batch.bodies async for batch in found] == [[b"1"]]
    assert isinstance(found.failure, LookupError)
