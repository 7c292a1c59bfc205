"""Arrow at the HTTP door: its content type, and pyarrow, which is imported where it is first needed.

A stream of Arrow is its schema, batches and an end mark one after the other, so each can be sent when it is made.
"""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from smista.engine.ids import Ids
from smista.protocols.http.errors import ArrowMissing

CONTENT_TYPE = b"application/vnd.apache.arrow.stream"
_ID_LENGTH = 36
_ID_DIGITS = [place for place in range(_ID_LENGTH) if place not in (8, 13, 18, 23)]
"""Where in an id the 32 digits stand; between them are dashes."""
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def load() -> Any:
    """The module pyarrow with its parts `compute` and `ipc`, or raise how to get it. numpy comes with it."""
    try:
        pyarrow = importlib.import_module("pyarrow")
        for part in ("pyarrow.compute", "pyarrow.ipc", "numpy"):
            importlib.import_module(part)
    except ImportError:
        raise ArrowMissing(
            "This needs pyarrow where the broker runs, and it is not there; install it: pip install 'smista[spark]'."
        ) from None
    return pyarrow


def message_ids(pyarrow: Any, ids: Ids, numbers: list[int], created_at_ms: list[int]) -> Any:
    """As `ids.message_id`, for a whole column; measured at a twentieth of it."""
    numpy: Any = importlib.import_module("numpy")
    base = int(ids.message_id(0, 0).replace("-", ""), 16)
    halves = numpy.empty((len(numbers), 2), ">u8")
    halves[:, 0] = (numpy.array(created_at_ms, "u8") << numpy.uint64(16)) | numpy.uint64(base >> 64)
    halves[:, 1] = numpy.array(numbers, "u8") | numpy.uint64(base & ((1 << 64) - 1))
    digits = numpy.frombuffer(halves.tobytes().hex().encode(), "u1").reshape(len(numbers), 32)
    texts = numpy.full((len(numbers), _ID_LENGTH), ord("-"), "u1")
    texts[:, _ID_DIGITS] = digits
    offsets = numpy.arange(0, _ID_LENGTH * (len(numbers) + 1), _ID_LENGTH, "i4")
    return pyarrow.Array.from_buffers(
        pyarrow.string(), len(numbers), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(texts)]
    )


def header_text(value: object) -> str:
    """A header's value in a column of text: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return clean(msgspec.json.encode(value, enc_hook=str).decode())


def clean(text: str) -> str:
    """Text that Arrow takes: half a surrogate pair is none."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
