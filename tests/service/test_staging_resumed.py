"""A commit whose intent is on disk comes to its end, whoever is gone: the service goes on with it when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from smista.core.staging import Commit, Row
from smista.engine import Broker
from smista.log import SqliteLog
from smista.service.service import Service
from smista.service.staging.batches import Staging
from smista.service.staging.files import Stage
from tests.protocols.http.arrow_reader import stream
from tests.waiting import until

ROWS = stream(pa.record_batch({"body": pa.array([b"1", b"2", b"3"], pa.binary())}))


async def these(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def opened(folder: Path) -> Broker:
    return await Broker.open(SqliteLog.open(folder / "log", reserve_bytes=0))


async def test_what_was_committed_and_not_published_is_published_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def for_ever(commit: Commit, rows: list[Row]) -> None:
        await asyncio.Event().wait()

    async with await opened(tmp_path) as broker:
        await broker.declaring.declare_queue("q")
        staging = Staging(broker, tmp_path / "staged")
        await staging.stage(Stage("job", "1", 0, 0), these(ROWS), 10_000)
        monkeypatch.setattr(broker.staging, "publish", for_ever)
        committing = asyncio.create_task(staging.commit("job", "1", [(0, 0)], queue="q"))
        await until(broker.staging.unfinished)
        await staging.close()
        await asyncio.gather(committing, return_exceptions=True)
    async with await opened(tmp_path) as broker:
        assert broker.statistics.stats("q").ready == 0
        service = Service(broker, staging=Staging(broker, tmp_path / "staged"))
        service.start()
        await until(lambda: not broker.staging.unfinished())
        assert broker.statistics.stats("q").ready == 3
        await until(lambda: not list((tmp_path / "staged").rglob("0.0")))
        await service.close()
