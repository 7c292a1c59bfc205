"""How numbers stand in the log: little-endian, unsigned, one after the other without padding.

A `Layout` is the one place where the fields at the beginning of a record are written down. Whoever writes, reads,
counts or documents the record takes their order, widths and offsets from it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from smista.records.errors import RecordError

U8 = "u8"
U16 = "u16"
U32 = "u32"
U64 = "u64"
_FORMATS = {U8: "B", U16: "H", U32: "I", U64: "Q"}


class Field(NamedTuple):
    """One field of a record, with the name of its type in docs/log-format.md."""

    name: str
    type: str


class Layout:
    """Numbers of fixed width. A record's other fields follow them."""

    __slots__ = ("fields", "offsets", "pack", "size", "unpack_from")

    def __init__(self, **numbers: str) -> None:
        """Each number's name and width, in their order."""
        form = struct.Struct("<" + "".join(_FORMATS[width] for width in numbers.values()))
        self.fields = tuple(Field(name, width) for name, width in numbers.items())
        self.size = form.size
        self.offsets: dict[str, int] = {}
        """Where each number begins."""
        offset = 0
        for name, width in numbers.items():
            self.offsets[name] = offset
            offset += struct.calcsize(_FORMATS[width])
        # Methods of `Struct` itself: these are called for every record, and for every message that enters.
        self.pack: Callable[..., bytes] = form.pack
        self.unpack_from: Callable[..., tuple[int, ...]] = form.unpack_from

    @property
    def dtype(self) -> list[tuple[str, str]]:
        """What numpy makes such a structure from."""
        return [(name, f"<u{struct.calcsize(_FORMATS[width])}") for name, width in self.fields]

    def read(self, data: bytes | memoryview) -> tuple[int, ...]:
        """The numbers at the beginning of a record."""
        try:
            return self.unpack_from(data)
        except struct.error as error:
            raise RecordError(f"A record is cut short: {error}.") from None


class Numbers:
    """Numbers of one width, as many as there are."""

    __slots__ = ("_letter", "_pack_one", "size", "type")

    def __init__(self, width: str) -> None:
        self._letter = _FORMATS[width]
        self._pack_one = struct.Struct(f"<{self._letter}").pack
        self.size = struct.calcsize(self._letter)
        """Of each."""
        self.type = f"count x {width}"

    def pack(self, numbers: Sequence[int]) -> bytes:
        # One by itself is the most frequent: 0.05 us, against 0.25 by way of a format.
        if len(numbers) == 1:
            return self._pack_one(numbers[0])
        return struct.pack(f"<{len(numbers)}{self._letter}", *numbers)

    def read(self, data: bytes | memoryview, offset: int, count: int) -> tuple[int, ...]:
        check_fits(data, offset + self.size * count)
        return struct.unpack_from(f"<{count}{self._letter}", data, offset)


INSTANT = Layout(at_ms=U64)
LENGTH = Layout(length=U32)


def check_fits(data: bytes | memoryview, end: int) -> None:
    """Raise unless the record has that many bytes."""
    if end > len(data):
        raise RecordError(f"A record names {end} bytes and has {len(data)}.")
