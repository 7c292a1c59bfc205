"""Cut the power at any moment of a recorded run, as often as you like.

`recording(root)` gives a VFS for SQLite that passes everything on to the real one and notes each operation
that changes a file below `root`, in order, in a `Trace`. `trace.cut(point, seed)` then rebuilds what a disk
may hold if the power went just before operation number `point`:

- what was synced is there;
- of what was not, each 512-byte sector is there or not, so a write may be torn; a file that grew may have
  grown without its bytes; a truncation may be lost;
- names that were created, renamed or removed since the last sync of the directory, or of the file itself, may
  be lost from some point on: file systems keep these in order.

    with recording(directory) as trace:
        log = SqliteLog.open(directory, vfs=trace.vfs)
        for position in range(1, 100):
            log.append(position, b"...")
            trace.mark(position)
    for cut in trace.cuts(200, seed=1):
        cut.write(target)        # `cut.marks` are those passed before the cut

One run gives any number of cuts, at about the cost of writing the files. With `is_lying` the disk ignores
syncs, which every test that uses this must notice.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import apsw

from smista.log import files

SECTOR_BYTES = 512

_numbers = itertools.count(1)

Kind = Literal["create", "found", "write", "truncate", "sync", "delete", "rename", "sync_directory"]


class Operation(NamedTuple):
    """One change. `offset` is the new size of a truncation, `data` the content of a file found, `to` a new
    name."""

    kind: Kind
    path: str
    offset: int = 0
    data: bytes = b""
    to: str = ""


class Trace:
    """What happened to the files of a run, in order."""

    def __init__(self, root: Path, *, vfs: str, is_lying: bool = False) -> None:
        self.root = root
        self.vfs = vfs
        self.is_lying = is_lying
        self.operations: list[Operation] = []
        self._present: set[str] = set()
        self._marks: list[tuple[int, Any]] = []
        self._disk = _Disk()
        self._disk_at = 0

    def mark(self, label: Any) -> None:
        """Note that the run got here, e.g. which block was confirmed."""
        self._marks.append((len(self.operations), label))

    def observe(self, path: Path) -> None:
        """Note the content of a small file that is not SQLite's, as a write that nobody synced."""
        if not self.knows(path):
            self.note("create", path)
        self.note("write", path, 0, path.read_bytes())

    def cut(self, point: int, *, seed: int) -> Cut:
        """The power goes before operation number `point`. Cheapest when points do not go back."""
        if point < self._disk_at:
            self._disk, self._disk_at = _Disk(), 0
        for operation in self.operations[self._disk_at : point]:
            if not (self.is_lying and operation.kind in ("sync", "sync_directory")):
                self._disk.apply(operation)
        self._disk_at = point
        marks = [label for at, label in self._marks if at <= point]
        return Cut(point, seed, marks, self._disk.after_a_cut(random.Random(f"{point}/{seed}")))

    def cuts(self, count: int, *, seed: int, start: int = 0) -> Iterator[Cut]:
        """`count` cuts from operation `start` on, half of them right before or after a sync, where it matters
        most."""
        source = random.Random(seed)
        end = len(self.operations) + 1
        syncs = [at for at in range(start, end - 1) if self.operations[at].kind == "sync"]
        points = [source.choice(syncs) + source.choice((0, 0, 1)) for _ in range(count // 2)] if syncs else []
        points += [source.randrange(start, end) for _ in range(count - len(points))]
        for point in sorted(points):
            yield self.cut(point, seed=source.randrange(1 << 32))

    def note(self, kind: Kind, path: Path | str, offset: int = 0, data: bytes = b"", to: Path | str = "") -> None:
        name = self._name(path)
        if name is None:
            return
        self.operations.append(Operation(kind, name, offset, data, (to and self._name(to)) or ""))
        if kind in ("delete", "rename"):
            self._present.discard(name)
        elif kind != "sync_directory":
            self._present.add(name)
        if to:
            self._present.add(self.operations[-1].to)

    def knows(self, path: Path | str) -> bool:
        """Whether the file is there as far as the trace goes."""
        return self._name(path) in self._present

    def _name(self, path: Path | str) -> str | None:
        path = Path(path)
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else None


@dataclass(slots=True)
class Cut:
    """A power cut: when it came, which of the possible outcomes it is, the marks passed, the files left."""

    point: int
    seed: int
    marks: list[Any]
    contents: dict[str, bytes]

    def write(self, directory: Path) -> Path:
        """Put the files into the directory, which is emptied first."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name, content in self.contents.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return directory

    def __str__(self) -> str:
        return f"cut(point={self.point}, seed={self.seed})"


@dataclass(slots=True, eq=False)
class _Inode:
    synced: bytearray = field(default_factory=bytearray)
    pending: list[Operation] = field(default_factory=list)

    def sync(self) -> None:
        for operation in self.pending:
            _apply(self.synced, operation)
        self.pending.clear()

    def after_a_cut(self, source: random.Random) -> bytes:
        content = bytearray(self.synced)
        chance = source.choice((0.0, 0.1, 0.5, 0.5, 0.9, 1.0))
        has_grown = source.random() < 0.5
        for operation in self.pending:
            if operation.kind == "truncate":
                if source.random() < chance:
                    _apply(content, operation)
                continue
            end = operation.offset + len(operation.data)
            at = operation.offset
            while at < end:
                after = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
                if source.random() < chance:
                    start = at - operation.offset
                    _put(content, at, operation.data[start : start + after - at])
                at = after
            if has_grown and len(content) < end:
                content.extend(bytes(end - len(content)))
        return bytes(content)


class _Disk:
    """The synced and the unsynced part of a disk, after some of the operations of a trace."""

    def __init__(self) -> None:
        self._names: dict[str, _Inode] = {}
        self._synced_names: dict[str, _Inode] = {}
        # The names as they were after each change that is not synced yet, and what that change was.
        self._changes: list[tuple[Operation, dict[str, _Inode]]] = []

    def apply(self, operation: Operation) -> None:
        match operation.kind:
            case "write" | "truncate":
                self._names[operation.path].pending.append(operation)
            case "sync":
                self._names[operation.path].sync()
                self._sync_name(operation.path)
            case "sync_directory":
                self._synced_names = dict(self._names)
                self._changes.clear()
            case "found":
                inode = _Inode(bytearray(operation.data))
                self._names[operation.path] = inode
                self._synced_names[operation.path] = inode
            case "create":
                self._change(operation, {**self._names, operation.path: _Inode()})
            case "delete":
                self._change(operation, {n: i for n, i in self._names.items() if n != operation.path})
            case "rename":
                names = dict(self._names)
                names[operation.to] = names.pop(operation.path)
                self._change(operation, names)

    def _change(self, operation: Operation, names: dict[str, _Inode]) -> None:
        self._names = names
        self._changes.append((operation, names))

    def _sync_name(self, path: str) -> None:
        """Syncing a file makes its name durable, and with it all changes of names before that."""
        for at in reversed(range(len(self._changes))):
            operation, names = self._changes[at]
            if path in (operation.path, operation.to):
                self._synced_names = names
                del self._changes[: at + 1]
                return

    def after_a_cut(self, source: random.Random) -> dict[str, bytes]:
        outcomes = [self._synced_names, *(names for _, names in self._changes)]
        names = source.choice(outcomes)
        return {name: inode.after_a_cut(source) for name, inode in sorted(names.items())}


def _apply(content: bytearray, operation: Operation) -> None:
    if operation.kind == "write":
        _put(content, operation.offset, operation.data)
    elif operation.offset <= len(content):
        del content[operation.offset :]
    else:
        content.extend(bytes(operation.offset - len(content)))


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@contextmanager
def recording(root: Path, *, is_lying: bool = False) -> Iterator[Trace]:
    """Record everything that SQLite, through the VFS `trace.vfs`, and `smista.log.files` do below `root`."""
    trace = Trace(root, vfs=f"recording-{next(_numbers)}", is_lying=is_lying)
    vfs = _RecordingVfs(trace)
    rename, remove, sync_directory = files.rename, files.remove, files.sync_directory

    def recorded_rename(old: Path, new: Path) -> None:
        rename(old, new)
        trace.note("rename", old, to=new)

    def recorded_remove(path: Path) -> None:
        is_known = path.exists() and trace.knows(path)
        remove(path)
        if is_known:
            trace.note("delete", path)

    def recorded_sync_directory(directory: Path) -> None:
        sync_directory(directory)
        trace.note("sync_directory", directory)

    with (
        mock.patch.object(files, "rename", recorded_rename),
        mock.patch.object(files, "remove", recorded_remove),
        mock.patch.object(files, "sync_directory", recorded_sync_directory),
    ):
        try:
            yield trace
        finally:
            vfs.unregister()


class _RecordingVfs(apsw.VFS):
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        super().__init__(trace.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (SQLite's)
        return _RecordingFile(self._trace, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self._trace.note("delete", filename)
        if syncdir:
            self._trace.note("sync_directory", os.path.dirname(filename))


class _RecordingFile(apsw.VFSFile):
    """Shared memory, locks and reads are inherited. The index file -shm does not matter: it is made anew."""

    def __init__(self, trace: Trace, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        assert path is not None, "SQLite wants a temporary file"
        self._trace = trace
        self._path = path
        is_new = not os.path.exists(path)
        super().__init__("", name, flags)
        if is_new:
            trace.note("create", path)
        elif not trace.knows(path):
            trace.note("found", path, data=Path(path).read_bytes())
        # As the VFS for Unix does: the first sync of a new journal or write-ahead log syncs its directory
        # too.
        self._is_directory_to_sync = is_new and not flags[0] & apsw.SQLITE_OPEN_MAIN_DB

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._trace.note("write", self._path, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._trace.note("truncate", self._path, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        # Really syncing would test this machine's disk, and takes most of the time of a run.
        self._trace.note("sync", self._path)
        if self._is_directory_to_sync:
            self._trace.note("sync_directory", os.path.dirname(self._path))
            self._is_directory_to_sync = False
