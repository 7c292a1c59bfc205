"""Arrow: its content type, and pyarrow, which is imported where it is first needed.

A stream of Arrow is its schema, batches and an end mark one after the other, so each can be sent when it is made.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import msgspec

from smista.core.message import Envelope
from smista.engine.ids import ID_LENGTH, Ids
from smista.errors import ArrowMissing
from smista.service import properties

CONTENT_TYPE = b"application/vnd.apache.arrow.stream"
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
    """As `ids.message_id`, for a whole column."""
    from smista.engine.id_column import id_characters

    numpy: Any = importlib.import_module("numpy")
    characters = id_characters(ids.broker, numpy.array(numbers, "i8"), numpy.array(created_at_ms, "i8"))
    offsets = numpy.arange(0, ID_LENGTH * (len(numbers) + 1), ID_LENGTH, "i4")
    return pyarrow.Array.from_buffers(
        pyarrow.string(), len(numbers), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(characters)]
    )


class EnvelopeColumns(NamedTuple):
    """What a publisher gave with the body, as columns show it."""

    exchange: str | None
    routing_key: str | None
    group: str | None = None
    deduplication_id: str | None = None
    ttl_ms: int | None = None
    max_retries: int | None = None
    content_type: str | None = None
    headers: list[tuple[str, str]] | None = None
    properties: bytes | None = None


def envelope_columns(envelope: Envelope) -> EnvelopeColumns:
    given = properties.read(envelope.properties)
    headers = [(clean(name), _header_text(value)) for name, value in given.headers.items()]
    return EnvelopeColumns(
        clean(envelope.exchange) or None,
        clean(envelope.routing_key) or None,
        envelope.group and clean(envelope.group),
        envelope.deduplication_id and clean(envelope.deduplication_id),
        envelope.ttl_ms,
        envelope.max_retries,
        given.content_type and clean(given.content_type),
        headers or None,
        envelope.properties or None,
    )


def _header_text(value: object) -> str:
    """A header's value in a column of text: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return clean(msgspec.json.encode(value, enc_hook=str).decode())


def clean(text: str) -> str:
    """Text that Arrow takes: half a surrogate pair is none."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
