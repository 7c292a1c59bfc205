"""While a batch's files are removed nothing else is done with it: an intent, or a new part, would outlive its rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from smista.engine import Broker
from smista.errors import StageBusy
from smista.log import MemoryLog
from smista.service.staging import batches as staging_module
from smista.service.staging.batches import Staging
from smista.service.staging.files import Stage, StagedFiles, StageWriter
from tests.engine.bench import KeptLog
from tests.protocols.http.arrow_reader import stream
from tests.waiting import PATIENCE_S, until

ROWS = stream(pa.record_batch({"body": pa.array([b"1", b"2"], pa.binary())}))


async def these(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


class Removing:
    """Files are removed when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.begun = 0
        really = StagedFiles.discard

        def slowly(files: StagedFiles, job: str, batch: str) -> int:
            self.begun += 1
            assert self.may_go_on.wait(PATIENCE_S)
            return really(files, job, batch)

        monkeypatch.setattr(StagedFiles, "discard", slowly)


@pytest.fixture
def removing(monkeypatch: pytest.MonkeyPatch) -> Removing:
    return Removing(monkeypatch)


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Staging]:
    """Batch 1 of a job is staged, with one part."""
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("q")
        staging = Staging(broker, folder)
        await staging.stage(Stage("job", "1", 0, 0), these(ROWS), 10_000)
        yield staging
        await staging.close()


async def refuses_new_things(staging: Staging, job: str, batch: str) -> None:
    for call in (staging.stage(Stage(job, batch, 0, 1), these(ROWS), 1000), staging.discard(job, batch)):
        with pytest.raises(StageBusy):
            await call


async def test_nothing_else_is_done_with_a_batch_that_is_being_discarded(tmp_path: Path, removing: Removing) -> None:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("q")
        staging = Staging(broker, tmp_path)
        discarding = asyncio.create_task(staging.discard("job", "1"))
        await until(lambda: removing.begun)
        await refuses_new_things(staging, "job", "1")
        with pytest.raises(StageBusy, match="discarded"):
            await staging.commit("job", "1", [(0, 0)], queue="q")
        assert broker.staging.find("job", "1") is None
        # Whoever asked for it is gone, and the files are still being removed.
        discarding.cancel()
        await asyncio.gather(discarding, return_exceptions=True)
        with pytest.raises(StageBusy):
            await staging.commit("job", "1", [(0, 0)], queue="q")
        removing.may_go_on.set()
        await until(lambda: not staging._discarding)
        await staging.close()


async def test_nor_with_one_whose_files_go_because_it_is_committed(tmp_path: Path, removing: Removing) -> None:
    async with staged(tmp_path) as staging:
        first = asyncio.create_task(staging.commit("job", "1", [(0, 0)], queue="q"))
        await until(lambda: removing.begun)
        await refuses_new_things(staging, "job", "1")
        again = asyncio.create_task(staging.commit("job", "1", [(0, 0)], queue="q"))
        removing.may_go_on.set()
        assert (await first).published == (await again).published == 2
        assert (await again).is_repeated


async def test_nor_with_one_whose_files_go_because_it_was_committed_before(tmp_path: Path, removing: Removing) -> None:
    async with staged(tmp_path) as staging:
        removing.may_go_on.set()
        await staging.commit("job", "1", [(0, 0)], queue="q")
        removing.may_go_on.clear()
        removing.begun = 0
        repeated = [asyncio.create_task(staging.commit("job", "1", [(0, 0)], queue="q")) for _ in range(3)]
        await until(lambda: removing.begun)
        await refuses_new_things(staging, "job", "1")
        # Whoever asked is gone, and the files are still being removed.
        repeated[0].cancel()
        await asyncio.gather(repeated[0], return_exceptions=True)
        await refuses_new_things(staging, "job", "1")
        removing.may_go_on.set()
        assert [done.published for done in await asyncio.gather(*repeated[1:])] == [2, 2]
        assert removing.begun == 1, "they are removed once for all who wait for that"


@pytest.mark.parametrize("other", [b"BB", b"B"], ids=["longer", "shorter"])
async def test_what_is_still_on_its_way_in_when_its_batch_is_committed_comes_too_late(
    tmp_path: Path, other: bytes
) -> None:
    log, go_on = KeptLog(), asyncio.Event()

    async def slowly(data: bytes) -> AsyncIterator[bytes]:
        yield data[:10]
        await go_on.wait()
        yield data[10:]

    async with await Broker.open(log) as broker:
        await broker.declaring.declare_queue("q")
        staging, stage = Staging(broker, tmp_path), Stage("job", "1", 0, 0)
        await staging.stage(stage, these(ROWS), 10_000)
        again = stream(pa.record_batch({"body": pa.array([other] * len(other) * 2, pa.binary())}))
        late = asyncio.create_task(staging.stage(stage, slowly(again), 10_000))
        await until(lambda: ("job", "1") in staging._staging)
        log.gate.clear()
        committing = asyncio.create_task(staging.commit("job", "1", [(0, 0)], queue="q"))
        await until(lambda: broker.staging.find("job", "1"))
        go_on.set()
        await asyncio.wait({late})
        log.gate.set()
        with pytest.raises(StageBusy, match="is being committed"):
            await late
        assert (await committing).published == 2
        assert [one.body for one in await broker.receiving.receive("q", 10)] == [b"1", b"2"]
        await staging.close()


async def test_closing_waits_until_files_are_removed(tmp_path: Path, removing: Removing) -> None:
    async with staged(tmp_path) as staging:
        committing = asyncio.create_task(staging.commit("job", "1", [(0, 0)], queue="q"))
        await until(lambda: removing.begun)
        closing = asyncio.create_task(staging.close())
        await asyncio.wait({committing})
        assert not closing.done()
        removing.may_go_on.set()
        await closing
        assert not staging.files.batches()


async def test_small_chunks_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    really = StageWriter.write

    def write(writer: StageWriter, data: bytes) -> None:
        written.append(len(data))
        really(writer, data)

    monkeypatch.setattr(StageWriter, "write", write)
    monkeypatch.setattr(staging_module, "WRITE_BYTES", 100)
    async with await Broker.open(MemoryLog()) as broker:
        staging = Staging(broker, tmp_path)
        chunks = [ROWS[start : start + 30] for start in range(0, len(ROWS), 30)]
        load = await staging.stage(Stage("job", "1", 0, 0), these(*chunks), 10_000)
        assert (load.rows, sum(written)) == (2, len(ROWS))
        *together, rest = written
        assert together
        assert set(together) == {120}, "what four chunks hold, again and again"
        assert rest < 120
        await staging.close()
