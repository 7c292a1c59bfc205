"""Messages that entered: their numbers, their envelopes by code, their bodies as views.

They come as an ENQUEUED record has them, a run in one go, or one by one from other records.
"""

from __future__ import annotations

import numpy as np

from smista import records
from smista.caches import cached_if_small
from smista.records.enqueued import Outline, pieces
from smista.records.layout import U8, U32, U64, Layout
from smista.records.rows import NONE, PackedEnvelope
from smista.service.arrow import EnvelopeColumns, envelope_columns

ENTRY = Layout(sequence=U64, body_bytes=U32, priority=U8)
ENTRY_TYPE = np.dtype(ENTRY.dtype)
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
        self._codes_by_envelope: dict[PackedEnvelope, int] = {}
        self.bodies: list[bytes | memoryview] = []
        self.ready_at: Given = ([], [])
        self.expires_at: Given = ([], [])
        self.created_at: Given = ([], [])
        self.numbers: Given = ([], [])

    # -- as they stand in a record ------------------------------------------------------------------------------------

    def take_run(self, block: bytes, run: Outline) -> None:
        count, before = run.message_count, self.entry_count
        if count == 1:
            self.entries.append(ENTRY.pack(run.sequence, run.body_sizes[0], run.priority))
        else:
            entries = np.empty(count, ENTRY_TYPE)
            entries["sequence"] = np.arange(run.sequence, run.sequence + count)
            entries["body_bytes"] = run.body_sizes
            entries["priority"] = run.priority
            self.entries.append(entries.tobytes())
        self.entry_count += count
        ready_at_ms = None if run.ready_at_ms == run.at_ms else run.ready_at_ms
        for (which, values), value in ((self.ready_at, ready_at_ms), (self.expires_at, run.expires_at_ms)):
            if value is not None:
                which += range(before, before + count)
                values += [value] * count
        if self.has_envelopes:
            self._take_envelopes(block, run)
        if self._has_bodies:
            body_bytes = sum(run.body_sizes)
            self.bodies.append(memoryview(block)[run.bodies_at : run.bodies_at + body_bytes])
            self.body_bytes += body_bytes

    def _take_envelopes(self, block: bytes, run: Outline) -> None:
        for properties in pieces(block, run.properties_sizes, run.properties_at):
            self._take_envelope((run.envelope, properties))
        if len(run.properties_sizes) < run.message_count:
            self.envelope_codes += [self.envelope_codes[-1]] * (run.message_count - 1)

    # -- one by one ---------------------------------------------------------------------------------------------------

    def take_entry(
        self,
        sequence: int,
        priority: int,
        envelope: PackedEnvelope,
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
        self.entries.append(ENTRY.pack(sequence, len(body), priority))
        self.entry_count += 1
        if self.has_envelopes:
            self._take_envelope(envelope)
        if self._has_bodies:
            self.bodies.append(body)
            self.body_bytes += len(body)

    def _take_envelope(self, envelope: PackedEnvelope) -> None:
        if envelope == (b"", b""):
            self.envelope_codes.append(NONE)
            return
        code = self._codes_by_envelope.get(envelope)
        if code is None:
            code = self._codes_by_envelope[envelope] = len(self.envelopes)
            self.envelopes.append(read_envelope(*envelope))
        self.envelope_codes.append(code)


@cached_if_small(lambda address, properties: len(address) + len(properties))
def read_envelope(address: bytes, properties: bytes) -> EnvelopeColumns:
    """Most messages of a queue carry the same few, so they are read once."""
    return envelope_columns(records.envelope.with_properties(records.envelope.decode(address), properties))
