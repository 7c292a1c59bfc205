"""The file that a command writes: complete or not at all, without losing an existing file.

-, or standard output by any name     written directly
a pipe, a device, a socket            written directly, since it cannot be replaced
a file                                written under a temporary name in the same directory, and renamed when complete;
                                      links are followed, and the mode of an existing file is kept
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

from smista.command_line import WrongUsage


@contextlib.contextmanager
def written(file: str, *, is_forced: bool) -> Iterator[IO[bytes]]:
    """A stream whose content is in `file` once all of it is written; compressed if the name ends in `.gz`.

    Raises `WrongUsage` for an existing file that is not empty, unless `is_forced`.
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
    # Not the file's own name with a suffix, which may exist already or be too long.
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
        raise WrongUsage(f"{file} exists already; give --force to replace it, or another name.")


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
