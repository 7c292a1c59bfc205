"""What may be staged by everybody together, and what one stream may unfold to."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from smista.engine import Broker, BrokerSettings
from smista.errors import BrokerError, InvalidRequest, LowDisk, LowMemory, RequestTooLarge
from smista.log import MemoryLog
from smista.service.staging import batches as staging_module
from smista.service.staging import rows as staged_rows
from smista.service.staging.batches import Staging
from smista.service.staging.files import HEAD_BYTES, Stage, StagedFiles
from smista.service.staging.room import StagedRoom
from tests.protocols.http.arrow_reader import stream
from tests.waiting import PATIENCE_S, until

LARGE = 1 << 30


def rows(count: int, size: int = 100) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array([b"x" * size] * count, pa.binary())})


async def these(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog(), BrokerSettings(memory_bytes_max=1_000_000)) as broker:
        await broker.declaring.declare_queue("q")
        yield broker


async def test_all_that_is_staged_has_a_limit(broker: Broker, tmp_path: Path) -> None:
    data = stream(rows(10))
    staging = Staging(broker, tmp_path, total_bytes_max=2 * len(data))
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
    before = Staging(broker, tmp_path)
    await before.stage(Stage("job", "1", 0, 0), these(data), LARGE)
    await before.close()
    staging = Staging(broker, tmp_path, total_bytes_max=len(data))
    with pytest.raises(LowDisk):
        await staging.stage(Stage("job", "2", 0, 0), these(data), LARGE)
    await staging.close()


async def test_a_part_that_is_sent_again_takes_its_room_once(broker: Broker, tmp_path: Path) -> None:
    data = stream(rows(10))
    staging = Staging(broker, tmp_path, total_bytes_max=2 * len(data))
    for _ in range(4):
        await staging.stage(Stage("job", "1", 0, 0), these(data), LARGE)
    await staging.stage(Stage("job", "1", 0, 1), these(data), LARGE)
    with pytest.raises(LowDisk):
        await staging.stage(Stage("job", "1", 0, 1), these(data), LARGE)
    await staging.discard("job", "1")
    await staging.stage(Stage("job", "1", 0, 1), these(data), LARGE)
    await staging.close()


async def test_a_batch_that_goes_while_a_sweep_looks_gives_its_room_back(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stream(rows(10))
    staging = Staging(broker, tmp_path, total_bytes_max=len(data))
    await staging.stage(Stage("job", "1", 0, 0), these(data), LARGE)
    has_looked, may_go_on = threading.Event(), threading.Event()
    really = staging.files.batches

    def slowly() -> object:
        found = really()
        has_looked.set()
        assert may_go_on.wait(PATIENCE_S)
        return found

    monkeypatch.setattr(staging.files, "batches", slowly)
    sweeping = asyncio.create_task(staging.sweep())
    await until(has_looked.is_set)
    await staging.discard("job", "1")
    may_go_on.set()
    await sweeping
    await staging.stage(Stage("job", "2", 0, 0), these(data), LARGE)
    await staging.close()


def test_a_job_that_goes_while_all_are_looked_for_is_left_out(tmp_path: Path) -> None:
    staged = StagedFiles(tmp_path, StagedRoom(bytes_max=LARGE, disk_free_bytes_min=0))
    for job in "ab":
        staged.batch_folder(job, "1").mkdir(parents=True)
    looked_for = staged._folders()
    next(looked_for)
    for job in "ab":
        shutil.rmtree(tmp_path / f"job-{job}")
    assert list(looked_for) == []


class Clients:
    """They do whatever comes to their minds, all at once."""

    def __init__(self, staging: Staging, draw: random.Random) -> None:
        self._staging = staging
        self._draw = draw
        self._batch = 0

    async def act(self) -> None:
        with contextlib.suppress(BrokerError, Gone):
            await self._act()

    async def _act(self) -> None:
        draw, job, batch = self._draw, self._draw.choice("ab"), str(self._batch + self._draw.randrange(2))
        match draw.choice(["stage"] * 8 + ["discard", "commit", "sweep", "next"]):
            case "stage":
                await self._stage(Stage(job, batch, draw.randrange(2), 0))
            case "discard":
                await self._staging.discard(job, batch)
            case "commit":
                await self._staging.commit(job, batch, [(0, 0)], queue="q")
            case "sweep":
                await self._staging.sweep()
            case _:
                self._batch += 1  # what was committed cannot be again

    async def _stage(self, stage: Stage) -> None:
        draw = self._draw
        data = stream(rows(draw.randrange(1, 20)))
        cut = draw.randrange(len(data))
        chunks = draw.choice([these(data[:cut], data[cut:])] * 4 + [these(data[:cut]), leaving(data[:cut])])
        staging = asyncio.create_task(self._staging.stage(stage, chunks, LARGE))
        if draw.random() < 0.3:
            await asyncio.sleep(draw.random() / 100)
            staging.cancel()
        await asyncio.wait({staging})
        if not staging.cancelled():
            await staging


class Gone(Exception):
    """The client is."""


async def leaving(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk
    raise Gone


def on_disk_bytes(folder: Path) -> int:
    return sum(max(0, file.stat().st_size - HEAD_BYTES) for file in folder.rglob("*.*") if file.is_file())


async def has_counted(staging: Staging, folder: Path) -> None:
    await until(lambda: staging._room.total_bytes == on_disk_bytes(folder))


@pytest.mark.parametrize("seed", range(8))
async def test_at_rest_what_counts_is_what_is_on_disk(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(staging_module, "WRITE_BYTES", 500)
    total_bytes_max = draw.choice([5_000, LARGE])
    for _ in range(3):  # each goes on with what the one before it has left
        staging = Staging(broker, tmp_path, expires_ms=draw.choice([1, 100_000]), total_bytes_max=total_bytes_max)
        await staging._counted()  # nobody else may ask for that: who stages may be gone before, or nobody stages
        clients = Clients(staging, draw)
        for _ in range(15):
            await asyncio.gather(*(clients.act() for _ in range(draw.randrange(1, 8))))
            await has_counted(staging, tmp_path)
        await staging.close()


async def test_nothing_is_staged_where_the_disk_is_nearly_full(broker: Broker, tmp_path: Path) -> None:
    staging = Staging(broker, tmp_path, disk_free_bytes_min=1 << 60)
    with pytest.raises(LowDisk, match="are free on the disk"):
        await staging.stage(Stage("job", "1", 0, 0), these(stream(rows(1))), LARGE)
    assert not await asyncio.to_thread(lambda: list(tmp_path.rglob("*.*")))
    await staging.close()


async def test_a_batch_of_rows_has_a_limit_of_its_own(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_rows, "BATCH_BYTES_MAX", 50_000)
    staging = Staging(broker, tmp_path)
    small, large = stream(*[rows(100)] * 10, compression="zstd"), stream(rows(1_000), compression="zstd")
    await staging.stage(Stage("job", "1", 0, 0), these(small), LARGE)
    with pytest.raises(RequestTooLarge, match="write smaller batches"):
        await staging.stage(Stage("job", "1", 0, 1), these(large), LARGE)
    await staging.close()


@pytest.mark.parametrize("is_sound", [True, False])
async def test_what_a_survey_unfolds_counts_as_memory_until_it_is_over(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_sound: bool
) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()
    really = staged_rows._check_batch

    def slowly(pyarrow: object, batch: object, before: int) -> None:
        has_begun.set()
        assert may_go_on.wait(PATIENCE_S)
        really(pyarrow, batch, before)
        if not is_sound:
            raise InvalidRequest("this will not do")

    monkeypatch.setattr(staged_rows, "_check_batch", slowly)
    staging = Staging(broker, tmp_path)
    large = stream(rows(9_000), compression="zstd")
    assert len(large) < 100_000
    before = held(broker)
    staged = asyncio.create_task(staging.stage(Stage("job", "1", 0, 0), these(large), LARGE))
    await until(has_begun.is_set)
    assert held(broker) - before > 900_000
    may_go_on.set()
    with contextlib.nullcontext() if is_sound else pytest.raises(InvalidRequest):
        await staged
    assert held(broker) == before
    await staging.close()


async def test_what_a_commit_unfolds_counts_as_memory_until_it_is_over(tmp_path: Path) -> None:
    async with await Broker.open(MemoryLog(), BrokerSettings(log_retention_bytes=0)) as broker:
        await broker.declaring.declare_queue("q")
        staging = Staging(broker, tmp_path)
        # Alike, so that next to nothing of them is left to hold when they are published.
        await staging.stage(Stage("job", "1", 0, 0), these(stream(rows(9_000), compression="zstd")), LARGE)
        found = []
        publish = broker.staging.publish

        async def noting(*arguments: object) -> None:
            found.append(staging._unfolded.bytes)
            await publish(*arguments)  # type: ignore[arg-type]

        broker.staging.publish = noting  # type: ignore[assignment]
        await staging.commit("job", "1", [(0, 0)], queue="q")
        assert max(found) > 900_000
        assert staging._unfolded.bytes == 0
        await staging.close()


def held(broker: Broker) -> int:
    return broker.statistics.measures().held_bytes


UNFOLDED = """
import asyncio, sys, tempfile
from pathlib import Path
import pyarrow as pa
from smista.engine import Broker
from smista.engine.pressure import resident_set_bytes
from smista.errors import InvalidRequest
from smista.log import MemoryLog
from smista.service import arrow
from smista.service.staging.batches import Staging
from smista.service.staging.files import Stage

def stream(batch: pa.RecordBatch, count: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for _ in range(count):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()

def bodies(what: str) -> list[bytes | None]:
    found: list[bytes | None] = [bytes(1 << 20)] * 60 if what == "large bodies" else [bytes(100)] * 200_000
    return [*found, None] if what == "refused" else found

async def these(data: bytes):
    yield data

async def main(what: str) -> None:
    arrow.load()
    large = stream(pa.record_batch({"body": pa.array(bodies(what), pa.binary())}), 2)
    small = stream(pa.record_batch({"body": pa.array([b"x"], pa.binary())}), 1)
    async with await Broker.open(MemoryLog()) as broker:
        staging = Staging(broker, Path(tempfile.mkdtemp()))
        await staging.stage(Stage("job", "0", 0, 0), these(small), 1 << 30)
        pa.default_memory_pool().release_unused()
        before = resident_set_bytes()
        parts = [staging.stage(Stage("job", "1", 0, attempt), these(large), 1 << 30) for attempt in range(4)]
        results = await asyncio.gather(*parts, return_exceptions=True)
        assert [isinstance(result, InvalidRequest) for result in results] == [what == "refused"] * 4, results
        del results
        print(resident_set_bytes() - before)
        await staging.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["large bodies", "small bodies", "refused"])
def test_what_was_unfolded_goes_back_to_the_system(what: str) -> None:
    """Twenty megabytes or more at a time."""
    result = subprocess.run([sys.executable, "-c", UNFOLDED, what], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 10 << 20


async def test_rows_of_nothing_have_a_limit(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "ROWS_MAX", 1_000)
    staging = Staging(broker, tmp_path)
    with pytest.raises(RequestTooLarge, match="1000 rows"):
        await staging.stage(Stage("job", "1", 0, 0), these(stream(rows(600, 0), rows(600, 0))), LARGE)
    await staging.close()


async def test_a_commit_that_would_not_fit_into_memory_is_refused_whole(broker: Broker, tmp_path: Path) -> None:
    staging = Staging(broker, tmp_path)
    await staging.stage(Stage("job", "1", 0, 0), these(stream(rows(5_000, 0))), LARGE)
    with pytest.raises(LowMemory, match="memory_bytes_max"):
        await staging.commit("job", "1", [(0, 0)], queue="q")
    assert broker.statistics.stats("q").depth == 0
    assert broker.staging.find("job", "1") is None
    await staging.close()
