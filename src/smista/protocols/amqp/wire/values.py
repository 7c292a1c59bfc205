"""Values on the wire: integers, strings, and field tables with their types.

Reading goes through a `Reader` over one frame's payload. No length in the data is believed before it has been held
against what is there, so nothing is ever allocated for bytes that did not come. What cannot be read is a `SyntaxFault`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

DEPTH_MAX = 64
"""Tables and arrays within each other; more is taken for an attack on the stack."""
SHORT_BYTES_MAX = 255
VALUES_MAX = 12_000
"""Values in the tables and arrays of one frame, all of which are read in one step: some 10 ms. A `CC` may name that
many queues less a few."""

_VOID = ord("V")
_TEXT = ord("S")
_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")
_LONG_LONG = struct.Struct(">Q")
_FIXED: dict[int, struct.Struct] = {
    ord("b"): struct.Struct(">b"),
    ord("B"): struct.Struct(">B"),
    ord("s"): struct.Struct(">h"),
    ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"),
    ord("i"): struct.Struct(">I"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
    ord("f"): struct.Struct(">f"),
    ord("d"): struct.Struct(">d"),
}
NUMBERS = _FIXED.keys()
"""The types of numbers: whatever their bytes are, they are one."""


class SyntaxFault(Exception):
    """The bytes are not what AMQP says should stand here."""


class TooManyValues(SyntaxFault):
    """It would take too long to read them."""

    def __init__(self, values_max: int) -> None:
        super().__init__(f"tables and arrays of a frame hold more than {values_max} values, which is the most")


class MalformedText(SyntaxFault):
    """A name is not UTF-8."""


class Timestamp(int):
    """Seconds since 1970, as type `T`."""


class LongInteger(int):
    """Written as type `l` whatever its size."""


class Octets(bytes):
    """Written as type `x`: bytes that are no text."""


class Arguments(dict[str, Any]):
    """A table that was read, and by name the types its values had on the wire, in RabbitMQ's words."""

    __slots__ = ("types",)

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, str] = {}


TYPE_NAMES = {
    "A": "array",
    "B": "unsignedbyte",
    "D": "decimal",
    "F": "table",
    "I": "signedint",
    "L": "long",
    "S": "longstr",
    "T": "timestamp",
    "V": "void",
    "b": "byte",
    "d": "double",
    "f": "float",
    "i": "unsignedint",
    "l": "long",
    "s": "short",
    "t": "bool",
    "u": "unsignedshort",
    "x": "binary",
}


class Reader:
    __slots__ = ("_values_left", "_values_max", "data", "end", "position")

    def __init__(self, data: bytes, values_max: int = sys.maxsize) -> None:
        """`values_max` is for what somebody sends; what was taken once is always read."""
        self.data = data
        self.position = 0
        self.end = len(data)
        self._values_left = self._values_max = values_max

    @property
    def value_count(self) -> int:
        """How many values of tables and arrays were read."""
        return self._values_max - self._values_left

    def take(self, count: int) -> int:
        """Where `count` bytes start that are then behind us."""
        start = self.position
        if start + count > self.end:
            raise SyntaxFault(f"{count} bytes are announced and {self.end - start} are there")
        self.position = start + count
        return start

    def octet(self) -> int:
        return self.data[self.take(1)]

    def short(self) -> int:
        return int(_SHORT.unpack_from(self.data, self.take(2))[0])

    def long(self) -> int:
        return int(_LONG.unpack_from(self.data, self.take(4))[0])

    def long_long(self) -> int:
        return int(_LONG_LONG.unpack_from(self.data, self.take(8))[0])

    def raw(self, count: int) -> bytes:
        start = self.take(count)
        return self.data[start : start + count]

    def short_string(self) -> str:
        """Text; what is not UTF-8 is somebody's bytes all the same: kept, and given back as it came."""
        # In one go: a table may hold thousands of names.
        first = self.position + 1
        if first <= self.end:
            end = first + self.data[first - 1]
            if end <= self.end:
                self.position = end
                return self.data[first:end].decode("utf-8", "surrogateescape")
        return self.raw(self.octet()).decode("utf-8", "surrogateescape")

    def name(self) -> str:
        """A short string that has to be text."""
        try:
            return self.raw(self.octet()).decode()
        except UnicodeDecodeError:
            raise MalformedText("Malformed UTF-8 in shortstr") from None

    def long_string(self) -> bytes:
        return self.raw(self.long())

    def table(self, depth: int = 0) -> Arguments:
        outer_end = self._go_inside(depth)
        found = Arguments()
        while self.position < self.end:
            name = self.short_string()
            start = self.position
            found[name] = self.value(depth)
            found.types[name] = TYPE_NAMES[chr(self.data[start])]
        self.end = outer_end
        return found

    def table_and_bytes(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """A table, and by name the bytes of each value with its type, for who wants to write it again as it came."""
        outer_end = self._go_inside(0)
        found: dict[str, Any] = {}
        written: dict[str, bytes] = {}
        while self.position < self.end:
            name = self.short_string()
            start = self.position
            found[name] = self.value()
            written[name] = self.data[start : self.position]
        self.end = outer_end
        return found, written

    def value(self, depth: int = 0) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            raise TooManyValues(self._values_max)
        # As names, in one go where it is all there.
        data, position = self.data, self.position + 1
        if position > self.end:
            self.take(1)
        self.position = position
        tag = data[position - 1]
        if tag == _VOID:
            return None
        fixed = _FIXED.get(tag)
        if fixed is not None:
            return fixed.unpack_from(data, self.take(fixed.size))[0]
        if tag == _TEXT and position + 4 <= self.end:
            end = position + 4 + _LONG.unpack_from(data, position)[0]
            if end <= self.end:
                self.position = end
                return _text_or_bytes(data[position + 4 : end])
        match chr(tag):
            case "S":
                return _text_or_bytes(self.long_string())
            case "t":
                return self.octet() != 0
            case "F":
                return self.table(depth + 1)
            case "A":
                return self._array(depth + 1)
            case "T":
                return Timestamp(self.long_long())
            case "D":
                scale = self.octet()
                unscaled = struct.unpack_from(">i", self.data, self.take(4))[0]
                return Decimal(unscaled).scaleb(-scale)
            case "x":
                return Octets(self.long_string())
        raise SyntaxFault(f"a table holds a value of unknown type {tag}")

    def _array(self, depth: int) -> list[Any]:
        outer_end = self._go_inside(depth)
        found = []
        while self.position < self.end:
            found.append(self.value(depth))
        self.end = outer_end
        return found

    def _go_inside(self, depth: int) -> int:
        """Let the end be that of what a length announces; returns where it was."""
        if depth > DEPTH_MAX:
            raise SyntaxFault(f"tables are nested more than {DEPTH_MAX} deep")
        length = self.long()
        self.position = self.take(length)
        outer_end, self.end = self.end, self.position + length
        return outer_end


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def short_string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > SHORT_BYTES_MAX:
        raise ValueError(f"a short string of {len(data)} bytes")
    return bytes((len(data),)) + data


def cut(text: str) -> str:
    """As much of a text as a short string holds, and always UTF-8."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > SHORT_BYTES_MAX:
        data = data[: SHORT_BYTES_MAX - 3] + b"..."
        return data.decode("utf-8", "ignore")
    return data.decode("utf-8", "replace")


def long_string(data: bytes) -> bytes:
    return _LONG.pack(len(data)) + data


def table(values: Mapping[str, object]) -> bytes:
    return long_string(b"".join(short_string(name) + field(value) for name, value in values.items()))


def table_as_it_came(values: Mapping[str, object], read: Mapping[str, object], written: Mapping[str, bytes]) -> bytes:
    """A table in which values that are still those that were read keep their bytes, and so their types."""
    entries = []
    for name, value in values.items():
        is_kept = name in read and read[name] is value
        entries.append(short_string(name) + (written[name] if is_kept else field(value)))
    return long_string(b"".join(entries))


def field(value: object) -> bytes:
    """A value with its type, as RabbitMQ's own clients write it."""
    match value:
        case bool():
            return b"t\x01" if value else b"t\x00"
        case Timestamp():
            return b"T" + _LONG_LONG.pack(value)
        case LongInteger():
            return b"l" + _FIXED[ord("l")].pack(value)
        case int():
            return _integer(value)
        case str():
            return b"S" + long_string(value.encode("utf-8", "surrogateescape"))
        case Octets():
            return b"x" + long_string(value)
        case bytes():
            return b"S" + long_string(value)
        case float():
            return b"d" + _FIXED[ord("d")].pack(value)
        case None:
            return b"V"
        case Decimal():
            return _decimal(value)
        case Mapping():
            return b"F" + table(value)
        case Sequence():
            return b"A" + long_string(b"".join(field(each) for each in value))
    return b"S" + long_string(str(value).encode())


def _integer(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"I" + _FIXED[ord("I")].pack(value)
    if -(1 << 63) <= value < 1 << 63:
        return b"l" + _FIXED[ord("l")].pack(value)
    return b"S" + long_string(str(value).encode())


def _decimal(value: Decimal) -> bytes:
    if value.is_finite() and value.adjusted() < 10:
        exponent = value.as_tuple().exponent
        scale = -exponent if isinstance(exponent, int) and exponent < 0 else 0
        unscaled = int(value.scaleb(scale)) if scale <= 255 else 1 << 31
        if -(1 << 31) <= unscaled < 1 << 31:
            return b"D" + bytes((scale,)) + struct.pack(">i", unscaled)
    return b"S" + long_string(str(value).encode())
