"""What is staged, as files below the data folder, one for each attempt of each partition:

    staged/job-JOB/batch-BATCH/PARTITION.ATTEMPT         a head of 64 bytes, then the stream of Arrow as it came

The head says what the stream holds and has its CRC. A file gets its name when it is whole, checked and synced, so
whatever has a name can be published; what a crash left behind has another and is swept away. Every call here blocks.

A file is named or removed, and counted in the room, in one step: under `changing`. So what is counted is what is there,
whoever gives up waiting for one of these calls. Under `changing` it is also decided whether a file still gets its name,
or comes too late: from when on a batch is being committed, its files stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from smista.core.staging import Load
from smista.errors import InvalidRequest, StageBusy, StageDamaged, StageNotFound
from smista.log import files
from smista.service.staging.room import StagedRoom

HEAD_BYTES = 64
_HEAD = struct.Struct("<8sIQQQI")
_MAGIC = b"smstage1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_READ_BYTES = 1 << 20


class Stage(NamedTuple):
    """Names one attempt of one partition of a batch."""

    job: str
    batch: str
    partition: int
    attempt: int


class Head(NamedTuple):
    crc: int
    load: Load


def check_name(kind: str, name: str) -> None:
    """Both are part of a path."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"`{kind}` is {name!r:.120}; give 1 to 100 letters, digits, dots, dashes or underscores, a letter or digit "
            "first."
        )


class StagedFiles:
    def __init__(self, folder: Path, room: StagedRoom) -> None:
        self.folder = folder
        self.room = room
        self.changing = threading.Lock()
        """Held while files get their names or are removed."""

    def batch_folder(self, job: str, batch: str) -> Path:
        check_name("job", job)
        check_name("batch", batch)
        # With these in front no name means another folder.
        return self.folder / f"job-{job}" / f"batch-{batch}"

    def path(self, stage: Stage) -> Path:
        return self.batch_folder(stage.job, stage.batch) / f"{stage.partition}.{stage.attempt}"

    def head(self, stage: Stage) -> Head:
        """What a staged file says of itself; raises `StageNotFound`."""
        try:
            with self.path(stage).open("rb") as file:
                data = file.read(HEAD_BYTES)
        except FileNotFoundError:
            raise StageNotFound(
                f"Partition {stage.partition}, attempt {stage.attempt} of batch {stage.batch} of job {stage.job!r} is "
                "not staged: it never was, or was discarded because nobody committed it in time. Stage it again."
            ) from None
        if len(data) < HEAD_BYTES or data[: len(_MAGIC)] != _MAGIC:
            raise _damaged(stage)
        _, crc, *numbers = _HEAD.unpack_from(data)
        return Head(crc, Load(*numbers))

    def verify(self, stage: Stage, crc: int) -> None:
        """Read all of a file and raise `StageDamaged` unless it holds the very bytes that were staged."""
        found = 0
        with self.path(stage).open("rb") as file:
            file.seek(HEAD_BYTES)
            while chunk := file.read(_READ_BYTES):
                found = zlib.crc32(chunk, found)
        if found != crc:
            raise _damaged(stage)

    def shut_out(self, writers: Iterable[StageWriter]) -> None:
        """Their batch is being committed: what has its name by now keeps it, and none of these gets one any more."""
        with self.changing:
            for writer in writers:
                writer.is_late = True

    def discard(self, job: str, batch: str) -> int:
        """Remove all of a batch; returns how many files that were."""
        folder = self.batch_folder(job, batch)
        with self.changing:
            try:
                count = sum(not name.name.startswith(".") for name in folder.iterdir())
            except FileNotFoundError:
                count = 0
            else:
                shutil.rmtree(folder, ignore_errors=True)
            # What could not be removed still takes its room. What is being written is counted by whoever writes it.
            left = {name: size for name, size in _sizes(folder).items() if not name.startswith(".")}
            self.room.are_there((job, batch), left)
        try:
            folder.parent.rmdir()
        except OSError:
            return count  # the job has other batches
        return count

    def count(self) -> None:
        """Count in the room all that is there. Before anything is staged: what is being written would count twice."""
        with self.changing:
            for job, batch, folder in self._folders():
                self.room.are_there((job, batch), _sizes(folder))

    def batches(self) -> list[tuple[str, str, float]]:
        """Job, batch, and age in seconds since something was last staged, of all that is there."""
        found = []
        for job, batch, folder in self._folders():
            try:
                found.append((job, batch, time.time() - folder.stat().st_mtime))
            except FileNotFoundError:
                continue
        return found

    def _folders(self) -> Iterator[tuple[str, str, Path]]:
        for job in _inside(self.folder, "job-"):
            for folder in _inside(job, "batch-"):
                yield job.name.removeprefix("job-"), folder.name.removeprefix("batch-"), folder


def _inside(folder: Path, prefix: str) -> list[Path]:
    """What is in a folder and begins so; nothing where it is gone by now, as a job's with the last of its batches."""
    try:
        return [each for each in folder.iterdir() if each.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sizes(folder: Path) -> dict[str, int]:
    """By name, what was staged in each file of a batch."""
    try:
        return {file.name: max(0, file.stat().st_size - HEAD_BYTES) for file in folder.iterdir()}
    except FileNotFoundError:
        return {}


class StageWriter:
    """A file that is being staged. `finish` or `abort` ends it; `abort` may be called whatever else is under way, and
    after `finish` it does nothing."""

    def __init__(self, staged: StagedFiles, stage: Stage) -> None:
        self._staged = staged
        self._stage = stage
        self._path = staged.path(stage)
        self.part = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        self._file: BinaryIO | None = None
        """While it is written."""
        self._taken_bytes = 0
        """What it has in the room as long as it has no name."""
        self._crc = 0
        self._is_aborted = False
        self.is_late = False
        """Its batch is being committed without it."""
        self._writing = threading.Lock()

    def open(self) -> None:
        _make_folder(self._path.parent)
        with self._writing:
            if not self._is_aborted:
                self._file = self.part.open("wb")
                self._file.write(bytes(HEAD_BYTES))

    def write(self, data: bytes) -> None:
        """Raises `LowDisk` where there is no room for it."""
        with self._writing:
            if self._file is not None:
                self._staged.room.take(len(data))
                self._taken_bytes += len(data)
                self._file.write(data)
                self._crc = zlib.crc32(data, self._crc)

    def flush(self) -> None:
        """All that was written can be read by its name from now on."""
        with self._writing:
            if self._file is not None:
                self._file.flush()

    def finish(self, load: Load) -> None:
        """It was found good: give it its head and its name, for good. Raises `StageBusy` where it comes too late."""
        head = _HEAD.pack(_MAGIC, self._crc, load.rows, load.body_bytes, load.body_bytes_max, load.priority_max)
        with self._writing:
            if self._file is None:
                return
            self._file.seek(0)
            self._file.write(head)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            with self._staged.changing:
                if self.is_late:
                    raise being_committed(self._stage.job, self._stage.batch)
                files.rename(self.part, self._path)
                batch = (self._stage.job, self._stage.batch)
                self._staged.room.staged(batch, self._path.name, self._taken_bytes)
                self._taken_bytes = 0
            self._file = None
        files.sync_directory(self._path.parent)

    def abort(self) -> None:
        with self._writing:
            self._is_aborted = True
            if self._file is None:
                return
            with contextlib.suppress(OSError):  # what was not written yet may not fit on the disk
                self._file.close()
            self._file = None
            self.part.unlink(missing_ok=True)
            self._staged.room.give_back(self._taken_bytes)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    files.sync_directory(folder.parent)


def being_committed(job: str, batch: str) -> StageBusy:
    return StageBusy(f"Batch {batch} of job {job!r} is being committed; wait for that.")


def _damaged(stage: Stage) -> StageDamaged:
    return StageDamaged(
        f"What was staged as partition {stage.partition}, attempt {stage.attempt} of batch {stage.batch} of job "
        f"{stage.job!r} is damaged on disk. Stage it again under another attempt; or, if its commit has begun, put the "
        "file back."
    )
