"""Properties that mean the same to a publisher's broker: they differ only where it does not look.

    flags │ content type  │ headers: length │ name, S, length │ value │ name, I │ number │ delivery mode │ message id
    fixed │ length │ free │ fixed           │ fixed           │ free  │ fixed   │ free   │ fixed         │ length │ free

Most programs give each message ids of its own, and headers. What those say is the consumer's business: they are kept,
and handed out, as the bytes that came. What publishing looks at, and all types and lengths, is fixed. Properties of the
same length whose fixed bytes are those of some that were read before are as well formed as those, and mean the same, so
they need not be read: that is a slice for each fixed stretch, and one comparison. Measured: 0.06 to 0.12 us,
against 2 to 8 for reading them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from smista.protocols.amqp.wire.content import FLAGS, PROPERTIES
from smista.protocols.amqp.wire.values import NUMBERS, Reader

_FREE = frozenset(
    ("content_type", "content_encoding", "correlation_id", "message_id", "timestamp", "type", "app_id", "cluster_id")
)
_TEXT = ord("S")
FREE_MAX = 50
"""So many values are free, the rest is fixed: each stretch takes time whenever properties are held against the form,
and memory as long as it is known."""
FORM_BYTES = 450
STRETCH_BYTES = 110
"""What a form takes in memory at most, and each of its fixed stretches, beside their bytes."""


class Form:
    """Made of properties that were read, and found to be well formed."""

    __slots__ = ("_fixed", "_length", "_unpack", "kept_bytes")

    def __init__(self, raw: bytes, fixed_headers: Collection[str] | None) -> None:
        """`fixed_headers` have a meaning; None where every property may have one."""
        free = [] if fixed_headers is None else list(islice(_free(raw, fixed_headers), FREE_MAX))
        layout, position = ">", 0
        for start, end in free:
            layout += f"{start - position}s{end - start}x"
            position = end
        self._unpack = struct.Struct(f"{layout}{len(raw) - position}s").unpack
        self._fixed = self._unpack(raw)
        self._length = len(raw)
        self.kept_bytes = FORM_BYTES + STRETCH_BYTES * len(self._fixed) + sum(map(len, self._fixed))
        """What it takes in memory, or more."""

    def fits(self, raw: bytes) -> bool:
        return len(raw) == self._length and self._unpack(raw) == self._fixed

    def count_fitting(self, several: Sequence[bytes]) -> int:
        """How many of these, all of this length, fit before the first that does not."""
        unpack, fixed = self._unpack, self._fixed
        found = [unpack(raw) for raw in several]
        if found.count(fixed) == len(found):
            return len(found)
        return next(place for place, each in enumerate(found) if each != fixed)


def _free(raw: bytes, fixed_headers: Collection[str]) -> Iterator[tuple[int, int]]:
    """Where values begin and end that publishing does not look at."""
    reader = Reader(raw)
    flags = reader.short()
    for name, kind in PROPERTIES:
        if not flags & FLAGS[name]:
            continue
        if kind == "table":
            end = reader.long() + reader.position
            while reader.position < end:
                is_fixed = reader.short_string() in fixed_headers
                start = reader.position
                reader.value()
                if not is_fixed and raw[start] == _TEXT:
                    yield start + 5, reader.position
                elif not is_fixed and raw[start] in NUMBERS:
                    yield start + 1, reader.position
            continue
        start = reader.position + (kind == "short_string")
        getattr(reader, kind)()
        if name in _FREE:
            yield start, reader.position
