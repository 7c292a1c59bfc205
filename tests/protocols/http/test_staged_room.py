"""What may be staged by everybody together, and what one stream may unfold to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from smista.engine import Broker, BrokerSettings
from smista.errors import LowDisk, LowMemory
from smista.log import MemoryLog
from smista.protocols.http import staged_rows
from smista.protocols.http.errors import RequestTooLarge
from smista.protocols.http.staged_files import Stage
from smista.protocols.http.staging import Staging
from tests.protocols.http.arrow_reader import stream

LARGE = 1 << 30


def rows(count: int, size: int = 100) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array([b"x" * size] * count, pa.binary())})


async def these(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog(), BrokerSettings(memory_bytes_max=1_000_000)) as broker:
        await broker.declare_queue("q")
        yield broker


async def test_all_that_is_staged_has_a_limit(broker: Broker, tmp_path: Path) -> None:
    data = stream(rows(10))
    staging = Staging(lambda: broker, tmp_path, total_bytes_max=2 * len(data))
    await staging.stage(Stage("job", "1", 0, 0), these(data), LARGE)
    await staging.stage(Stage("other", "1", 0, 0), these(data), LARGE)
    with pytest.raises(LowDisk, match="staged_total_bytes_max"):
        await staging.stage(Stage("job", "2", 0, 0), these(data), LARGE)
    # What was refused takes no room, and what is discarded or committed gives it back.
    await staging.discard("other", "1")
    await staging.stage(Stage("job", "2", 0, 0), these(data), LARGE)
    await staging.commit("job", "1", [(0, 0)], queue="q")
    await staging.stage(Stage("job", "3", 0, 0), these(data), LARGE)
    with pytest.raises(LowDisk):
        await staging.stage(Stage("job", "4", 0, 0), these(data), LARGE)
    await staging.close()


async def test_what_was_staged_before_a_restart_counts(broker: Broker, tmp_path: Path) -> None:
    data = stream(rows(10))
    before = Staging(lambda: broker, tmp_path)
    await before.stage(Stage("job", "1", 0, 0), these(data), LARGE)
    await before.close()
    staging = Staging(lambda: broker, tmp_path, total_bytes_max=len(data))
    await staging.sweep()
    with pytest.raises(LowDisk):
        await staging.stage(Stage("job", "2", 0, 0), these(data), LARGE)
    await staging.close()


async def test_nothing_is_staged_where_the_disk_is_nearly_full(broker: Broker, tmp_path: Path) -> None:
    staging = Staging(lambda: broker, tmp_path, disk_free_bytes_min=1 << 60)
    with pytest.raises(LowDisk, match="are free on the disk"):
        await staging.stage(Stage("job", "1", 0, 0), these(stream(rows(1))), LARGE)
    assert not await asyncio.to_thread(lambda: list(tmp_path.rglob("*.*")))
    await staging.close()


async def test_a_batch_of_rows_has_a_limit_of_its_own(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_rows, "BATCH_BYTES_MAX", 50_000)
    staging = Staging(lambda: broker, tmp_path)
    small, large = stream(*[rows(100)] * 10, compression="zstd"), stream(rows(1_000), compression="zstd")
    await staging.stage(Stage("job", "1", 0, 0), these(small), LARGE)
    with pytest.raises(RequestTooLarge, match="write smaller batches"):
        await staging.stage(Stage("job", "1", 0, 1), these(large), LARGE)
    await staging.close()


async def test_rows_of_nothing_have_a_limit(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "ROWS_MAX", 1_000)
    staging = Staging(lambda: broker, tmp_path)
    with pytest.raises(RequestTooLarge, match="1000 rows"):
        await staging.stage(Stage("job", "1", 0, 0), these(stream(rows(600, 0), rows(600, 0))), LARGE)
    await staging.close()


async def test_a_commit_that_would_not_fit_into_memory_is_refused_whole(broker: Broker, tmp_path: Path) -> None:
    staging = Staging(lambda: broker, tmp_path)
    await staging.stage(Stage("job", "1", 0, 0), these(stream(rows(5_000, 0))), LARGE)
    with pytest.raises(LowMemory, match="memory_bytes_max"):
        await staging.commit("job", "1", [(0, 0)], queue="q")
    assert broker.stats("q").depth == 0
    assert broker.find_commit("job", "1") is None
    await staging.close()
