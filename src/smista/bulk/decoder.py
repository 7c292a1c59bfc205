"""Blocks to rows. The hot loop of bulk reading: everything per row that can wait is left to numpy, see `batch`.

A record becomes a **run**: so many rows that differ in their sequence alone. Which columns it fills stands with the
record, in `smista.records`. Runs are packed as they come and read back as one array. Messages that enter become
**entries** beside their run, see `entries`. Nothing is decoded that was not asked for, and records of kinds or queues
that were not asked for are stepped over; they only count, so that the rows after them keep their index.

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

from smista import records
from smista.bulk.entries import ENVELOPE_COLUMNS, Entries
from smista.records import Kind, RecordError
from smista.records.rows import KINDS, NONE
from smista.records.sequences import SEQUENCE_BYTES
from smista.service.arrow import EnvelopeColumns

_PLACE = ("kind", "queue", "at_ms", "count", "position", "index")
_DETAILS = (
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
RUN = np.dtype([(name, "<i8") for name in _PLACE + _DETAILS])
_PLACE_FORM = struct.Struct(f"<{len(_PLACE)}q")
_DETAILS_FORM = struct.Struct(f"<{len(_DETAILS)}q")
_TARGET_SEQUENCE, _ENVELOPE = _DETAILS.index("target_sequence"), _DETAILS.index("envelope")
_SEQUENCE = struct.Struct("<q")
SEQUENCES = np.dtype("<i8")
"""As in the log, where there is no `NONE`."""
_NOTHING_MORE = _DETAILS_FORM.pack(*([NONE] * len(_DETAILS)))

_MODULES = {kind: getattr(records, kind.name.lower()) for kind in Kind}
_COLLECT = {kind: module.collect for kind, module in _MODULES.items() if hasattr(module, "collect")}
"""By kind, of those that have rows."""


class Wanted(NamedTuple):
    """What was asked for."""

    columns: frozenset[str]
    kinds: frozenset[str]
    bodies: bool
    accepts: Callable[[str, str], bool]
    """Whether rows of the queue with this namespace and name are."""


COUNTED = Wanted(frozenset(), frozenset(), False, lambda namespace, name: False)
"""For whoever wants to know how many rows there are, and nothing of them."""


class Decoder(Entries):
    """Takes blocks and collects their rows until `batch.build` makes a batch of them and `clear` forgets them.

    It is the `Rows` that records hand theirs to.
    """

    def __init__(self, wanted: Wanted, name_of: Callable[[int, int], tuple[str, str]]) -> None:
        """`name_of(number, position)`: namespace and name of the queue that a record in that block names."""
        super().__init__(
            has_bodies=wanted.bodies and "body" in wanted.columns,
            has_envelopes=bool(ENVELOPE_COLUMNS & wanted.columns),
        )
        self.wanted = wanted
        self.has_errors = "error" in wanted.columns
        self.places: list[tuple[str, str]] = []
        """Namespace and name of each queue, by the code that runs have for it."""
        self._name_of = name_of
        self._is_wanted = [kind in wanted.kinds for kind in KINDS]
        self._codes: dict[int, int] = {}
        self._place_codes: dict[int, int] = {}
        self._position = 0
        self._index = 0
        self.clear()

    def clear(self) -> None:
        super().clear()
        self.row_count = 0
        self.runs: list[bytes] = []
        self.sequences: list[bytes] = []
        """Of the rows that are no entries."""
        self.errors: list[str] = []
        self.consumers: list[str] = []
        self._consumer_codes: dict[bytes, int] = {}

    def add(self, position: int, block: bytes) -> int:
        """Collect the rows of one block; returns how many it has, of all kinds and queues."""
        self._position = position
        self._index = 0
        collect = _COLLECT
        try:
            for kind, start, end in records.blocks.walk(block):
                collect_rows = collect.get(kind)  # type: ignore[call-overload]  # an IntEnum is found by its number
                if collect_rows is not None:
                    collect_rows(self, block, start, end)
        except (struct.error, msgspec.DecodeError, ValueError, LookupError) as error:
            raise RecordError(f"A record in block {position} makes no sense: {error}.") from None
        return self._index

    # -- runs ---------------------------------------------------------------------------------------------------------

    def step(self, kind: int, queue: int, count: int) -> int:
        self._index += count
        if not self._is_wanted[kind]:
            return NONE
        code = self._codes.get(queue)
        return self._code(queue) if code is None else code

    def _code(self, number: int) -> int:
        namespace, name = self._name_of(number, self._position)
        code = self.queue_code(number) if self.wanted.accepts(namespace, name) else NONE
        self._codes[number] = code
        return code

    def queue_code(self, number: int) -> int:
        code = self._place_codes.get(number)
        if code is None:
            code = self._place_codes[number] = len(self.places)
            self.places.append(self._name_of(number, self._position))
        return code

    def run(self, kind: int, code: int, at_ms: int, count: int) -> None:
        # Most are such: 0.3 us against 0.8.
        self.runs.append(
            _PLACE_FORM.pack(kind, code, at_ms, count, self._position, self._index - count) + _NOTHING_MORE
        )
        self.row_count += count

    def detailed_run(
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
        place = _PLACE_FORM.pack(kind, code, at_ms, count, self._position, self._index - count)
        details = _DETAILS_FORM.pack(
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
        self.runs.append(place + details)
        self.row_count += count

    def readdress(self, sequence: int, exchange: str, routing_key: str) -> None:
        if not self.runs or not self.has_envelopes:
            return
        run = self.runs[-1]
        details = list(_DETAILS_FORM.unpack_from(run, _PLACE_FORM.size))
        if details[_ENVELOPE] == NONE and details[_TARGET_SEQUENCE] == sequence:
            details[_ENVELOPE] = len(self.envelopes)
            self.runs[-1] = run[: _PLACE_FORM.size] + _DETAILS_FORM.pack(*details)
            self.envelopes.append(EnvelopeColumns(exchange or None, routing_key or None))

    # -- what runs are made of ----------------------------------------------------------------------------------------

    def take_sequences(self, block: bytes, start: int, end: int, count: int) -> None:
        if end - start != SEQUENCE_BYTES * count:
            raise ValueError("its sequences do not fill it")
        self.sequences.append(block[start:end])

    def take_sequence(self, sequence: int) -> None:
        self.sequences.append(_SEQUENCE.pack(sequence))

    def consumer_code(self, name: bytes) -> int:
        code = self._consumer_codes.get(name) if name else NONE
        if code is None:
            code = self._consumer_codes[name] = len(self.consumers)
            self.consumers.append(name.decode("utf-8", "replace"))
        return code

    def error_code(self, text: str) -> int:
        if not text:
            return NONE
        self.errors.append(text)
        return len(self.errors) - 1
