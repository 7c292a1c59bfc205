"""Rows that somebody stages as a stream of Arrow: which columns there may be, what must hold of them, and how they
become publications.

| column | type | meaning |
|---|---|---|
| `body` or `value` | binary or string | the message's body, never null |
| `id` | string | its deduplication id |
| `priority`, `delay_ms`, `ttl_ms`, `max_retries` | a whole number | as in a publish |
| `headers` | map of string to string | |
| `routing_key`, `group`, `content_type` | string | |
| `properties` | binary | instead of `headers` and `content_type`: all properties, as the log shows them |

Everything is checked when it is staged, so that a commit has nothing left to refuse but what depends on the queue. All
of this runs in threads. What comes from outside is validated before any of it is used: offsets that lead out of a
buffer would else be followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from smista.caches import ENTRIES_MAX, SMALL_BYTES
from smista.core.checks import ID_LENGTH_MAX, RETRIES_MAX
from smista.core.message import FOREVER_MS, PLAIN, Envelope, Publication
from smista.core.settings import PRIORITY_MAX
from smista.core.staging import Load, Row
from smista.engine.staging import STAGED_AT_ONCE
from smista.errors import InvalidRequest, RequestTooLarge
from smista.service import arrow, properties
from smista.service.plain_values import check_named
from smista.service.properties import PROPERTIES_BYTES_MAX, Properties
from smista.service.staging.sizes import unpacked_bytes
from smista.service.staging.unfolded import Unfolded

BATCH_BYTES_MAX = 256 << 20
"""Of one batch of rows in a stream: it is in memory as a whole."""
ROWS_MAX = 10_000_000
"""Of one stream: rows of nothing take next to no room in it, and 400 bytes each when they are published."""
BODIES = ("body", "value")
TEXTS = ("id", "routing_key", "group", "content_type")
NUMBERS = {"priority": PRIORITY_MAX, "delay_ms": FOREVER_MS, "ttl_ms": FOREVER_MS, "max_retries": RETRIES_MAX}
"""With the most that each may be."""
COLUMNS = (*BODIES, *TEXTS, *NUMBERS, "headers", "properties")
IN_PROPERTIES = ("headers", "content_type")
"""What `properties` hold too."""


def survey(path: Path, offset: int, bytes_max: int, unfolded: Unfolded) -> Load:
    """Read all of a stream in a file, from `offset` on, and add up what it holds; raise what is wrong with it.

    `bytes_max` is what it may have when it is decompressed; nothing beyond that is.
    """
    pyarrow = arrow.load()
    load = Load()
    for batch in _batches(pyarrow, path, offset, unfolded, bytes_max):
        _check_batch(pyarrow, batch, load.rows)
        if load.rows + batch.num_rows > ROWS_MAX:
            raise RequestTooLarge(f"The stream has more than {ROWS_MAX} rows; stage it in parts.")
        load.add(_load(pyarrow, batch))
        del batch  # before the next one is there
    return load


def _load(pyarrow: Any, batch: Any) -> Load:
    lengths = pyarrow.compute.binary_length(_bodies(pyarrow, batch))
    longest = pyarrow.compute.max(lengths).as_py() or 0
    priority = pyarrow.compute.max(batch.column("priority")).as_py() if "priority" in batch.schema.names else 0
    return Load(batch.num_rows, pyarrow.compute.sum(lengths).as_py() or 0, longest, priority or 0)


def read_rows(path: Path, offset: int, unfolded: Unfolded, *, exchange: str = "", skip: int = 0) -> Iterator[list[Row]]:
    """The rows of a stream that was surveyed, without the first `skip`, in slices that are published at once."""
    pyarrow = arrow.load()
    make = _Maker(exchange)
    for batch in _batches(pyarrow, path, offset, unfolded):
        for start in range(skip, batch.num_rows, STAGED_AT_ONCE):
            yield make.rows(pyarrow, batch.slice(start, STAGED_AT_ONCE))
        skip = max(0, skip - batch.num_rows)
        del batch  # before the next one is there


def _batches(pyarrow: Any, path: Path, offset: int, unfolded: Unfolded, bytes_max: int | None = None) -> Iterator[Any]:
    """`bytes_max` None: it was surveyed before."""
    with pyarrow.OSFile(str(path)) as file:
        _check_end(file, offset)
        file.seek(offset)
        try:
            messages = iter(pyarrow.ipc.MessageReader.open_stream(file))
            first = next(messages, None)
            if first is None or first.type != "schema":
                raise ValueError("it does not begin with a schema")
            schema = pyarrow.ipc.read_schema(first)
            _check_schema(pyarrow, schema)
            size = 0
            for message in messages:
                if message.type != "record batch":
                    raise ValueError(f"a {message.type} stands where a batch of rows should")
                batch_bytes = unpacked_bytes(message.metadata.to_pybytes(), memoryview(message.body))
                size += batch_bytes
                if bytes_max is not None and batch_bytes > BATCH_BYTES_MAX:
                    raise RequestTooLarge(
                        f"A batch of rows takes {batch_bytes} bytes when it is decompressed, and {BATCH_BYTES_MAX} is "
                        "the most; write smaller batches."
                    )
                if bytes_max is not None and size > bytes_max:
                    raise RequestTooLarge(
                        f"The stream is over {bytes_max} bytes when it is decompressed; stage it in parts, or raise "
                        "staged_bytes_max."
                    )
                with unfolded.batch(batch_bytes):
                    batch = pyarrow.ipc.read_record_batch(message, schema)
                    batch.validate(full=True)
                    yield batch
                    del batch, message
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise InvalidRequest(f"This is not a stream of Arrow: {str(error).splitlines()[0][:300]}") from None


def _check_end(file: Any, offset: int) -> None:
    """pyarrow takes a stream that ends between two batches for a whole one."""
    size = file.size()
    file.seek(max(offset, size - len(arrow.END_OF_STREAM)))
    if file.read() != arrow.END_OF_STREAM:
        raise InvalidRequest("This is not a stream of Arrow, or it is cut short: it has no mark at its end.")


# -- what may be in it ------------------------------------------------------------------------------------------------


def _check_schema(pyarrow: Any, schema: Any) -> None:
    types = pyarrow.types
    known = f"The columns known are {', '.join(COLUMNS)}."
    unknown = [name for name in schema.names if name not in COLUMNS]
    if unknown:
        raise InvalidRequest(f"There are columns that are not known: {', '.join(unknown)[:300]}. {known}")
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise InvalidRequest(f"Column {min(twice)!r} is there twice.")
    if sum(name in schema.names for name in BODIES) != 1:
        raise InvalidRequest(f"There must be a column `body` or a column `value`, one of them. {known}")
    if "properties" in schema.names and any(name in schema.names for name in IN_PROPERTIES):
        raise InvalidRequest(f"`properties` say also what {' and '.join(IN_PROPERTIES)} do; give them, or those.")
    for field in schema:
        expected, is_right = _expected(types, field.name)
        if not is_right(field.type):
            raise InvalidRequest(f"Column {field.name!r} is of type {field.type}; give {expected}. {known}")


def _expected(types: Any, name: str) -> tuple[str, Callable[[Any], bool]]:
    def is_text(kind: Any) -> bool:
        return bool(types.is_string(kind) or types.is_large_string(kind))

    if name in BODIES:
        return "binary or string", lambda kind: types.is_binary(kind) or types.is_large_binary(kind) or is_text(kind)
    if name in TEXTS:
        return "string", is_text
    if name in NUMBERS:
        return "a whole number", types.is_integer
    if name == "properties":
        return "binary", lambda kind: types.is_binary(kind) or types.is_large_binary(kind)
    return (
        "a map of string to string",
        lambda kind: types.is_map(kind) and is_text(kind.key_type) and is_text(kind.item_type),
    )


def _check_batch(pyarrow: Any, batch: Any, before: int) -> None:
    """Raise what is wrong with a row; `before` is how many came before this batch."""
    compute, names = pyarrow.compute, batch.schema.names
    [body] = [name for name in BODIES if name in names]
    _refuse(compute, batch.column(body).is_null(), before, f"`{body}` is null; every message has a body")
    for name, most in NUMBERS.items():
        if name in names:
            column = _signed(pyarrow, batch.column(name), f"`{name}` is not from 0 to {most}")
            is_wrong = compute.or_(compute.less(column, 0), compute.greater(column, most))
            _refuse(compute, is_wrong, before, f"`{name}` is not from 0 to {most}")
    for name in ("id", "group"):
        if name in names:
            lengths = compute.utf8_length(batch.column(name))
            is_wrong = compute.or_(compute.less(lengths, 1), compute.greater(lengths, ID_LENGTH_MAX))
            _refuse(compute, is_wrong, before, f"`{name}` has not 1 to {ID_LENGTH_MAX} characters")
    if "headers" in names and batch.column("headers").nbytes > PROPERTIES_BYTES_MAX // 2:
        # Only where one row could be too large is each measured.
        for place, headers in enumerate(batch.column("headers").to_pylist()):
            if len(_properties(headers, None)) > PROPERTIES_BYTES_MAX:
                raise InvalidRequest(
                    f"Row {before + place}: `headers` take more than {PROPERTIES_BYTES_MAX} bytes; nothing was staged."
                )
    if "properties" in names:
        column = batch.column("properties")
        is_wrong = compute.greater(compute.binary_length(column), PROPERTIES_BYTES_MAX)
        _refuse(compute, is_wrong, before, f"`properties` take more than {PROPERTIES_BYTES_MAX} bytes")
        for data in column.unique():
            _check_properties(data.as_py())


def _check_properties(data: bytes | None) -> None:
    """Every protocol reads them as they are, so they must be such as the one that their first byte names keeps."""
    if not data:
        return
    try:
        read = properties.read(data)
    except Exception:  # each reader has its own errors, and all say this
        raise InvalidRequest(
            "A row's `properties` are not those of a message; give what the column `properties` of the log has; "
            "nothing was staged."
        ) from None
    if data[0] == properties.NATIVE:
        check_named("headers", read.headers)


def _signed(pyarrow: Any, column: Any, why: str) -> Any:
    """A column of numbers as one that can be compared with any number, also with one below 0."""
    try:
        return column.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        raise InvalidRequest(f"A row's {why}; nothing was staged.") from None


def _refuse(compute: Any, is_wrong: Any, before: int, why: str) -> None:
    place = compute.index(is_wrong, True).as_py()
    if place >= 0:
        raise InvalidRequest(f"Row {before + place}: {why}; nothing was staged.")


# -- as publications --------------------------------------------------------------------------------------------------


def _bodies(pyarrow: Any, batch: Any) -> Any:
    [name] = [name for name in BODIES if name in batch.schema.names]
    column = batch.column(name)
    is_large = pyarrow.types.is_large_binary(column.type) or pyarrow.types.is_large_string(column.type)
    return column.cast(pyarrow.large_binary() if is_large else pyarrow.binary())


def _properties(headers: list[tuple[str, str]] | None, content_type: str | None) -> bytes:
    if not headers and content_type is None:
        return b""
    return properties.write(Properties(headers=dict(headers or ()), content_type=content_type))


OF_ENVELOPE = ("properties", "headers", "content_type", "routing_key", "group", "ttl_ms", "max_retries")
"""The columns that an envelope is made of."""


class _Maker:
    """Makes rows; messages that are alike share an envelope."""

    def __init__(self, exchange: str) -> None:
        self._exchange = exchange
        self._envelopes: dict[tuple[object, ...], Envelope] = {}

    def rows(self, pyarrow: Any, batch: Any) -> list[Row]:
        bodies = _bodies(pyarrow, batch).to_pylist()
        values = {name: batch.column(name).to_pylist() for name in batch.schema.names if name not in BODIES}
        if not values and not self._exchange:
            return [Row(Publication(body)) for body in bodies]
        nothing: list[None] = [None] * len(bodies)
        columns = [values.get(name, nothing) for name in OF_ENVELOPE]
        ids, priorities, delays = (values.get(name, nothing) for name in ("id", "priority", "delay_ms"))
        return [
            Row(Publication(body, self._envelope(identity, *given), priority, delay_ms), self._routed_by(*given[:2]))
            for body, identity, priority, delay_ms, *given in zip(
                bodies, ids, priorities, delays, *columns, strict=True
            )
        ]

    def _routed_by(self, kept: bytes | None, headers: list[tuple[str, str]] | None) -> dict[str, Any] | None:
        """The headers, for an exchange to route by."""
        if not self._exchange:
            return None
        return (properties.read(kept).headers if kept else dict(headers or ())) or None

    def _envelope(
        self,
        identity: str | None,
        kept: bytes | None,
        headers: list[tuple[str, str]] | None,
        content_type: str | None,
        routing_key: str | None,
        group: str | None,
        ttl_ms: int | None,
        max_retries: int | None,
    ) -> Envelope:
        if kept or headers or identity is not None:
            data = kept or _properties(headers, content_type)
            return Envelope(data, self._exchange, routing_key or "", group, identity, ttl_ms, max_retries)
        key = (content_type, routing_key, group, ttl_ms, max_retries)
        envelope = self._envelopes.get(key)
        if envelope is None:
            data = _properties(None, content_type)
            envelope = Envelope(data, self._exchange, routing_key or "", group, None, ttl_ms, max_retries)
            if envelope == PLAIN:
                envelope = PLAIN
            if len(self._envelopes) < ENTRIES_MAX and envelope.size <= SMALL_BYTES:
                self._envelopes[key] = envelope
        return envelope
