"""The directory of a log: is it ours, is it free, does it hold a log yet."""

from __future__ import annotations

from pathlib import Path

from smista.log import files, sqlite_file
from smista.log.errors import LogDamaged, LogForeign
from smista.log.lock import DirectoryLock

# What a broker that was stopped while making the log can have left, and what mkfs leaves.
_BEFORE_THE_LOG = {
    "lock",
    "log.db.new",
    "log.db.new-journal",
    "log.db.new-wal",
    "log.db.new-shm",
    "lost+found",
}
_BESIDE_THE_LOG = {"log.db-wal", "log.db-shm", "mark", "reserve"}


def claim(path: Path, *, vfs: str | None) -> DirectoryLock:
    """Lock the directory and see that it holds a log: the one that is there, or a new one in an empty
    directory.

    A directory that is not ours, or that another broker has open, is left as it was.
    """
    _make(path)
    names = {entry.name for entry in path.iterdir()}
    file = path / "log.db"
    if "log.db" not in names:
        _refuse_others(path, names)
    elif "lock" not in names:
        sqlite_file.check_header(file)
    lock = DirectoryLock(path / "lock")
    try:
        if file.exists():
            sqlite_file.check_header(file)
        else:
            sqlite_file.create(file, vfs=vfs)
        lock.sign()
    except BaseException:
        lock.release()
        raise
    return lock


def _make(path: Path) -> None:
    if path.is_dir():
        return
    if path.exists():
        raise LogForeign(str(path), what="it is not a directory")
    path.mkdir(parents=True)
    files.sync_directory(path.parent)


def _refuse_others(path: Path, names: set[str]) -> None:
    if others := names - _BEFORE_THE_LOG - _BESIDE_THE_LOG:
        raise LogForeign(str(path), what=f"it holds {', '.join(sorted(others)[:3])} and no log.db")
    if remains := names & _BESIDE_THE_LOG:
        raise LogDamaged(str(path), position=None, what=f"it holds {', '.join(sorted(remains))} and no log.db")
