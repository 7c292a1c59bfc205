"""Records that are one msgpack array: rare ones, whose fields may grow.

A field may be appended to the structure with a default; readers take that where the field is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from smista.records.errors import RecordError
from smista.records.frames import framed
from smista.records.kinds import Kind

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


def codec(kind: Kind, fields: type[T]) -> tuple[Callable[[T], bytes], Callable[[memoryview], T]]:
    """How such a record is written, and how its data is read."""
    decoder = msgspec.msgpack.Decoder(fields)

    def encode(values: T) -> bytes:
        return framed(kind, _encode(values))

    def decode(data: memoryview) -> T:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordError(f"A {kind.name} record does not decode: {error}.") from None

    return encode, decode
