"""A file that a command writes, as people expect it of one: whole or not at all, and nothing of theirs is lost.

-, or standard output by any name     written straight
a pipe, a device, a socket            written straight: it is not a file that could be replaced
a file                                written beside its place under a name of its own, and put there when it is
                                      whole; links are followed, and one that was there keeps its mode
"""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, cast

from smista.cli.exits import WrongUsage


@contextlib.contextmanager
def written(file: str, *, is_forced: bool) -> Iterator[IO[bytes]]:
    """A stream whose content is in `file` once all of it is written; gzipped where the name ends in `.gz`.

    A file that holds something is replaced only where that `is_forced`; raises `WrongUsage`.
    """
    try:
        present = _stat(file)
        if is_standard_output(file):
            sys.stdout.flush()
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif present is not None and not stat.S_ISREG(present.st_mode):
            with open(file, "wb") as straight, _packed(file, straight) as stream:
                yield stream
        else:
            with _put_in_place(file, present, is_forced=is_forced) as whole, _packed(file, whole) as stream:
                yield stream
    except OSError as error:
        raise WrongUsage(f"{file} cannot be written: {error.strerror or error}.") from None


def is_standard_output(file: str) -> bool:
    if file == "-":
        return True
    present = _stat(file)
    return present is not None and os.path.samestat(present, os.fstat(sys.stdout.fileno()))


@contextlib.contextmanager
def _put_in_place(file: str, present: os.stat_result | None, *, is_forced: bool) -> Iterator[IO[bytes]]:
    place = os.path.realpath(file)
    _check_free(file, present, is_forced=is_forced)
    # Not the file's own name with something behind it: that may be somebody's, or too long.
    number, part = tempfile.mkstemp(prefix=".smista-export-", dir=os.path.dirname(place))
    try:
        with open(number, "wb") as stream:
            os.fchmod(number, _usual_mode() if present is None else stat.S_IMODE(present.st_mode))
            yield stream
            stream.flush()
            os.fsync(number)
        _check_free(file, _stat(file), is_forced=is_forced)
        os.replace(part, place)
    except BaseException:
        os.unlink(part)
        raise


def _check_free(file: str, present: os.stat_result | None, *, is_forced: bool) -> None:
    if present is not None and present.st_size and not is_forced:
        raise WrongUsage(f"{file} is there already; give --force to replace it, or another name.")


def _stat(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)
    except FileNotFoundError:
        return None


def _usual_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def _packed(file: str, stream: IO[bytes]) -> Iterator[IO[bytes]]:
    if not file.endswith(".gz"):
        yield stream
        return
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=stream) as packed:
        yield cast("IO[bytes]", packed)
