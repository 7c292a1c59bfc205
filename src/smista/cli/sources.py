"""Reads bodies from arguments, a file or standard input, in one of four formats.

    lines    every line is a body
    jsonl    every line is a JSON value; empty lines are skipped
    json     every item of an array is a body; any other value is one body
    raw      the whole input is one body

JSON bodies are `msgspec.Raw`, which the client stores byte for byte as JSON. A pipe is read as it fills, without
blocking the connection, so that `tail -f log | smista put lines` publishes line by line.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import stat
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Literal, cast

import msgspec

from smista.command_line import WrongUsage

Format = Literal["lines", "jsonl", "json", "raw"]
Body = bytes | msgspec.Raw

CHUNK_BYTES = 1 << 16
_BY_SUFFIX: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}


def format_of(path: str) -> Format:
    """The format by the file's name."""
    return _BY_SUFFIX.get(Path(path.removesuffix(".gz")).suffix.lower(), "lines")


def from_arguments(arguments: list[str], format: Format | None) -> Iterator[Body]:
    """With `format` None an argument that is a JSON object or array is JSON."""
    for number, argument in enumerate(arguments, start=1):
        body = os.fsencode(argument)
        if format in ("jsonl", "json"):
            yield _json(body, f"Body {number}")
        else:
            yield msgspec.Raw(body) if format is None and _is_json_structure(body) else body


def _is_json_structure(text: bytes) -> bool:
    if text.strip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


async def from_file(path: str, format: Format) -> AsyncIterator[Body]:
    """The bodies in a file, `-` for standard input; compressed if the name ends in `.gz`."""
    with opened(path) as stream:
        if format in ("raw", "json"):
            for body in _whole(await _read_all(stream), format):
                yield body
            return
        number = 0
        async for line in lines_of(stream):
            number += 1
            if format == "lines":
                yield line
            elif line.strip():
                yield _json(line, f"Line {number}")


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = gzip.open(path) if path.endswith(".gz") else open(path, "rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise WrongUsage(f"{path} cannot be read: {error.strerror or error}.") from None
    with file:
        yield cast("IO[bytes]", file)


async def lines_of(stream: IO[bytes]) -> AsyncIterator[bytes]:
    """The lines without their line breaks; the last one may lack it."""
    begun: list[bytes] = []
    async for chunk in _chunks(stream):
        first, *others = chunk.split(b"\n")
        begun.append(first)
        if others:
            yield b"".join(begun).removesuffix(b"\r")
            for line in others[:-1]:
                yield line.removesuffix(b"\r")
            begun = others[-1:]
    if last := b"".join(begun):
        yield last.removesuffix(b"\r")


async def _read_all(stream: IO[bytes]) -> bytes:
    return b"".join([chunk async for chunk in _chunks(stream)])


async def _chunks(stream: IO[bytes]) -> AsyncIterator[bytes]:
    if not _may_wait(stream):
        while chunk := _read(stream):
            yield chunk
            # The task that sends them must have a turn too.
            await asyncio.sleep(0)
        return
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        transport.close()


def _read(stream: IO[bytes]) -> bytes:
    try:
        return stream.read(CHUNK_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise WrongUsage(f"{stream.name} cannot be read: {error}.") from None


def _may_wait(stream: IO[bytes]) -> bool:
    """Whether reading may have to wait for a writer."""
    if isinstance(stream, gzip.GzipFile):
        return False
    mode = os.fstat(stream.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()


def _whole(data: bytes, format: Format) -> Iterator[Body]:
    if format == "raw":
        yield data
    elif data.lstrip()[:1] == b"[":
        _json(data, "The input")
        yield from msgspec.json.decode(data, type=list[msgspec.Raw])
    else:
        yield _json(data.strip(), "The input")


def _json(text: bytes, what: str) -> msgspec.Raw:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WrongUsage(f"{what} is not JSON: {error}.") from None
    return msgspec.Raw(text)
