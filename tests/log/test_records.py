"""The record codec: what was packed is read again, and nothing else ever is."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smista.log import records
from smista.log.errors import LogNewer
from smista.log.records import Claimed, Delivered, Entry, Kind, Moved, Parked, RecordError

U8 = st.integers(0, (1 << 8) - 1)
U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
AT_MS = st.integers(1, (1 << 52) - 1)
INSTANT = st.one_of(st.none(), AT_MS)
SEQUENCES = st.lists(U64, max_size=20).map(tuple)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
BYTES = st.binary(max_size=50)


def block(*parts: bytes) -> bytes:
    return records.block_header(1) + b"".join(parts)


def only(kind: Kind, record: bytes) -> memoryview:
    """The data of the one record in a block."""
    [found] = records.records(block(record))
    assert found.kind is kind
    return found.data


# -- messages entering ----------------------------------------------------------------------------------------------

ENTRIES = st.lists(st.tuples(U64, U8, INSTANT, INSTANT, BYTES, BYTES), max_size=5)


def pack_enqueued(
    queue: int, at_ms: int, entries: list[tuple[int, int, int | None, int | None, bytes, bytes]]
) -> tuple[bytes, list[Entry]]:
    """As the recorder does it; and what should be read."""
    parts, expected = [], []
    for sequence, priority, ready_at_ms, expires_at_ms, envelope, body in entries:
        flags = (records.HAS_READY_AT if ready_at_ms is not None else 0) | (
            records.HAS_EXPIRES_AT if expires_at_ms is not None else 0
        )
        parts.append(records.entry_head(sequence, priority, flags, len(envelope), len(body)))
        parts += [records.instant(at) for at in (ready_at_ms, expires_at_ms) if at is not None]
        parts += [envelope, body]
        ready = at_ms if ready_at_ms is None else ready_at_ms
        expected.append(Entry(queue, sequence, priority, ready, expires_at_ms, envelope, body))
    data = b"".join(parts)
    return records.enqueued_head(queue, at_ms, len(entries), len(data)) + data, expected


@given(U32, AT_MS, ENTRIES)
def test_enqueued(queue: int, at_ms: int, entries: list[tuple[int, int, int | None, int | None, bytes, bytes]]) -> None:
    record, expected = pack_enqueued(queue, at_ms, entries)
    data = only(Kind.ENQUEUED, record)
    assert list(records.enqueued(data)) == expected
    assert records.enqueued_at_ms(Kind.ENQUEUED, data) == at_ms


@given(AT_MS, BYTES, BYTES, st.lists(st.tuples(U32, U64, U8, AT_MS, INSTANT), max_size=5))
def test_fanned_out(
    at_ms: int, envelope: bytes, body: bytes, targets: list[tuple[int, int, int, int, int | None]]
) -> None:
    record = records.fanned_out(at_ms, envelope, body, [(*target[:4], target[4] or 0) for target in targets])
    data = only(Kind.FANNED_OUT, record)
    assert records.read_fanned_out(data) == [Entry(*target, envelope, body) for target in targets]
    assert records.enqueued_at_ms(Kind.FANNED_OUT, data) == at_ms


def test_one_message_may_be_fanned_out_to_every_queue_a_broker_can_have() -> None:
    targets = [(queue, queue, 0, 1, 0) for queue in range(1, 100_001)]
    entries = records.read_fanned_out(only(Kind.FANNED_OUT, records.fanned_out(1, b"", b"body", targets)))
    assert len(entries) == 100_000


@given(BYTES, BYTES)
def test_placed(states: bytes, body: bytes) -> None:
    head, found = records.read_placed(only(Kind.PLACED, records.placed(states, body)))
    assert (bytes(head), found) == (states, body)


# -- transitions ----------------------------------------------------------------------------------------------------


@given(st.builds(Delivered, U32, AT_MS, INSTANT, U32, U32, U64, TEXT, SEQUENCES))
def test_delivered(delivered: Delivered) -> None:
    assert records.read_delivered(only(Kind.DELIVERED, records.delivered(delivered))) == delivered


def test_a_long_consumer_name_is_cut_to_255_bytes() -> None:
    record = records.delivered(Delivered(1, 2, None, 3, 4, 5, "c" * 254 + "ü" * 50, (6,)))
    read = records.read_delivered(only(Kind.DELIVERED, record))
    assert (read.consumer[:254], read.sequences) == ("c" * 254, (6,))


@given(U32, AT_MS, INSTANT, SEQUENCES)
def test_extended(queue: int, at_ms: int, deadline_ms: int | None, sequences: tuple[int, ...]) -> None:
    record = records.extended(queue, at_ms, deadline_ms, sequences)
    assert records.read_extended(only(Kind.EXTENDED, record)) == (queue, at_ms, deadline_ms, sequences)


@given(U32, U64, SEQUENCES)
def test_acknowledged_and_became_ready(queue: int, at_ms: int, sequences: tuple[int, ...]) -> None:
    for kind, pack in ((Kind.ACKNOWLEDGED, records.acknowledged), (Kind.BECAME_READY, records.became_ready)):
        assert records.read_sequences(only(kind, pack(queue, at_ms, sequences))) == (queue, at_ms, sequences)


@given(U32, U64, U8, SEQUENCES)
def test_removed(queue: int, at_ms: int, reason: int, sequences: tuple[int, ...]) -> None:
    record = records.removed(queue, at_ms, reason, sequences)
    assert records.read_removed(only(Kind.REMOVED, record)) == (queue, at_ms, reason, sequences)


@given(U32, U64, U64, U64, U8, TEXT)
def test_given_back(queue: int, sequence: int, at_ms: int, due_at_ms: int, reason: int, error: str) -> None:
    record = records.given_back(queue, sequence, at_ms, due_at_ms, reason, error)
    assert records.read_given_back(only(Kind.GIVEN_BACK, record)) == (
        queue,
        sequence,
        at_ms,
        due_at_ms,
        reason,
        error,
    )


@given(U32, U64, U64, U64)
def test_rescheduled(queue: int, sequence: int, at_ms: int, due_at_ms: int) -> None:
    record = records.rescheduled(queue, sequence, at_ms, due_at_ms)
    assert records.read_rescheduled(only(Kind.RESCHEDULED, record)) == (queue, sequence, at_ms, due_at_ms)


@given(st.builds(Parked, U32, U64, U64, U8, U8, TEXT, TEXT))
def test_parked(parked: Parked) -> None:
    assert records.read_parked(only(Kind.PARKED, records.parked(parked))) == parked


@given(st.builds(Moved, U32, U64, U32, U64, U8, U64, U64, U8, U8, TEXT, TEXT))
def test_moved(moved: Moved) -> None:
    assert records.read_moved(only(Kind.MOVED, records.moved(moved))) == moved


@given(U32, U64, U64, U64, st.booleans())
def test_purged(queue: int, at_ms: int, cut: int, count: int, ready_only: bool) -> None:
    record = records.purged(queue, at_ms, cut, count, ready_only=ready_only)
    assert records.read_purged(only(Kind.PURGED, record)) == (queue, at_ms, cut, count, ready_only)


@given(st.builds(Claimed, U32, TEXT, U64, U32, U32, U64, SEQUENCES, SEQUENCES))
def test_claimed(claimed: Claimed) -> None:
    claimed = claimed._replace(deliveries=tuple(sequence % 7 for sequence in claimed.sequences))
    assert records.read_claimed(only(Kind.CLAIMED, records.claimed(claimed))) == claimed


PACKED = [
    Kind.OPENED,
    Kind.QUEUE_DECLARED,
    Kind.QUEUE_DELETED,
    Kind.EXCHANGE_DECLARED,
    Kind.EXCHANGE_DELETED,
    Kind.BOUND,
    Kind.UNBOUND,
    Kind.POLICY_SET,
    Kind.POLICY_DELETED,
    Kind.REMEMBERED,
    Kind.READDRESSED,
    Kind.CLAIMANT,
    Kind.COMMITTED,
]


@pytest.mark.parametrize("kind", PACKED)
@given(fields=st.lists(st.one_of(TEXT, U64, BYTES, st.none(), st.booleans()), max_size=5))
def test_packed(kind: Kind, fields: list[object]) -> None:
    assert records.unpack(only(kind, records.packed(kind, fields)), list) == fields


def test_an_error_that_is_no_proper_text_is_still_written() -> None:
    for record, kind, read in (
        (records.given_back(1, 2, 3, 4, 5, "\ud800!"), Kind.GIVEN_BACK, records.read_given_back),
        (records.parked(Parked(1, 2, 3, 4, 5, "name", "\ud800!")), Kind.PARKED, records.read_parked),
    ):
        assert read(only(kind, record))[-1] == "?!"


# -- damage -----------------------------------------------------------------------------------------------------------

READERS: dict[Kind, Callable[[memoryview], object]] = {
    Kind.ENQUEUED: lambda data: list(records.enqueued(data)),
    Kind.FANNED_OUT: records.read_fanned_out,
    Kind.PLACED: records.read_placed,
    Kind.DELIVERED: records.read_delivered,
    Kind.EXTENDED: records.read_extended,
    Kind.GIVEN_BACK: records.read_given_back,
    Kind.RESCHEDULED: records.read_rescheduled,
    Kind.ACKNOWLEDGED: records.read_sequences,
    Kind.BECAME_READY: records.read_sequences,
    Kind.REMOVED: records.read_removed,
    Kind.PARKED: records.read_parked,
    Kind.MOVED: records.read_moved,
    Kind.PURGED: records.read_purged,
    Kind.CLAIMED: records.read_claimed,
} | dict.fromkeys(PACKED, lambda data: records.unpack(data, list))

SAMPLES: dict[Kind, bytes] = {
    Kind.ENQUEUED: pack_enqueued(1, 2, [(3, 4, 5, 6, b"envelope", b"body"), (7, 8, None, None, b"", b"")])[0],
    Kind.FANNED_OUT: records.fanned_out(2, b"envelope", b"body", [(1, 3, 4, 5, 6), (2, 4, 4, 2, 0)]),
    Kind.PLACED: records.placed(b"states", b"body"),
    Kind.DELIVERED: records.delivered(Delivered(1, 2, 3, 4, 5, 6, "consumer", (7, 8))),
    Kind.EXTENDED: records.extended(1, 2, 3, (4, 5)),
    Kind.GIVEN_BACK: records.given_back(1, 2, 3, 4, 5, "error"),
    Kind.RESCHEDULED: records.rescheduled(1, 2, 3, 4),
    Kind.ACKNOWLEDGED: records.acknowledged(1, 2, (3, 4)),
    Kind.BECAME_READY: records.became_ready(1, 2, (3, 4)),
    Kind.REMOVED: records.removed(1, 2, 3, (4, 5)),
    Kind.PARKED: records.parked(Parked(1, 2, 3, 4, 5, "name", "error")),
    Kind.MOVED: records.moved(Moved(1, 2, 3, 4, 5, 6, 7, 8, 9, "name", "error")),
    Kind.PURGED: records.purged(1, 2, 3, 4, ready_only=True),
    Kind.CLAIMED: records.claimed(Claimed(1, "consumer", 2, 3, 4, 5, (6, 7), (8, 9))),
} | {kind: records.packed(kind, [1, "two", b"three"]) for kind in PACKED}


def test_every_kind_has_a_reader_and_a_sample() -> None:
    assert READERS.keys() == SAMPLES.keys() == set(Kind)


@pytest.mark.parametrize("kind", Kind)
def test_a_record_that_is_cut_short_is_refused_wherever_it_is_cut(kind: Kind) -> None:
    data = only(kind, SAMPLES[kind])
    # The last field of these is the rest of the record, whatever that is.
    last_field = {Kind.PLACED: b"body", Kind.PARKED: b"error", Kind.MOVED: b"error"}.get(kind, b"")
    for size in range(len(data) - len(last_field)):
        with pytest.raises(RecordError):
            READERS[kind](data[:size])


@pytest.mark.parametrize("kind", [Kind.ENQUEUED, Kind.FANNED_OUT])
def test_a_record_too_short_to_say_when_it_was_is_refused(kind: Kind) -> None:
    with pytest.raises(RecordError):
        records.enqueued_at_ms(kind, memoryview(b"short"))


@pytest.mark.parametrize("kind", Kind)
def test_a_block_that_is_cut_short_is_refused(kind: Kind) -> None:
    whole = block(SAMPLES[kind])
    for size in range(len(whole)):
        if size == records.HEADER_BYTES:
            continue  # a block without records
        with pytest.raises(RecordError):
            list(records.records(whole[:size]))


@pytest.mark.parametrize("kind", Kind)
@example(data=b"\x91\xa1\x80")
@given(data=st.binary(max_size=80))
def test_no_bytes_get_past_a_reader_but_as_its_values_or_an_error_of_ours(kind: Kind, data: bytes) -> None:
    with contextlib.suppress(RecordError):
        READERS[kind](memoryview(data))


@given(st.binary(max_size=80))
def test_no_bytes_get_past_the_block_reader_but_as_records_or_an_error_of_ours(data: bytes) -> None:
    with contextlib.suppress(RecordError, LogNewer):
        list(records.records(data))


def test_a_count_far_beyond_the_record_is_refused_without_taking_memory() -> None:
    many = struct.pack("<IQI", 1, 2, (1 << 32) - 1)
    for read in (READERS[Kind.ENQUEUED], records.read_sequences):
        with pytest.raises(RecordError):
            read(memoryview(many))


@pytest.mark.parametrize("number", sorted(set(range(256)) - {kind.value for kind in Kind}))
def test_a_kind_that_is_not_known_is_refused(number: int) -> None:
    with pytest.raises(RecordError):
        list(records.records(block(bytes([number]) + bytes(4))))


@pytest.mark.parametrize("version", range(records.VERSION + 1, 256))
def test_a_newer_version_is_refused_as_newer(version: int) -> None:
    newer = bytes([version]) + block(SAMPLES[Kind.PURGED])[1:]
    with pytest.raises(LogNewer):
        list(records.records(newer))
    with pytest.raises(LogNewer):
        records.written_at_ms(newer)


def test_version_0_never_was() -> None:
    with pytest.raises(RecordError):
        list(records.records(b"\0" + block()[1:]))


def test_a_block_says_when_it_was_written() -> None:
    assert records.written_at_ms(records.block_header(1_700_000_000_123)) == 1_700_000_000_123


# -- the format -------------------------------------------------------------------------------------------------------


def test_kinds_keep_their_numbers() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        "OPENED": 1,
        "QUEUE_DECLARED": 2,
        "QUEUE_DELETED": 3,
        "EXCHANGE_DECLARED": 4,
        "EXCHANGE_DELETED": 5,
        "BOUND": 6,
        "UNBOUND": 7,
        "POLICY_SET": 8,
        "POLICY_DELETED": 9,
        "ENQUEUED": 16,
        "FANNED_OUT": 17,
        "PLACED": 18,
        "REMEMBERED": 19,
        "CLAIMED": 20,
        "CLAIMANT": 21,
        "COMMITTED": 22,
        "DELIVERED": 32,
        "EXTENDED": 33,
        "GIVEN_BACK": 34,
        "RESCHEDULED": 35,
        "ACKNOWLEDGED": 36,
        "REMOVED": 37,
        "PARKED": 38,
        "MOVED": 39,
        "PURGED": 40,
        "BECAME_READY": 41,
        "READDRESSED": 42,
    }


def test_the_bytes_of_a_block_stay_as_they_are() -> None:
    """If this turns red the format has changed: logs written before must still open. See docs/log-format.md."""
    written = records.block_header(0x0102030405) + b"".join(SAMPLES[kind] for kind in Kind)
    assert written.hex() == GOLDEN


def test_a_block_of_version_1_is_still_read() -> None:
    found = list(records.records(bytes.fromhex(GOLDEN_1)))
    later = {Kind.CLAIMED, Kind.CLAIMANT, Kind.COMMITTED, Kind.POLICY_SET, Kind.POLICY_DELETED}
    assert [record.kind for record in found] == [kind for kind in Kind if kind not in later]
    for record in found:
        assert bytes(record.data) == bytes(only(record.kind, SAMPLES[record.kind]))
        READERS[record.kind](record.data)


GOLDEN = (
    "020504030201000000010d0000009301a374776fc4057468726565020d0000009301a374776fc4057468726565030d000000"
    "9301a374776fc4057468726565040d0000009301a374776fc4057468726565050d0000009301a374776fc405746872656506"
    "0d0000009301a374776fc4057468726565070d0000009301a374776fc4057468726565"
    "080d0000009301a374776fc4057468726565090d0000009301a374776fc4057468726565"
    "105000000001000000020000000000"
    "00000200000003000000000000000403080000000400000005000000000000000600000000000000656e76656c6f7065626f"
    "6479070000000000000008000000000000000000114c0000000200000000000000080000000400000002000000656e76656c"
    "6f7065626f647901000000030000000000000004030500000000000000060000000000000002000000040000000000000004"
    "00120e00000006000000737461746573626f6479130d0000009301a374776fc4057468726565144200000001000000020000"
    "000000000003000000040000000500000000000000080002000000636f6e73756d6572060000000000000007000000000000"
    "000800000009000000150d0000009301a374776fc4057468726565160d0000009301a374776fc40574687265652041000000"
    "0100000002000000000000000300000000000000040000000500000006000000000000000802000000636f6e73756d657207"
    "0000000000000008000000000000002128000000010000000200000000000000030000000000000002000000040000000000"
    "000005000000000000002224000000010000000200000000000000030000000000000004000000000000000505006572726f"
    "72231c0000000100000002000000000000000300000000000000040000000000000024200000000100000002000000000000"
    "0002000000030000000000000004000000000000002521000000010000000200000000000000030200000004000000000000"
    "00050000000000000026210000000100000002000000000000000300000000000000040504006e616d656572726f72273600"
    "00000100000002000000000000000300000004000000000000000506000000000000000700000000000000080904006e616d"
    "656572726f72281d000000010000000200000000000000030000000000000004000000000000000129200000000100000002"
    "0000000000000002000000030000000000000004000000000000002a0d0000009301a374776fc4057468726565"
)
GOLDEN_1 = (
    "010504030201000000010d0000009301a374776fc4057468726565020d0000009301a374776fc4057468726565030d000000"
    "9301a374776fc4057468726565040d0000009301a374776fc4057468726565050d0000009301a374776fc405746872656506"
    "0d0000009301a374776fc4057468726565070d0000009301a374776fc4057468726565105000000001000000020000000000"
    "00000200000003000000000000000403080000000400000005000000000000000600000000000000656e76656c6f7065626f"
    "6479070000000000000008000000000000000000114c0000000200000000000000080000000400000002000000656e76656c"
    "6f7065626f647901000000030000000000000004030500000000000000060000000000000002000000040000000000000004"
    "00120e00000006000000737461746573626f6479130d0000009301a374776fc4057468726565204100000001000000020000"
    "00000000000300000000000000040000000500000006000000000000000802000000636f6e73756d65720700000000000000"
    "0800000000000000212800000001000000020000000000000003000000000000000200000004000000000000000500000000"
    "0000002224000000010000000200000000000000030000000000000004000000000000000505006572726f72231c00000001"
    "0000000200000000000000030000000000000004000000000000002420000000010000000200000000000000020000000300"
    "0000000000000400000000000000252100000001000000020000000000000003020000000400000000000000050000000000"
    "000026210000000100000002000000000000000300000000000000040504006e616d656572726f7227360000000100000002"
    "000000000000000300000004000000000000000506000000000000000700000000000000080904006e616d656572726f7228"
    "1d00000001000000020000000000000003000000000000000400000000000000012920000000010000000200000000000000"
    "02000000030000000000000004000000000000002a0d0000009301a374776fc4057468726565"
)
