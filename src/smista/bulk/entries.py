"""Messages that entered: their numbers as they stand in the log, their envelopes by code, their bodies as views.

They come as an ENQUEUED record has them, many in one go where all are alike, or one by one from other records.
"""

from __future__ import annotations

import numpy as np

from smista import records
from smista.caches import cached_if_small
from smista.records.enqueued import ENTRY
from smista.records.entry import HAS_EXPIRES_AT, HAS_READY_AT, TIME_BYTES
from smista.records.layout import INSTANT
from smista.records.rows import NONE
from smista.service.arrow import EnvelopeColumns, envelope_columns

EVEN_MIN = 16
"""From how many entries on it pays to look whether all are alike."""
ENTRY_TYPE = np.dtype(ENTRY.dtype)
_TIME_TYPE = np.dtype(INSTANT.dtype[0][1])
Given = tuple[list[int], list[int]]
"""Which entries have a value of their own, and what it is."""


ENVELOPE_COLUMNS = frozenset(EnvelopeColumns._fields)


class Entries:
    def __init__(self, *, has_bodies: bool, has_envelopes: bool) -> None:
        """Whether bodies, and any columns of the envelope, were asked for."""
        self._has_bodies = has_bodies
        self.has_envelopes = has_envelopes
        self.clear()

    def clear(self) -> None:
        self.body_bytes = 0
        self.entries: list[bytes] = []
        self.entry_count = 0
        self.envelope_codes: list[int] = []
        """One per entry, where envelopes were asked for."""
        self.envelopes: list[EnvelopeColumns] = []
        self._codes_by_envelope: dict[bytes, int] = {}
        self.bodies: list[bytes | memoryview] = []
        self.ready_at: Given = ([], [])
        self.expires_at: Given = ([], [])
        self.created_at: Given = ([], [])
        self.numbers: Given = ([], [])

    # -- as they stand in a record ------------------------------------------------------------------------------------

    def take_entries(self, block: bytes, start: int, end: int, count: int) -> None:
        if count < EVEN_MIN or not self._take_even(block, start, end, count):
            self._take_each(block, start, end, count)
        self.entry_count += count

    def _take_each(self, block: bytes, offset: int, end: int, count: int) -> None:
        view = memoryview(block) if self._has_bodies else None
        entries, bodies, has_envelopes = self.entries, self.bodies, self.has_envelopes
        read_entry, entry_bytes = ENTRY.unpack_from, ENTRY.size
        for entry in range(self.entry_count, self.entry_count + count):
            _, _, flags, envelope_bytes, body_bytes = read_entry(block, offset)
            entries.append(block[offset : offset + entry_bytes])
            offset += entry_bytes
            if flags:
                offset = self._take_times(block, offset, flags, entry)
            if has_envelopes:
                self._take_envelope(block[offset : offset + envelope_bytes])
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
                values.append(INSTANT.unpack_from(block, offset)[0])
                offset += TIME_BYTES
        return offset

    def _take_even(self, block: bytes, start: int, end: int, count: int) -> bool:
        """Take entries that all have the same lengths and flags at one stroke; False when they have not."""
        stride, rest = divmod(end - start, count)
        if rest or stride < ENTRY.size:
            return False
        heads = np.ndarray((count,), ENTRY_TYPE, block, start, (stride,))
        flags, envelope_bytes, body_bytes = (int(heads[name][0]) for name in ("flags", "envelope_bytes", "body_bytes"))
        both = ((HAS_READY_AT, self.ready_at), (HAS_EXPIRES_AT, self.expires_at))
        times = [each for flag, each in both if flags & flag]
        body_at = ENTRY.size + TIME_BYTES * len(times) + envelope_bytes
        is_even = (
            stride == body_at + body_bytes
            and bool((heads["flags"] == flags).all())
            and bool((heads["envelope_bytes"] == envelope_bytes).all())
            and bool((heads["body_bytes"] == body_bytes).all())
        )
        if not is_even:
            return False
        self.entries.append(heads.tobytes())
        for place, (which, values) in enumerate(times):
            which += range(self.entry_count, self.entry_count + count)
            values += np.ndarray(
                (count,), _TIME_TYPE, block, start + ENTRY.size + TIME_BYTES * place, (stride,)
            ).tolist()
        if self.has_envelopes:
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

    # -- one by one ---------------------------------------------------------------------------------------------------

    def take_entry(
        self,
        sequence: int,
        priority: int,
        envelope: bytes,
        body: memoryview,
        *,
        ready_at_ms: int | None = None,
        expires_at_ms: int | None = None,
        created_at_ms: int | None = None,
        number: int | None = None,
    ) -> None:
        for (which, values), value in (
            (self.ready_at, ready_at_ms),
            (self.expires_at, expires_at_ms),
            (self.created_at, created_at_ms),
            (self.numbers, number),
        ):
            if value is not None:
                which.append(self.entry_count)
                values.append(value)
        self.entries.append(ENTRY.pack(sequence, priority, 0, len(envelope), len(body)))
        self.entry_count += 1
        if self.has_envelopes:
            self._take_envelope(envelope)
        if self._has_bodies:
            self.bodies.append(body)
            self.body_bytes += len(body)

    def _take_envelope(self, envelope: bytes) -> None:
        if not envelope:
            self.envelope_codes.append(NONE)
            return
        code = self._codes_by_envelope.get(envelope)
        if code is None:
            code = self._codes_by_envelope[envelope] = len(self.envelopes)
            self.envelopes.append(read_envelope(envelope))
        self.envelope_codes.append(code)


@cached_if_small(len)
def read_envelope(data: bytes) -> EnvelopeColumns:
    """Most messages of a queue carry the same few, so they are read once."""
    return envelope_columns(records.envelope.decode(data))
