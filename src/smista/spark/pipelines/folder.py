"""Files that several programs look at: written whole or not at all, by one run at a time.

Everything here is on a file system that is mounted where the driver runs (and, on a cluster, where the executors run).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from smista.spark.errors import WrongOption
from smista.spark.pipelines.errors import FolderInUse

LOCK = ".lock"


def local_path(text: str | os.PathLike[str]) -> Path:
    """The folder that is meant by a path or a `file:` URL."""
    written = os.fspath(text)
    if "://" not in written:
        return Path(written).absolute()
    parts = urlsplit(written)
    if parts.scheme != "file":
        raise WrongOption(
            f"{written!r} is not on a mounted file system. Mount it where the driver and the executors run, and give "
            "its path."
        )
    return Path(unquote(parts.path))


def write_whole(path: Path, content: bytes) -> None:
    """Whoever looks sees the old content or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync([path.parent])


def sync(paths: Iterable[Path]) -> None:
    """Have files and folders on disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def alone_in(folder: Path, doing: str) -> Iterator[None]:
    """Hold the folder for one run; a run that was killed holds it no longer."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"Another run is at work in {folder}; {doing} has to wait until it has ended.") from None
        yield
