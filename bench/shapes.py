"""The messages of a benchmark: byte for byte alike, or each with ids of its own, as programs send them.

`alike` is what benchmarks usually send, and what a fast path is easily made for: no properties at all but that the
message is to be kept. `own` is what Celery and most programs send: content type and encoding, two headers, and a
message id and a correlation id of 36 characters, random as those of UUID 4, that no other message has. Their sizes vary
from half to one and a half of the one that is named.

A protocol says once how it writes a message (`Encode`); a `Chunk` of such messages is then written again and again,
with new ids and the time put in at the places where marks stood. So the loader costs the same for every broker.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from typing import NamedTuple

CHUNK = 50
"""How many messages are made, and written, together, where the protocol sets no bound."""
STAMP_BYTES = 16
"""A body begins with the time of its publishing: microseconds of `time.perf_counter`, as digits."""
CONTENT_TYPE, CONTENT_ENCODING = "application/json", "utf-8"
HEADERS = {"lang": "py", "task": "shop.tasks.confirm_order"}
# Each begins with what does not come again in it: a length before it may look like the rest.
_STAMP_MARK = b"<" + b"@" * (STAMP_BYTES - 1)
_ID_BYTES = 36
_ID_MARK = "<" + "m" * (_ID_BYTES - 1)
_DASHES_AT = (8, 13, 18, 23)


class Shape(NamedTuple):
    name: str
    size: int

    @property
    def has_own_ids(self) -> bool:
        return self.name == "own"

    def bodies(self, count: int) -> list[bytes]:
        if not self.has_own_ids:
            return [_body(self.size)] * count
        sizes = random.Random(1)
        return [_body(sizes.randint(self.size // 2, self.size + self.size // 2)) for _ in range(count)]


def alike(size: int) -> Shape:
    return Shape("alike", size)


def own(size: int) -> Shape:
    return Shape("own", size)


def _body(size: int) -> bytes:
    return _STAMP_MARK + b"x" * (size - STAMP_BYTES)


class Ids(NamedTuple):
    message_id: str = _ID_MARK
    correlation_id: str = _ID_MARK


Encode = Callable[[bytes, Ids | None], bytes]
"""From a body, and ids where the shape has them (and then also content type, encoding and headers), to bytes."""


def encoded(shape: Shape, count: int, encode: Encode) -> list[bytes]:
    ids = Ids() if shape.has_own_ids else None
    return [encode(body, ids) for body in shape.bodies(count)]


class Chunk:
    """So many publishes as bytes to be written; ids and the time are put in before each writing."""

    def __init__(self, count: int, raw: bytes) -> None:
        self.count = count
        self._buffer = bytearray(raw)
        self._stamps_at = [found.start() for found in re.finditer(_STAMP_MARK, raw)]
        self._ids_at = [found.start() for found in re.finditer(_ID_MARK.encode(), raw)]
        assert len(self._stamps_at) == count, "a message with no mark, or with two"

    def renewed(self, now: float) -> bytes:
        buffer = self._buffer
        if self._ids_at:
            digits = os.urandom(_ID_BYTES // 2 * len(self._ids_at)).hex().encode()
            for number, place in enumerate(self._ids_at):
                buffer[place : place + _ID_BYTES] = digits[number * _ID_BYTES : (number + 1) * _ID_BYTES]
                for dash in _DASHES_AT:
                    buffer[place + dash] = 45
        stamp = b"%016d" % int(now * 1e6)
        for place in self._stamps_at:
            buffer[place : place + STAMP_BYTES] = stamp
        return bytes(buffer)


def age_s(data: bytes, body_at: int, now: float) -> float:
    """How long ago the message whose body begins there was published."""
    return now - int(data[body_at : body_at + STAMP_BYTES]) / 1e6
