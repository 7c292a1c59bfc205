"""The messages of a benchmark: byte for byte alike, or each with ids of its own, as programs send them.

`alike` is what benchmarks usually send, and what a fast path is easily made for: no properties but the delivery mode.
`own` is what Celery and most programs send: content type and encoding, two headers, and a message id and a correlation
id of 36 characters that no other message has. Their sizes vary from half to one and a half of the one that is named.
"""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

from smista.protocols.amqp.wire import content, frames, methods
from smista.protocols.amqp.wire.content import BasicProperties

CHUNK = 50
"""How many messages are made, and written, together."""
ID_BYTES = 36
_HEADERS = {"lang": "py", "task": "shop.tasks.confirm_order"}
_MARKS = "m" * ID_BYTES, "c" * ID_BYTES
"""Stand where the ids are written."""
_numbers = itertools.count(random.getrandbits(60))


class Shape(NamedTuple):
    name: str
    size: int

    @property
    def has_own_ids(self) -> bool:
        return self.name == "own"


def alike(size: int) -> Shape:
    return Shape("alike", size)


def own(size: int) -> Shape:
    return Shape("own", size)


class Chunk:
    """So many publishes to one place, as bytes to be written; times and ids are put in before each writing."""

    def __init__(self, shape: Shape, exchange: str, key: str, count: int, *, persistent: bool) -> None:
        self.buffer = bytearray()
        self.bodies_at: list[int] = []
        self._ids_at: list[int] = []
        self.count = count
        sizes = random.Random(1)
        for _ in range(count):
            size = shape.size
            if shape.has_own_ids:
                size = sizes.randint(size // 2, size + size // 2)
            self._add(shape, exchange, key, size, persistent=persistent)

    def _add(self, shape: Shape, exchange: str, key: str, size: int, *, persistent: bool) -> None:
        basic = BasicProperties(delivery_mode=2 if persistent else 1)
        if shape.has_own_ids:
            basic.content_type, basic.content_encoding = "application/json", "utf-8"
            basic.headers = dict(_HEADERS)
            basic.message_id, basic.correlation_id = _MARKS
        start = len(self.buffer)
        self.buffer += frames.method_frame(1, methods.BasicPublish(0, exchange, key, False, False))
        raw = content.write_properties(basic)
        self.buffer += frames.frame(frames.HEADER, 1, content.write_head(size, raw))
        if shape.has_own_ids:
            self._ids_at += (self.buffer.index(mark.encode(), start) for mark in _MARKS)
        self.bodies_at.append(len(self.buffer) + frames.HEAD_BYTES)
        self.buffer += frames.frame(frames.BODY, 1, b"x" * size)

    def renew(self) -> None:
        """Give each message ids that none had before."""
        buffer = self.buffer
        for place in self._ids_at:
            buffer[place : place + ID_BYTES] = b"%036x" % next(_numbers)
