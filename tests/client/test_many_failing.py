"""When one of many batches under way fails, its error is raised, and nothing is logged for the others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from smista import AsyncClient, Client
from smista.errors import QueueNotFound
from tests.client.fake_broker import FakeBroker
from tests.waiting import until

UNDER_WAY = 30
ACCEPTED = {"result": {"accepted": 1}}
REFUSED = {"error": {"code": "queue_not_found", "message": "It was deleted."}}


class Interrupted(BaseException):
    """As Ctrl-C: nothing that code expects."""


def raising(error: BaseException) -> Callable[[int], object]:
    def on_progress(_: int) -> None:
        raise error

    return on_progress


async def put(broker: FakeBroker, *, is_sync: bool, on_progress: Callable[[int], object] | None) -> BaseException:
    """What `put_many` of so many batches raises."""
    batches: dict[str, Any] = {"messages": range(UNDER_WAY), "batch_count": 1, "on_progress": on_progress}
    if is_sync:
        client = Client(broker.address, retry_for_ms=0)
        try:
            await asyncio.to_thread(client.put_many, "orders", **batches)
        except (Exception, Interrupted) as error:
            return error.with_traceback(None)  # its frames hold what was under way
        finally:
            await asyncio.to_thread(client.close)
    else:
        async with AsyncClient(broker.address, retry_for_ms=0) as other:
            try:
                await other.put_many("orders", **batches)
            except (Exception, Interrupted) as error:
                return error.with_traceback(None)
    raise AssertionError("nothing was raised")


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    found = [record.getMessage() for record in records if record.name == "asyncio"]
    assert not found, f"{len(found)} lines, as: {found[0]}"


async def fake(answers: Callable[[int], dict[str, Any]], broker: FakeBroker) -> None:
    """Answer nothing before all is under way."""
    await until(lambda: len(broker.requests) == UNDER_WAY)
    for number, request in enumerate(broker.requests):
        await broker.push({"id": request["id"], **answers(number)})


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("error", [LookupError("no room on the screen"), Interrupted()], ids=["error", "interrupt"])
async def test_what_stops_put_many_is_the_only_error(is_sync: bool, error: BaseException) -> None:
    async with FakeBroker(lambda request: None) as broker:
        putting = asyncio.create_task(put(broker, is_sync=is_sync, on_progress=raising(error)))
        await fake(lambda number: REFUSED if number else ACCEPTED, broker)
        assert await putting is error


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
async def test_a_queue_deleted_in_the_middle_is_one_error(is_sync: bool) -> None:
    async with FakeBroker(lambda request: None) as broker:
        putting = asyncio.create_task(put(broker, is_sync=is_sync, on_progress=None))
        await fake(lambda number: ACCEPTED if number < 10 else REFUSED, broker)
        error = await putting
    assert isinstance(error, QueueNotFound)
    assert error.__notes__ == ["10 messages before these were accepted."]


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
async def test_a_broker_that_goes_away_in_the_middle_is_one_error(
    is_sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeBroker(lambda request: None) as broker:
        putting = asyncio.create_task(put(broker, is_sync=is_sync, on_progress=None))
        await until(lambda: len(broker.requests) == UNDER_WAY)
    error = await putting
    assert "it may or may not have happened" in str(error)
    assert len([record for record in caplog.records if record.name == "smista.client"]) <= 2
