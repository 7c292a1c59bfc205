"""Staged publishes: tasks stage rows, each under its own name; their driver commits the batch; all is there, once.

    stage      a part is written, checked, synced: nobody sees it yet
    commit     named parts checked ─▶ intent durable ─▶ slices ─▶ files removed
    discard    removed; so is what nobody commits in time

From the intent on nobody is needed any more: a commit is a task of its own, whatever becomes of the client, and a
broker that starts again goes on with it. Who asks for it again meanwhile waits for the same task. Reading and decoding
are done in threads; the loop only publishes, a slice at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smista.core.staging import Commit, Load, Part, Row
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.interface import Engine
from smista.errors import BrokerError, InvalidRequest, StageBusy, StageDamaged, StageNotFound
from smista.log import files
from smista.service import arrow
from smista.service.held import Held, HeldBytes
from smista.service.staging.files import HEAD_BYTES, Stage, StagedFiles, StageWriter, being_committed, check_name
from smista.service.staging.room import StagedRoom
from smista.service.staging.rows import read_rows, survey
from smista.service.staging.unfolded import Unfolded

logger = logging.getLogger("smista.staging")

WRITE_BYTES = 1 << 20
SWEEP_S = 60.0
SURVEYED_AT_ONCE = 2
"""Each may take as much memory as a batch of rows has when it is decompressed."""


class Committed(NamedTuple):
    published: int
    duplicates: int
    unrouted: int
    is_repeated: bool


class Staging:
    def __init__(
        self,
        broker: Engine,
        folder: Path | None = None,
        *,
        expires_ms: int = 3_600_000,
        total_bytes_max: int = 8 << 30,
        disk_free_bytes_min: int = 0,
    ) -> None:
        """`folder` None: a temporary one, for a broker that keeps nothing."""
        self._broker = broker
        self._room = StagedRoom(bytes_max=total_bytes_max, disk_free_bytes_min=disk_free_bytes_min)
        self._surveying = asyncio.Semaphore(SURVEYED_AT_ONCE)
        self._unfolded = Unfolded()
        broker.intake.count_in_memory(lambda: self._unfolded.bytes)
        self._folder = folder
        self._expires_ms = expires_ms
        self._files: StagedFiles | None = None
        self._commits: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._staging: dict[tuple[str, str], set[StageWriter]] = {}
        """By batch: its parts that are on their way in."""
        self._discarding: dict[tuple[str, str], asyncio.Task[int]] = {}
        """By batch: its files are being removed, and nothing else may be done with them until that is over."""
        self._sweeping: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        """Counts, once, what was there before the broker was started."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on with what a stop or a crash interrupted, and discard what nobody commits in time."""
        for commit in self._broker.staging.unfinished():
            self._run(commit)
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stop where it is; another start goes on."""
        tasks = [*self._commits.values(), *(each for each in (self._sweeping, self._counting) if each is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._discarding.values(), return_exceptions=True)
        if self._folder is None and self._files is not None:
            await asyncio.to_thread(shutil.rmtree, self._files.folder, ignore_errors=True)

    @property
    def files(self) -> StagedFiles:
        if self._files is None:
            self._files = StagedFiles(self._folder or Path(tempfile.mkdtemp(prefix="smista-staged-")), self._room)
        return self._files

    # -- staging ------------------------------------------------------------------------------------------------------

    async def stage(self, stage: Stage, chunks: AsyncIterator[bytes], bytes_max: int, held: Held | None = None) -> Load:
        """Keep a stream of Arrow under this name; returns what it holds when it is on disk. `bytes_max` is what it may
        have when it is decompressed; what it may have on the wire is for those who make the chunks. `held` counts those
        that are not written yet, and is released by who gives it."""
        await asyncio.to_thread(arrow.load)
        await self._counted()
        refusal = self._broker.intake.refusal
        if refusal is not None:
            raise refusal
        self._check_free(stage.job, stage.batch)
        key, writer = (stage.job, stage.batch), StageWriter(self.files, stage)
        # In one step with the check: a commit that begins later knows of it.
        self._staging.setdefault(key, set()).add(writer)
        try:
            return await self._stage(writer, _joined(chunks, held or Held(HeldBytes())), bytes_max)
        except FileNotFoundError:
            raise StageNotFound(
                f"Batch {stage.batch} of job {stage.job!r} was discarded while it was staged."
            ) from None
        finally:
            self._staging[key].discard(writer)
            if not self._staging[key]:
                del self._staging[key]

    async def _stage(self, writer: StageWriter, chunks: AsyncIterator[bytes], bytes_max: int) -> Load:
        try:
            await asyncio.to_thread(writer.open)
            async for data in chunks:
                await asyncio.to_thread(self._write, writer, data)
            async with self._surveying:
                return await asyncio.to_thread(_finish, writer, bytes_max, self._unfolded)
        except BaseException:
            # In a thread, since it waits for one that is still at it; and whatever becomes of us.
            await asyncio.shield(asyncio.to_thread(writer.abort))
            raise

    async def _counted(self) -> None:
        """What is there from before takes room too, so it is counted before anything is staged."""
        if self._counting is None or (self._counting.done() and self._counting.exception() is not None):
            self._counting = asyncio.create_task(asyncio.to_thread(self.files.count))
        await asyncio.shield(self._counting)

    def _write(self, writer: StageWriter, data: bytes) -> None:
        self._room.check_disk(writer.part.parent)
        writer.write(data)

    async def discard(self, job: str, batch: str) -> int:
        """Remove what was staged for a batch; returns how many parts that were."""
        check_name("job", job)
        check_name("batch", batch)
        self._check_free(job, batch)
        return await self._discard(job, batch)

    async def _discard(self, job: str, batch: str) -> int:
        """Remove a batch's files, or wait until they are: this is the only way in which they go."""
        key = (job, batch)
        if key not in self._discarding:
            # A task of its own: who asked may be gone before the files are.
            removing = asyncio.create_task(asyncio.to_thread(self.files.discard, job, batch))
            removing.add_done_callback(lambda _: self._discarding.pop(key))
            self._discarding[key] = removing
        return await asyncio.shield(self._discarding[key])

    def _check_free(self, job: str, batch: str) -> None:
        commit = self._broker.staging.find(job, batch)
        if (job, batch) in self._commits or (commit is not None and not commit.is_done):
            raise being_committed(job, batch)
        self._check_not_discarded(job, batch)

    def _check_not_discarded(self, job: str, batch: str) -> None:
        if (job, batch) in self._discarding:
            raise StageBusy(f"Batch {batch} of job {job!r} is being discarded; wait for that.")

    # -- committing ---------------------------------------------------------------------------------------------------

    async def commit(
        self,
        job: str,
        batch: str,
        parts: Sequence[tuple[int, int]],
        *,
        queue: str | None = None,
        exchange: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Committed:
        """Publish all rows of exactly these parts, or nothing; again, nothing. Returns when all of it is durable."""
        check_name("job", job)
        check_name("batch", batch)
        running, known = self._commits.get((job, batch)), self._broker.staging.find(job, batch)
        is_repeated = running is not None or known is not None
        if running is None and not (known is not None and known.is_done):
            self._check_not_discarded(job, batch)
            if known is not None:
                running = self._run(known)
            else:
                commit = Commit(
                    job=job,
                    batch=batch,
                    namespace=namespace,
                    queue=queue,
                    exchange=exchange,
                    parts=(),
                    rows=0,
                    at_ms=0,
                )
                running = self._run(commit, parts)
        if running is not None:
            await asyncio.shield(running)
        done = self._broker.staging.find(job, batch)
        assert done is not None
        await self._broker.durable()
        if is_repeated:
            await self._discard(job, batch)
        return Committed(done.published, done.duplicates, done.unrouted, is_repeated)

    def _run(self, commit: Commit, parts: Sequence[tuple[int, int]] | None = None) -> asyncio.Task[None]:
        """Commit as a task of its own: from `parts`, or onwards from where it stands."""
        key = (commit.job, commit.batch)
        task = self._commits[key] = asyncio.create_task(self._commit(commit, parts))
        task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        del self._commits[key]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BrokerError):
            logger.error("committing batch %s of job %s failed", key[1], key[0], exc_info=error)
        elif isinstance(error, StageDamaged):
            logger.error("committing batch %s of job %s: %s", key[1], key[0], error)

    async def _commit(self, commit: Commit, parts: Sequence[tuple[int, int]] | None) -> None:
        broker, staged = self._broker, self.files
        if parts is not None:
            await asyncio.to_thread(staged.shut_out, tuple(self._staging.get((commit.job, commit.batch), ())))
            commit.parts, loads = await self._survey(commit, parts)
            commit.rows = sum(part.rows for part in commit.parts)
            await broker.staging.begin(commit, loads)
        else:
            await asyncio.to_thread(_verify, staged, commit)
        async for rows in _ahead(self._slices(commit, commit.done)):
            await broker.staging.publish(commit, rows)
        if not commit.is_done:
            raise StageDamaged(f"Batch {commit.batch} of job {commit.job!r} has fewer rows than were staged.")
        await broker.durable()
        await self._discard(commit.job, commit.batch)

    async def _survey(
        self, commit: Commit, parts: Sequence[tuple[int, int]]
    ) -> tuple[tuple[Part, ...], dict[str, Load]]:
        """What the parts hold, and what that is for each queue."""
        if len(set(parts)) != len(parts):
            raise InvalidRequest("`parts` names the same partition and attempt twice.")
        broker, staged = self._broker, self.files
        if commit.queue is not None:
            broker.catalog.queue_settings(commit.queue, namespace=commit.namespace)
        found, total = await asyncio.to_thread(_heads, staged, commit, parts)
        if commit.queue is not None:
            return found, {commit.queue: total}
        assert commit.exchange is not None
        loads: dict[str, Load] = {}
        await broker.staging.route(commit.exchange, [], loads, namespace=commit.namespace)
        commit.parts = found
        async for rows in _ahead(self._slices(commit, 0)):
            await broker.staging.route(commit.exchange, rows, loads, namespace=commit.namespace)
        return found, loads

    def _slices(self, commit: Commit, skip: int) -> Iterator[list[Row]]:
        """The rows of all parts behind the first `skip`."""
        with self._unfolded.reading():
            for part in commit.parts:
                if skip >= part.rows:
                    skip -= part.rows
                    continue
                path = self.files.path(Stage(commit.job, commit.batch, part.partition, part.attempt))
                yield from read_rows(path, HEAD_BYTES, self._unfolded, exchange=commit.exchange or "", skip=skip)
                skip = 0

    # -- sweeping -----------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(min(SWEEP_S, self._expires_ms / 4000))

    async def sweep(self) -> None:
        """Discard what nobody has committed in time."""
        found = await asyncio.to_thread(self.files.batches)
        for job, batch, age_s in found:
            if age_s * 1000 >= self._expires_ms and (job, batch) not in self._staging:
                with contextlib.suppress(StageBusy, InvalidRequest):
                    await self.discard(job, batch)


async def _ahead(slices: Iterator[list[Row]]) -> AsyncIterator[list[Row]]:
    """The slices, each read in a thread while the one before it is seen to."""
    coming = asyncio.ensure_future(asyncio.to_thread(next, slices, None))
    while rows := await coming:
        coming = asyncio.ensure_future(asyncio.to_thread(next, slices, None))
        yield rows


async def _joined(chunks: AsyncIterator[bytes], held: Held) -> AsyncIterator[bytes]:
    """The chunks, put together to what is worth a call into a thread."""
    pending: list[bytes] = []
    pending_bytes = 0
    async for chunk in chunks:
        pending.append(chunk)
        pending_bytes += len(chunk)
        held.add(len(chunk))
        if pending_bytes >= WRITE_BYTES:
            yield b"".join(pending)
            held.add(-pending_bytes)
            pending, pending_bytes = [], 0
    if pending:
        yield b"".join(pending)
        held.add(-pending_bytes)


def _finish(writer: StageWriter, bytes_max: int, unfolded: Unfolded) -> Load:
    writer.flush()
    with unfolded.reading():
        load = survey(writer.part, HEAD_BYTES, bytes_max, unfolded)
    writer.finish(load)
    return load


def _heads(staged: StagedFiles, commit: Commit, parts: Sequence[tuple[int, int]]) -> tuple[tuple[Part, ...], Load]:
    total = Load()
    found = []
    for partition, attempt in parts:
        stage = Stage(commit.job, commit.batch, partition, attempt)
        head = staged.head(stage)
        staged.verify(stage, head.crc)
        found.append(Part(partition, attempt, head.load.rows, head.crc))
        total.add(head.load)
    if found:
        # Whoever staged them may not have come to that yet.
        files.sync_directory(staged.batch_folder(commit.job, commit.batch))
    return tuple(found), total


def _verify(staged: StagedFiles, commit: Commit) -> None:
    for part in commit.parts:
        stage = Stage(commit.job, commit.batch, part.partition, part.attempt)
        staged.head(stage)
        staged.verify(stage, part.crc)
