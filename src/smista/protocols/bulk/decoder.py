"""Blocks to rows. The hot loop of bulk reading: everything per row that can wait is left to numpy, see `batch`.

A record becomes a **run**: so many rows that differ in their sequence alone. Runs are packed as they come and read back
as one array. Messages that enter become **entries** beside their run: the fixed head as it stands in the log, the
envelope by its code, the body as a view of the block. Nothing is decoded that was not asked for, and records of kinds
or queues that were not asked for are stepped over; they only count, so that the rows after them keep their index.

Measured with bodies of 1 KB and all columns, from blocks to bytes that can be sent, on two cores with three times as
much to do: 1.4 us for a row of a batch of equal messages, 2.2 us of different ones, 5 us for one published alone. And
without bodies: 0.8, 1.7 and 3.5 us; 1.7 us for an acknowledgement alone, 0.7 us in batches of 100.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from smista.core.caches import cached_if_small
from smista.core.message import Envelope, Reason
from smista.engine.recorder import QueueDeletedRecord, ReaddressedRecord
from smista.log import records
from smista.log.records import HAS_EXPIRES_AT, HAS_READY_AT, Kind, RecordError
from smista.protocols import properties
from smista.protocols.amqp import content  # noqa: F401  # brings the reader of its properties
from smista.protocols.bulk.columns import KINDS
from smista.protocols.bulk.walking import new_in, walk
from smista.protocols.http.arrow import clean, header_text
from smista.protocols.sqs import message_attributes  # noqa: F401  # as well

NONE = -1
"""Stands for null wherever a number is packed."""
ENTRY = np.dtype([("sequence", "<i8"), ("priority", "u1"), ("flags", "u1"), ("envelope", "<u4"), ("body", "<u4")])
RUN = np.dtype(
    [
        (name, "<i8")
        for name in (
            "kind",
            "queue",
            "at_ms",
            "count",
            "position",
            "index",
            "reason",
            "deadline_ms",
            "consumer",
            "ready_at_ms",
            "target_queue",
            "target_sequence",
            "delivery_count",
            "purged",
            "error",
            "envelope",
        )
    ]
)
EVEN_MIN = 16
"""From how many entries on it pays to look whether all are alike."""
ENVELOPE_COLUMNS = frozenset(
    (
        "exchange",
        "routing_key",
        "group",
        "deduplication_id",
        "ttl_ms",
        "max_retries",
        "content_type",
        "headers",
        "properties",
    )
)
REASONS = [""] + [reason.name.lower() for reason in Reason]
"""By number. `all` and `ready` say what was purged."""
ALL, READY = len(REASONS), len(REASONS) + 1
REASONS += ["all", "ready"]

_ENQUEUED, _DELIVERED, _EXTENDED, _RETURNED, _RESCHEDULED, _READY, _ACKED, _EXPIRED, _REMOVED = range(9)
_DEAD_LETTERED, _MOVED, _PURGED, _DELETED = range(9, 13)
assert KINDS[_EXPIRED] == "expired"
assert KINDS[_DELETED] == "deleted"

_RUN = struct.Struct("<16q")
_RUN_HEAD = struct.Struct("<6q")
_RUN_REST = struct.Struct("<10q")
_LENGTHS = struct.Struct("<II")
_ENTRY = struct.Struct("<qBBII")
_ENTERED = struct.Struct("<IQI")
_FANNED_OUT = struct.Struct("<QIII")
_TARGET = struct.Struct("<IqBB")
_DELIVERED_HEAD = struct.Struct("<IQQIIQBI")
_EXTENDED_HEAD = struct.Struct("<IQQI")
_REMOVED_HEAD = struct.Struct("<IQBI")
_GIVEN_BACK = struct.Struct("<IQQQBH")
_RESCHEDULED_HEAD = struct.Struct("<IQQQ")
_PURGED_HEAD = struct.Struct("<IQQQB")
_U64 = struct.Struct("<Q")
_NOTHING_MORE = _RUN_REST.pack(*([NONE] * 10))
_NO_SEQUENCE = struct.pack("<q", NONE)
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_encode_envelope = msgspec.msgpack.Encoder().encode


class Wanted(NamedTuple):
    """What was asked for."""

    columns: frozenset[str]
    kinds: frozenset[str]
    bodies: bool
    accepts: Callable[[str, str], bool]
    """Whether rows of the queue with this namespace and name are."""


class Said(NamedTuple):
    """What a publisher said beside the body, as the columns show it."""

    exchange: str | None
    routing_key: str | None
    group: str | None = None
    deduplication_id: str | None = None
    ttl_ms: int | None = None
    max_retries: int | None = None
    content_type: str | None = None
    headers: list[tuple[str, str]] | None = None
    properties: bytes | None = None


class Decoder:
    """Takes blocks and collects their rows until `batch.build` makes a batch of them and `clear` forgets them."""

    def __init__(self, wanted: Wanted, name_of: Callable[[int, int], tuple[str, str]]) -> None:
        """`name_of(number, position)`: namespace and name of the queue that a record in that block names."""
        self.wanted = wanted
        self.places: list[tuple[str, str]] = []
        """Namespace and name of each queue, by the code that runs have for it."""
        self._name_of = name_of
        self._has_bodies = wanted.bodies and "body" in wanted.columns
        self._has_envelopes = bool(ENVELOPE_COLUMNS & wanted.columns)
        self._has_errors = "error" in wanted.columns
        self._is_wanted = [kind in wanted.kinds for kind in KINDS]
        self._codes: dict[int, int] = {}
        self._place_codes: dict[int, int] = {}
        self._position = 0
        self._index = 0
        self._view = memoryview(b"")
        self._take = {
            Kind.ENQUEUED: self._enqueued,
            Kind.FANNED_OUT: self._fanned_out,
            Kind.PLACED: self._placed,
            Kind.DELIVERED: self._delivered,
            Kind.EXTENDED: self._extended,
            Kind.GIVEN_BACK: self._given_back,
            Kind.RESCHEDULED: self._rescheduled,
            Kind.BECAME_READY: self._became_ready,
            Kind.ACKNOWLEDGED: self._acknowledged,
            Kind.REMOVED: self._removed,
            Kind.PARKED: self._parked,
            Kind.MOVED: self._moved,
            Kind.READDRESSED: self._readdressed,
            Kind.PURGED: self._purged,
            Kind.QUEUE_DELETED: self._queue_deleted,
        }
        self.clear()

    def clear(self) -> None:
        self.row_count = 0
        self.body_bytes = 0
        self.runs: list[bytes] = []
        self.sequences: list[bytes] = []
        """Of the rows that are no entries."""
        self.entries: list[bytes] = []
        self.entry_count = 0
        self.envelope_codes: list[int] = []
        """One per entry, where envelopes were asked for."""
        self.envelopes: list[Said] = []
        self._envelope_codes: dict[bytes, int] = {}
        self.bodies: list[bytes | memoryview] = []
        self.ready_at: tuple[list[int], list[int]] = ([], [])
        """Which entries have one of their own, and what it is; so the next three."""
        self.expires_at: tuple[list[int], list[int]] = ([], [])
        self.created_at: tuple[list[int], list[int]] = ([], [])
        self.numbers: tuple[list[int], list[int]] = ([], [])
        self.errors: list[str] = []
        self.consumers: list[str] = []
        self._consumer_codes: dict[bytes, int] = {}

    def add(self, position: int, block: bytes) -> None:
        """Collect the rows of one block."""
        self._position = position
        self._index = 0
        self._view = memoryview(block)
        take = self._take
        try:
            for kind, start, end in walk(block):
                taker = take.get(kind)  # type: ignore[call-overload]  # an IntEnum is found by its number
                if taker is not None:
                    taker(block, start, end)
        except (struct.error, msgspec.DecodeError, ValueError, LookupError) as error:
            raise RecordError(f"A record in block {position} makes no sense: {error}.") from None

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _step(self, kind: int, number: int, count: int) -> int:
        """Count rows in; the code of their queue, or NONE when they were not asked for."""
        self._index += count
        if not self._is_wanted[kind]:
            return NONE
        code = self._codes.get(number)
        return self._code(number) if code is None else code

    def _code(self, number: int) -> int:
        namespace, name = self._name_of(number, self._position)
        code = self._place(number) if self.wanted.accepts(namespace, name) else NONE
        self._codes[number] = code
        return code

    def _place(self, number: int) -> int:
        """The code of a queue whether its rows are wanted or not."""
        code = self._place_codes.get(number)
        if code is None:
            code = self._place_codes[number] = len(self.places)
            self.places.append(self._name_of(number, self._position))
        return code

    def _plain_run(self, kind: int, code: int, at_ms: int, count: int) -> None:
        """A run of which nothing more is known. Most are such: 0.3 us against 0.8."""
        self.runs.append(_RUN_HEAD.pack(kind, code, at_ms, count, self._position, self._index - count) + _NOTHING_MORE)
        self.row_count += count

    def _run(
        self,
        kind: int,
        code: int,
        at_ms: int,
        count: int,
        *,
        reason: int = NONE,
        deadline_ms: int = NONE,
        consumer: int = NONE,
        ready_at_ms: int = NONE,
        target_queue: int = NONE,
        target_sequence: int = NONE,
        delivery_count: int = NONE,
        purged: int = NONE,
        error: int = NONE,
    ) -> None:
        head = _RUN_HEAD.pack(kind, code, at_ms, count, self._position, self._index - count)
        rest = _RUN_REST.pack(
            reason,
            deadline_ms,
            consumer,
            ready_at_ms,
            target_queue,
            target_sequence,
            delivery_count,
            purged,
            error,
            NONE,
        )
        self.runs.append(head + rest)
        self.row_count += count

    # -- entering -----------------------------------------------------------------------------------------------------

    def _enqueued(self, block: bytes, start: int, end: int) -> None:
        number, at_ms, count = _ENTERED.unpack_from(block, start)
        code = self._step(_ENQUEUED, number, count)
        if code < 0 or not count:
            return
        start += _ENTERED.size
        self._plain_run(_ENQUEUED, code, at_ms, count)
        if count < EVEN_MIN or not self._take_even(block, start, end, count):
            self._take_each(block, start, end, count)
        self.entry_count += count

    def _take_each(self, block: bytes, offset: int, end: int, count: int) -> None:
        view = self._view if self._has_bodies else None
        entries, bodies, lengths, has_envelopes = self.entries, self.bodies, _LENGTHS.unpack_from, self._has_envelopes
        for entry in range(self.entry_count, self.entry_count + count):
            flags = block[offset + 9]
            envelope_bytes, body_bytes = lengths(block, offset + 10)
            entries.append(block[offset : offset + 18])
            offset += 18
            if flags:
                offset = self._take_times(block, offset, flags, entry)
            if has_envelopes:
                if envelope_bytes:
                    self._take_envelope(block[offset : offset + envelope_bytes])
                else:
                    self.envelope_codes.append(NONE)
            offset += envelope_bytes
            if view is not None:
                bodies.append(view[offset : offset + body_bytes])
                self.body_bytes += body_bytes
            offset += body_bytes
        if offset != end:
            raise ValueError("its entries do not fill it")

    def _take_times(self, block: bytes, offset: int, flags: int, entry: int) -> int:
        for flag, (which, values) in ((HAS_READY_AT, self.ready_at), (HAS_EXPIRES_AT, self.expires_at)):
            if flags & flag:
                which.append(entry)
                values.append(_U64.unpack_from(block, offset)[0])
                offset += 8
        return offset

    def _take_even(self, block: bytes, start: int, end: int, count: int) -> bool:
        """Take entries that all have the same lengths and flags at one stroke; False when they have not."""
        stride, rest = divmod(end - start, count)
        if rest or stride < ENTRY.itemsize:
            return False
        heads = np.ndarray((count,), ENTRY, block, start, (stride,))
        flags, envelope_bytes, body_bytes = (int(heads[name][0]) for name in ("flags", "envelope", "body"))
        both = ((HAS_READY_AT, self.ready_at), (HAS_EXPIRES_AT, self.expires_at))
        times = [each for flag, each in both if flags & flag]
        body_at = ENTRY.itemsize + 8 * len(times) + envelope_bytes
        is_even = (
            stride == body_at + body_bytes
            and bool((heads["flags"] == flags).all())
            and bool((heads["envelope"] == envelope_bytes).all())
            and bool((heads["body"] == body_bytes).all())
        )
        if not is_even:
            return False
        self.entries.append(heads.tobytes())
        for place, (which, values) in enumerate(times):
            which += range(self.entry_count, self.entry_count + count)
            values += np.ndarray((count,), "<u8", block, start + 18 + 8 * place, (stride,)).tolist()
        if self._has_envelopes:
            self._take_envelopes(block, start + body_at - envelope_bytes, stride, count, envelope_bytes)
        if self._has_bodies:
            if body_bytes:
                bodies = np.ndarray((count, body_bytes), "u1", block, start + body_at, (stride, 1))
                # `tobytes` would go byte by byte here.
                self.bodies.append(np.ascontiguousarray(bodies).data)
            self.body_bytes += count * body_bytes
        return True

    def _take_envelopes(self, block: bytes, start: int, stride: int, count: int, size: int) -> None:
        first = block[start : start + size]
        all_of_them = np.ndarray((count, size), "u1", block, start, (stride, 1)) if size else None
        if all_of_them is None or bool((all_of_them == all_of_them[0]).all()):
            self._take_envelope(first)
            self.envelope_codes += [self.envelope_codes[-1]] * (count - 1)
        else:
            for at in range(start, start + stride * count, stride):
                self._take_envelope(block[at : at + size])

    def _take_envelope(self, envelope: bytes) -> None:
        if not envelope:
            self.envelope_codes.append(NONE)
            return
        code = self._envelope_codes.get(envelope)
        if code is None:
            code = self._envelope_codes[envelope] = len(self.envelopes)
            self.envelopes.append(read_envelope(envelope))
        self.envelope_codes.append(code)

    def _fanned_out(self, block: bytes, start: int, end: int) -> None:
        at_ms, envelope_bytes, body_bytes, count = _FANNED_OUT.unpack_from(block, start)
        envelope_at = start + _FANNED_OUT.size
        body_at = envelope_at + envelope_bytes
        offset = body_at + body_bytes
        envelope = block[envelope_at:body_at]
        body = self._view[body_at:offset]
        for _ in range(count):
            number, sequence, priority, flags = _TARGET.unpack_from(block, offset)
            offset += _TARGET.size
            code = self._step(_ENQUEUED, number, 1)
            if code >= 0:
                self._plain_run(_ENQUEUED, code, at_ms, 1)
                self._take_times(block, offset, flags, self.entry_count)
                self._enter(sequence, priority, envelope, body)
            offset += 8 * (flags & (HAS_READY_AT | HAS_EXPIRES_AT)).bit_count()
        if offset != end:
            raise ValueError("its targets do not fill it")

    def _enter(self, sequence: int, priority: int, envelope: bytes, body: memoryview) -> None:
        self.entries.append(_ENTRY.pack(sequence, priority, 0, len(envelope), len(body)))
        self.entry_count += 1
        if self._has_envelopes:
            self._take_envelope(envelope)
        if self._has_bodies:
            self.bodies.append(body)
            self.body_bytes += len(body)

    def _placed(self, block: bytes, start: int, end: int) -> None:
        placed_anew, body = new_in(block, start, end)
        for placed, envelope in placed_anew:
            code = self._step(_ENQUEUED, placed.queue, 1)
            if code < 0:
                continue
            self._plain_run(_ENQUEUED, code, placed.entered_at_ms, 1)
            for (which, values), value in (
                (self.ready_at, placed.ready_at_ms),
                (self.expires_at, placed.expires_at_ms),
                (self.created_at, placed.created_at_ms),
                (self.numbers, placed.number),
            ):
                if value is not None:
                    which.append(self.entry_count)
                    values.append(value)
            self._enter(placed.sequence, placed.priority, _encode_envelope(envelope), body)

    # -- transitions --------------------------------------------------------------------------------------------------

    def _take_sequences(self, block: bytes, start: int, end: int, count: int) -> None:
        if end - start != 8 * count:
            raise ValueError("its sequences do not fill it")
        self.sequences.append(block[start:end])

    def _delivered(self, block: bytes, start: int, end: int) -> None:
        number, at_ms, deadline_ms, _, first_count, _, name_bytes, count = _DELIVERED_HEAD.unpack_from(block, start)
        code = self._step(_DELIVERED, number, count)
        if code < 0:
            return
        name_at = start + _DELIVERED_HEAD.size
        name = block[name_at : name_at + name_bytes]
        consumer = self._consumer_codes.get(name) if name else NONE
        if consumer is None:
            consumer = self._consumer_codes[name] = len(self.consumers)
            self.consumers.append(name.decode("utf-8", "replace"))
        self._run(
            _DELIVERED,
            code,
            at_ms,
            count,
            deadline_ms=deadline_ms or NONE,
            consumer=consumer,
            delivery_count=1 if first_count == count else NONE,
        )
        self._take_sequences(block, name_at + name_bytes, end, count)

    def _extended(self, block: bytes, start: int, end: int) -> None:
        number, at_ms, deadline_ms, count = _EXTENDED_HEAD.unpack_from(block, start)
        code = self._step(_EXTENDED, number, count)
        if code >= 0:
            self._run(_EXTENDED, code, at_ms, count, deadline_ms=deadline_ms or NONE)
            self._take_sequences(block, start + _EXTENDED_HEAD.size, end, count)

    def _became_ready(self, block: bytes, start: int, end: int) -> None:
        self._settled(_READY, block, start, end)

    def _acknowledged(self, block: bytes, start: int, end: int) -> None:
        self._settled(_ACKED, block, start, end)

    def _settled(self, kind: int, block: bytes, start: int, end: int) -> None:
        number, at_ms, count = _ENTERED.unpack_from(block, start)
        code = self._step(kind, number, count)
        if code >= 0:
            self._plain_run(kind, code, at_ms, count)
            self._take_sequences(block, start + _ENTERED.size, end, count)

    def _removed(self, block: bytes, start: int, end: int) -> None:
        number, at_ms, reason, count = _REMOVED_HEAD.unpack_from(block, start)
        kind = _EXPIRED if reason in (Reason.EXPIRED, Reason.RETIRED) else _REMOVED
        code = self._step(kind, number, count)
        if code >= 0:
            self._run(kind, code, at_ms, count, reason=reason)
            self._take_sequences(block, start + _REMOVED_HEAD.size, end, count)

    def _given_back(self, block: bytes, start: int, end: int) -> None:
        number, _, at_ms, due_at_ms, reason, _ = _GIVEN_BACK.unpack_from(block, start)
        code = self._step(_RETURNED, number, 1)
        if code >= 0:
            text = block[start + _GIVEN_BACK.size : end].decode("utf-8", "replace") if self._has_errors else ""
            self._run(_RETURNED, code, at_ms, 1, reason=reason, ready_at_ms=due_at_ms, error=self._error(text))
            self.sequences.append(block[start + 4 : start + 12])

    def _error(self, text: str) -> int:
        if not text:
            return NONE
        self.errors.append(text)
        return len(self.errors) - 1

    def _rescheduled(self, block: bytes, start: int, end: int) -> None:
        number, _, at_ms, due_at_ms = _RESCHEDULED_HEAD.unpack_from(block, start)
        code = self._step(_RESCHEDULED, number, 1)
        if code >= 0:
            self._run(_RESCHEDULED, code, at_ms, 1, ready_at_ms=due_at_ms)
            self.sequences.append(block[start + 4 : start + 12])

    def _parked(self, block: bytes, start: int, end: int) -> None:
        parked = records.read_parked(self._view[start:end])
        code = self._step(_DEAD_LETTERED, parked.queue, 1)
        if code >= 0:
            error = self._error(parked.error)
            self._run(_DEAD_LETTERED, code, parked.at_ms, 1, reason=parked.reason, error=error)
            self.sequences.append(_U64.pack(parked.sequence))

    def _moved(self, block: bytes, start: int, end: int) -> None:
        moved = records.read_moved(self._view[start:end])
        kind = _MOVED if moved.reason == Reason.REDRIVEN else _DEAD_LETTERED
        code = self._step(kind, moved.source, 1)
        if code < 0:
            return
        self._run(
            kind,
            code,
            moved.at_ms,
            1,
            reason=moved.reason,
            target_queue=self._place(moved.target) if moved.target else NONE,
            target_sequence=moved.new_sequence,
            error=self._error(moved.error),
        )
        self.sequences.append(_U64.pack(moved.sequence))

    def _readdressed(self, block: bytes, start: int, end: int) -> None:
        """Belongs to the move before it, if that is a row."""
        record = records.unpack(self._view[start:end], ReaddressedRecord)
        if not self.runs or not self._has_envelopes:
            return
        *numbers, envelope = _RUN.unpack(self.runs[-1])
        if envelope == NONE and numbers[11] == record.sequence:
            self.runs[-1] = _RUN.pack(*numbers, len(self.envelopes))
            self.envelopes.append(Said(record.exchange or None, record.routing_key or None))

    def _purged(self, block: bytes, start: int, end: int) -> None:
        number, at_ms, cut, count, ready_only = _PURGED_HEAD.unpack_from(block, start)
        code = self._step(_PURGED, number, 1)
        if code >= 0:
            reason = READY if ready_only else ALL
            self._run(_PURGED, code, at_ms, 1, reason=reason, target_sequence=cut, purged=count)
            self.sequences.append(_NO_SEQUENCE)

    def _queue_deleted(self, block: bytes, start: int, end: int) -> None:
        deleted = records.unpack(self._view[start:end], QueueDeletedRecord)
        code = self._step(_DELETED, deleted.number, 1)
        if code >= 0:
            self._plain_run(_DELETED, code, deleted.at_ms, 1)
            self.sequences.append(_NO_SEQUENCE)


# -- envelopes --------------------------------------------------------------------------------------------------------


@cached_if_small(len)
def read_envelope(data: bytes) -> Said:
    """Most messages of a queue carry the same few, so they are read once."""
    envelope = _decode_envelope(data)
    said = properties.read(envelope.properties)
    headers = [(clean(name), header_text(value)) for name, value in said.headers.items()]
    return Said(
        clean(envelope.exchange) or None,
        clean(envelope.routing_key) or None,
        envelope.group and clean(envelope.group),
        envelope.deduplication_id and clean(envelope.deduplication_id),
        envelope.ttl_ms,
        envelope.max_retries,
        said.content_type and clean(said.content_type),
        headers or None,
        envelope.properties or None,
    )
