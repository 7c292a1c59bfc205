"""Every method of the protocol as a structure whose annotations are its wire format."""

from __future__ import annotations

import struct
import typing
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from smista.protocols.amqp.wire import values
from smista.protocols.amqp.wire.values import VALUES_MAX, Reader, SyntaxFault

Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
Long = Annotated[int, "long"]
LongLong = Annotated[int, "long_long"]
ShortString = Annotated[str, "name"]
AnyShortString = Annotated[str, "short_string"]
"""Bytes that need not be text: in methods that come with content RabbitMQ does not look."""
LongString = Annotated[bytes, "long_string"]
Bit = Annotated[bool, "bit"]
Table = Annotated[dict[str, Any], "table"]


class Method(msgspec.Struct):
    INDEX: ClassVar[tuple[int, int]]
    FIELDS: ClassVar[tuple[tuple[str, str], ...]]


METHODS: dict[tuple[int, int], type[Method]] = {}

M = TypeVar("M", bound=type[Method])


def method(class_number: int, method_number: int) -> typing.Callable[[M], M]:
    def enter(kind: M) -> M:
        hints = typing.get_type_hints(kind, include_extras=True)
        kind.INDEX = (class_number, method_number)
        kind.FIELDS = tuple((name, hints[name].__metadata__[0]) for name in kind.__struct_fields__)
        METHODS[kind.INDEX] = kind
        return kind

    return enter


def read(payload: bytes) -> Method:
    """The method in a frame. Raises `SyntaxFault`, or `KeyError` with the index of a method nobody knows."""
    reader = Reader(payload, VALUES_MAX)
    index = (reader.short(), reader.short())
    kind = METHODS[index]
    found: list[Any] = []
    bits = bit = 0
    for _, wire in kind.FIELDS:
        if wire == "bit":
            if bit == 0:
                bits = reader.octet()
            found.append(bool(bits >> bit & 1))
            bit = (bit + 1) % 8
        else:
            bit = 0
            found.append(getattr(reader, wire)())
    if reader.position != reader.end:
        raise SyntaxFault(f"{reader.end - reader.position} bytes follow the method's arguments")
    return kind(*found)


_INTEGERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "long_long": struct.Struct(">Q"),
}


def write(method: Method) -> bytes:
    """The payload of the method's frame."""
    parts = [struct.pack(">HH", *method.INDEX)]
    bits = bit = 0
    for name, wire in method.FIELDS:
        value = getattr(method, name)
        if wire == "bit":
            if bit == 0:
                parts.append(b"")
                bits = 0
            bits |= bool(value) << bit
            parts[-1] = bytes((bits,))
            bit = (bit + 1) % 8
            continue
        bit = 0
        if wire in _INTEGERS:
            parts.append(_INTEGERS[wire].pack(value))
        elif wire in ("name", "short_string"):
            parts.append(values.short_string(value))
        elif wire == "long_string":
            parts.append(values.long_string(value))
        else:
            parts.append(values.table(value))
    return b"".join(parts)
