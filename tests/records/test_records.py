"""The record codec: what was packed is read again, and nothing else ever is."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smista import records
from smista.core.browsing import Wanted
from smista.core.claims import ClaimState
from smista.core.counters import Counters
from smista.core.exchanges import ExchangeKind, ExchangeSettings
from smista.core.jobs import JobState, Place, Plan
from smista.core.message import Death, Envelope, Message, Reason, State
from smista.core.settings import QueueSettings
from smista.core.staging import Part
from smista.log.errors import LogNewer
from smista.records import Kind, RecordError
from smista.records.blocks import VERSION
from smista.records.bound import BindingFields
from smista.records.claimant import Claimant, ClaimFields
from smista.records.claimed import Claimed
from smista.records.committed import Committed
from smista.records.delivered import Delivered
from smista.records.entry import Entry
from smista.records.exchange_declared import ExchangeDeclared
from smista.records.exchange_deleted import ExchangeDeleted
from smista.records.job import Job
from smista.records.job_advanced import JobAdvanced
from smista.records.moved import Moved
from smista.records.opened import Anchor, Opened
from smista.records.parked import Parked
from smista.records.placed import Placed
from smista.records.policy_deleted import PolicyDeleted
from smista.records.policy_set import PolicySet
from smista.records.queue_declared import QueueDeclared
from smista.records.queue_deleted import QueueDeleted
from smista.records.readdressed import Readdressed
from smista.records.remembered import Remembered

U8 = st.integers(0, (1 << 8) - 1)
U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
AT_MS = st.integers(1, (1 << 52) - 1)
INSTANT = st.one_of(st.none(), AT_MS)
SEQUENCES = st.lists(U64, max_size=20).map(tuple)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
BYTES = st.binary(max_size=50)


def block(*parts: bytes) -> bytes:
    return records.blocks.head(1) + b"".join(parts)


def only(kind: Kind, record: bytes) -> memoryview:
    """The data of the one record in a block."""
    [found] = records.blocks.records(block(record))
    assert found.kind is kind
    return found.data


# -- messages entering ----------------------------------------------------------------------------------------------

GIVEN = tuple[int, int, int | None, int | None, str, bytes, bytes]
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 2]),
        st.sampled_from([0, 0, 9]),
        INSTANT,
        INSTANT,
        st.sampled_from(["", "a", "a", "b"]),
        st.sampled_from([b"", b"same", b"same", b"other"]),
        BYTES,
    ),
    min_size=1,
    max_size=8,
)
"""By how much the sequence goes up; priority; times; routing key; properties; body. Often as that of the one before."""


def pack_enqueued(queue: int, at_ms: int, entries: list[GIVEN]) -> tuple[bytes, list[Entry]]:
    """As the recorder does it; and what should be read."""
    messages, expected = [], []
    sequence = 1 << 40
    for more, priority, ready_at_ms, expires_at_ms, key, properties, body in entries:
        sequence += more
        envelope = Envelope(properties, routing_key=key)
        ready = at_ms if ready_at_ms is None else ready_at_ms
        messages.append(message(sequence, at_ms, envelope, body, priority, ready, expires_at_ms))
        address = records.envelope.encode(envelope)
        expected.append(Entry(queue, sequence, priority, ready, expires_at_ms, address, properties, body))
    parts, size = records.enqueued.encode(queue, at_ms, messages, records.envelope.encode)
    record = b"".join(parts)
    assert size == len(record)
    return record, expected


def message(
    sequence: int,
    at_ms: int,
    envelope: Envelope,
    body: bytes,
    priority: int = 0,
    ready_at_ms: int | None = None,
    expires_at_ms: int | None = None,
) -> Message:
    ready = at_ms if ready_at_ms is None else ready_at_ms
    return Message(sequence, sequence, 1, envelope, body, priority, at_ms, ready, expires_at_ms=expires_at_ms)


@given(U32, AT_MS, ENTRIES)
def test_enqueued(queue: int, at_ms: int, entries: list[GIVEN]) -> None:
    record, expected = pack_enqueued(queue, at_ms, entries)
    found = list(records.blocks.records(block(record)))
    assert [entry for each in found for entry in records.enqueued.decode(each.data)] == expected
    assert {(each.kind, records.enqueued.at_ms(each.data)) for each in found} == {(Kind.ENQUEUED, at_ms)}


def test_properties_that_are_the_same_are_written_once() -> None:
    alike: list[GIVEN] = [(1, 0, None, None, "key", b"p" * 1_000, b"body")] * 10
    assert len(pack_enqueued(1, 2, alike)[0]) < 1_200


@pytest.mark.parametrize("more", [b"", b"x"])
def test_a_record_that_is_not_filled_by_its_messages_makes_no_sense(more: bytes) -> None:
    data = bytes(only(Kind.ENQUEUED, pack_enqueued(1, 2, [(1, 0, None, None, "", b"p", b"body")])[0]))
    with pytest.raises(RecordError):
        list(records.enqueued.decode(memoryview(data[:-1] + more * 2)))


@given(AT_MS, BYTES, BYTES, BYTES, st.lists(st.tuples(U32, U64, U8, AT_MS, INSTANT), max_size=5))
def test_fanned_out(
    at_ms: int, envelope: bytes, properties: bytes, body: bytes, targets: list[tuple[int, int, int, int, int | None]]
) -> None:
    given = [(*target[:4], target[4] or 0) for target in targets]
    record = records.fanned_out.encode(at_ms, envelope, properties, body, given)
    data = only(Kind.FANNED_OUT, record)
    assert records.fanned_out.decode(data) == [Entry(*target, envelope, properties, body) for target in targets]
    assert records.fanned_out.at_ms(data) == at_ms


def test_one_message_may_be_fanned_out_to_every_queue_a_broker_can_have() -> None:
    targets = [(queue, queue, 0, 1, 0) for queue in range(1, 100_001)]
    entries = records.fanned_out.decode(only(Kind.FANNED_OUT, records.fanned_out.encode(1, b"", b"", b"body", targets)))
    assert len(entries) == 100_000


def place(sequence: int, envelope: Envelope | None, deaths: tuple[Death, ...] | None) -> Placed:
    return Placed(1, sequence, sequence, envelope, 2, 3, 4, State.READY, None, None, None, deaths)


@given(BYTES)
def test_placed(body: bytes) -> None:
    first, second, third = Envelope(exchange="one"), Envelope(), Envelope(routing_key="three")
    death = Death("orders", Reason.EXPIRED, 1, 0, ())
    states = [place(1, first, (death,)), place(2, None, None), place(3, second, None), place(4, third, ())]
    found, shared = records.placed.decode(only(Kind.PLACED, records.placed.encode(states, body)))
    assert [one.placed for one in found] == states
    assert [one.envelope for one in found] == [first, first, second, third]
    assert [one.deaths for one in found] == [(death,), (death,), (death,), ()]
    assert shared == body


# -- transitions ----------------------------------------------------------------------------------------------------


@given(st.builds(Delivered, U32, AT_MS, INSTANT, U32, U32, U64, TEXT, SEQUENCES))
def test_delivered(delivered: Delivered) -> None:
    assert records.delivered.decode(only(Kind.DELIVERED, records.delivered.encode(*delivered))) == delivered


def test_a_long_consumer_name_is_cut_to_255_bytes() -> None:
    record = records.delivered.encode(1, 2, None, 3, 4, 5, "c" * 254 + "ü" * 50, (6,))
    read = records.delivered.decode(only(Kind.DELIVERED, record))
    assert (read.consumer[:254], read.sequences) == ("c" * 254, (6,))


@given(U32, AT_MS, INSTANT, SEQUENCES)
def test_extended(queue: int, at_ms: int, deadline_ms: int | None, sequences: tuple[int, ...]) -> None:
    record = records.extended.encode(queue, at_ms, deadline_ms, sequences)
    assert records.extended.decode(only(Kind.EXTENDED, record)) == (queue, at_ms, deadline_ms, sequences)


@given(U32, U64, SEQUENCES)
def test_acknowledged_and_became_ready(queue: int, at_ms: int, sequences: tuple[int, ...]) -> None:
    for kind, module in ((Kind.ACKNOWLEDGED, records.acknowledged), (Kind.BECAME_READY, records.became_ready)):
        record = only(kind, module.encode(queue, at_ms, sequences))
        assert module.decode(record) == (queue, at_ms, sequences)


@given(U32, U64, U8, SEQUENCES)
def test_removed(queue: int, at_ms: int, reason: int, sequences: tuple[int, ...]) -> None:
    record = records.removed.encode(queue, at_ms, reason, sequences)
    assert records.removed.decode(only(Kind.REMOVED, record)) == (queue, at_ms, reason, sequences)


@given(U32, U64, U64, U64, U8, TEXT)
def test_given_back(queue: int, sequence: int, at_ms: int, due_at_ms: int, reason: int, error: str) -> None:
    record = records.given_back.encode(queue, sequence, at_ms, due_at_ms, reason, error)
    assert records.given_back.decode(only(Kind.GIVEN_BACK, record)) == (
        queue,
        sequence,
        at_ms,
        due_at_ms,
        reason,
        error,
    )


@given(U32, U64, U64, U64)
def test_rescheduled(queue: int, sequence: int, at_ms: int, due_at_ms: int) -> None:
    record = records.rescheduled.encode(queue, sequence, at_ms, due_at_ms)
    assert records.rescheduled.decode(only(Kind.RESCHEDULED, record)) == (queue, sequence, at_ms, due_at_ms)


@given(st.builds(Parked, U32, U64, U64, U8, U8, TEXT, TEXT))
def test_parked(parked: Parked) -> None:
    assert records.parked.decode(only(Kind.PARKED, records.parked.encode(parked))) == parked


@given(st.builds(Moved, U32, U64, U32, U64, U8, U64, U64, U8, U8, TEXT, TEXT))
def test_moved(moved: Moved) -> None:
    assert records.moved.decode(only(Kind.MOVED, records.moved.encode(moved))) == moved


@given(U32, U64, U64, U64, st.booleans())
def test_purged(queue: int, at_ms: int, cut: int, count: int, ready_only: bool) -> None:
    record = records.purged.encode(queue, at_ms, cut, count, ready_only=ready_only)
    assert records.purged.decode(only(Kind.PURGED, record)) == (queue, at_ms, cut, count, ready_only)


@given(st.builds(Claimed, U32, TEXT, U64, U32, U32, U64, SEQUENCES, SEQUENCES))
def test_claimed(claimed: Claimed) -> None:
    claimed = claimed._replace(deliveries=tuple(sequence % 7 for sequence in claimed.sequences))
    assert records.claimed.decode(only(Kind.CLAIMED, records.claimed.encode(claimed))) == claimed


BINDING = BindingFields("/", "source", "queue", "orders", "key", {"x": 1})
PACKED: dict[Kind, tuple[object, ModuleType]] = {
    Kind.OPENED: (Opened(Anchor("boot", 1), 2, 3, 4, 5), records.opened),
    Kind.QUEUE_DECLARED: (
        QueueDeclared(1, "/", "orders", QueueSettings(lease_ms=2), 3, 4, True, Counters(published=5)),
        records.queue_declared,
    ),
    Kind.QUEUE_DELETED: (QueueDeleted(1, "/", "orders", 2), records.queue_deleted),
    Kind.EXCHANGE_DECLARED: (
        ExchangeDeclared(1, "/", "events", ExchangeSettings(ExchangeKind.TOPIC), [BINDING]),
        records.exchange_declared,
    ),
    Kind.EXCHANGE_DELETED: (ExchangeDeleted("/", "events"), records.exchange_deleted),
    Kind.BOUND: (BINDING, records.bound),
    Kind.UNBOUND: (BINDING, records.unbound),
    Kind.POLICY_SET: (PolicySet("/", "short", "^o", 1, {"lease_ms": 2}), records.policy_set),
    Kind.POLICY_DELETED: (PolicyDeleted("/", "short"), records.policy_deleted),
    Kind.REMEMBERED: (Remembered(1, "key", 2, 3, 4), records.remembered),
    Kind.CLAIMANT: (
        Claimant(
            1, "job", "session", 2, 3, 4, [ClaimFields(5, 6, ClaimState.OPEN, 7, 8, 9)], [(1, ClaimState.EXPIRED, 2)]
        ),
        records.claimant,
    ),
    Kind.COMMITTED: (
        Committed("job", "batch", "/", "orders", None, (Part(1, 2, 3, 4),), 5, 6, 7, 8, 9),
        records.committed,
    ),
    Kind.JOB: (
        Job(
            1,
            Plan((Place(2, Wanted(state=State.DEAD, source="orders")),), "to", 3, 4, 5.5, 6, {"h": 1}, ((7, 8),)),
            9,
            JobState.FAILED,
            10,
            11,
            12,
            13,
            14,
            "code",
            "error",
        ),
        records.job,
    ),
    Kind.READDRESSED: (Readdressed(1, 2, "exchange", "key"), records.readdressed),
}


@pytest.mark.parametrize("kind", PACKED)
def test_packed(kind: Kind) -> None:
    fields, module = PACKED[kind]
    assert module.decode(only(kind, module.encode(fields))) == fields


def test_what_names_a_queue_begins_with_its_name() -> None:
    for kind in (Kind.QUEUE_DECLARED, Kind.QUEUE_DELETED):
        named = records.queue_declared.decode_name(only(kind, SAMPLES[kind]))
        assert (named.number, named.namespace, named.name) == (1, "/", "orders")


def test_an_error_that_is_no_proper_text_is_still_written() -> None:
    for record, kind, read in (
        (records.given_back.encode(1, 2, 3, 4, 5, "\ud800!"), Kind.GIVEN_BACK, records.given_back.decode),
        (records.parked.encode(Parked(1, 2, 3, 4, 5, "name", "\ud800!")), Kind.PARKED, records.parked.decode),
    ):
        assert read(only(kind, record))[-1] == "?!"


# -- damage -----------------------------------------------------------------------------------------------------------

READERS: dict[Kind, Callable[[memoryview], object]] = {
    Kind.ENQUEUED: lambda data: list(records.enqueued.decode(data)),
    Kind.FANNED_OUT: records.fanned_out.decode,
    Kind.PLACED: records.placed.decode,
    Kind.DELIVERED: records.delivered.decode,
    Kind.EXTENDED: records.extended.decode,
    Kind.GIVEN_BACK: records.given_back.decode,
    Kind.RESCHEDULED: records.rescheduled.decode,
    Kind.ACKNOWLEDGED: records.acknowledged.decode,
    Kind.BECAME_READY: records.became_ready.decode,
    Kind.REMOVED: records.removed.decode,
    Kind.PARKED: records.parked.decode,
    Kind.MOVED: records.moved.decode,
    Kind.PURGED: records.purged.decode,
    Kind.CLAIMED: records.claimed.decode,
    Kind.JOB_ADVANCED: records.job_advanced.decode,
} | {kind: module.decode for kind, (_, module) in PACKED.items()}

SAMPLES: dict[Kind, bytes] = {
    Kind.ENQUEUED: pack_enqueued(1, 2, [(1, 4, 5, 6, "key", b"properties", b"body")])[0],
    Kind.FANNED_OUT: records.fanned_out.encode(
        2, b"envelope", b"properties", b"body", [(1, 3, 4, 5, 6), (2, 4, 4, 2, 0)]
    ),
    Kind.PLACED: records.placed.encode([place(1, Envelope(exchange="one"), ()), place(2, None, None)], b"body"),
    Kind.DELIVERED: records.delivered.encode(1, 2, 3, 4, 5, 6, "consumer", (7, 8)),
    Kind.EXTENDED: records.extended.encode(1, 2, 3, (4, 5)),
    Kind.GIVEN_BACK: records.given_back.encode(1, 2, 3, 4, 5, "error"),
    Kind.RESCHEDULED: records.rescheduled.encode(1, 2, 3, 4),
    Kind.ACKNOWLEDGED: records.acknowledged.encode(1, 2, (3, 4)),
    Kind.BECAME_READY: records.became_ready.encode(1, 2, (3, 4)),
    Kind.REMOVED: records.removed.encode(1, 2, 3, (4, 5)),
    Kind.PARKED: records.parked.encode(Parked(1, 2, 3, 4, 5, "name", "error")),
    Kind.MOVED: records.moved.encode(Moved(1, 2, 3, 4, 5, 6, 7, 8, 9, "name", "error")),
    Kind.PURGED: records.purged.encode(1, 2, 3, 4, ready_only=True),
    Kind.CLAIMED: records.claimed.encode(Claimed(1, "consumer", 2, 3, 4, 5, (6, 7), (8, 9))),
    Kind.JOB_ADVANCED: records.job_advanced.encode(JobAdvanced(1, 2, 3, 4, 5, 6)),
} | {kind: module.encode(fields) for kind, (fields, module) in PACKED.items()}


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


@pytest.mark.parametrize("at_ms", [records.enqueued.at_ms, records.fanned_out.at_ms])
def test_a_record_too_short_to_say_when_it_was_is_refused(at_ms: Callable[[memoryview], int]) -> None:
    with pytest.raises(RecordError):
        at_ms(memoryview(b"short"))


@pytest.mark.parametrize("kind", Kind)
def test_a_block_that_is_cut_short_is_refused(kind: Kind) -> None:
    whole = block(SAMPLES[kind])
    for size in range(len(whole)):
        if size == records.blocks.HEAD.size:
            continue  # a block without records
        with pytest.raises(RecordError):
            list(records.blocks.records(whole[:size]))


@pytest.mark.parametrize("kind", Kind)
@example(data=b"\x91\xa1\x80")
@given(data=st.binary(max_size=80))
def test_no_bytes_get_past_a_reader_but_as_its_values_or_an_error_of_ours(kind: Kind, data: bytes) -> None:
    with contextlib.suppress(RecordError):
        READERS[kind](memoryview(data))


@given(st.binary(max_size=80))
def test_no_bytes_get_past_the_block_reader_but_as_records_or_an_error_of_ours(data: bytes) -> None:
    with contextlib.suppress(RecordError, LogNewer):
        list(records.blocks.records(data))


def test_a_count_far_beyond_the_record_is_refused_without_taking_memory() -> None:
    many = struct.pack("<IQI", 1, 2, (1 << 32) - 1)
    for read in (READERS[Kind.ENQUEUED], READERS[Kind.ACKNOWLEDGED]):
        with pytest.raises(RecordError):
            read(memoryview(many))


@pytest.mark.parametrize("number", sorted(set(range(256)) - {kind.value for kind in Kind}))
def test_a_kind_that_is_not_known_is_refused(number: int) -> None:
    with pytest.raises(RecordError):
        list(records.blocks.records(block(bytes([number]) + bytes(4))))


@pytest.mark.parametrize("version", range(VERSION + 1, 256))
def test_a_newer_version_is_refused_as_newer(version: int) -> None:
    newer = bytes([version]) + block(SAMPLES[Kind.PURGED])[1:]
    with pytest.raises(LogNewer):
        list(records.blocks.records(newer))
    with pytest.raises(LogNewer):
        records.blocks.written_at_ms(newer)


def test_version_0_never_was() -> None:
    with pytest.raises(RecordError):
        list(records.blocks.records(b"\0" + block()[1:]))


def test_a_block_says_when_it_was_written() -> None:
    assert records.blocks.written_at_ms(records.blocks.head(1_700_000_000_123)) == 1_700_000_000_123


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
        "JOB": 23,
        "JOB_ADVANCED": 24,
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
    written = records.blocks.head(0x0102030405) + b"".join(SAMPLES[kind] for kind in Kind)
    assert written.hex() == GOLDEN


GOLDEN = (
    "010504030201000000010c0000009592a4626f6f740102030405022b0000009801a12fa66f7264657273de0001a86c656173"
    "655f6d73020304c39f050000000000000000000000000000030c0000009401a12fa66f72646572730204620000009501a12f"
    "a66576656e747385a46b696e64a5746f706963a764757261626c65c3ab6175746f5f64656c657465c2a8696e7465726e616c"
    "c2a9616c7465726e617465c09196a12fa6736f75726365a57175657565a66f7264657273a36b657981a17801050a00000092"
    "a12fa66576656e7473061f00000096a12fa6736f75726365a57175657565a66f7264657273a36b657981a17801071f000000"
    "96a12fa6736f75726365a57175657565a66f7264657273a36b657981a17801081800000095a12fa573686f7274a25e6f0181"
    "a86c656173655f6d7302090900000092a12fa573686f72741050000000010000000200000000000000010000000001000001"
    "00000004070c000000050000000000000006000000000000000a0000000400000097c400a0a36b6579c0c0c0c070726f7065"
    "7274696573626f6479115a0000000200000000000000080000000a0000000400000002000000656e76656c6f706570726f70"
    "657274696573626f647901000000030000000000000004030500000000000000060000000000000002000000040000000000"
    "00000400123000000028000000929d01010197c400a36f6e65a0c0c0c0c002030401c0c0c090009d010202c002030401c0c0"
    "c0c000626f647913090000009501a36b65790203041442000000010000000200000000000000030000000400000005000000"
    "00000000080002000000636f6e73756d6572060000000000000007000000000000000800000009000000151f0000009901a3"
    "6a6f62a773657373696f6e02030491960506000708099193010202c216200000009ba36a6f62a56261746368a12fa66f7264"
    "657273c0919401020304050607080917450000009b019891920282a5737461746503a6736f75726365a66f7264657273a274"
    "6f0304cb40160000000000000681a168019192070809030a0b0c0d0ea4636f6465a56572726f721828000000010000000200"
    "0000000000000300000004000000000000000500000000000000060000000000000020410000000100000002000000000000"
    "000300000000000000040000000500000006000000000000000802000000636f6e73756d6572070000000000000008000000"
    "0000000021280000000100000002000000000000000300000000000000020000000400000000000000050000000000000022"
    "24000000010000000200000000000000030000000000000004000000000000000505006572726f72231c0000000100000002"
    "0000000000000003000000000000000400000000000000242000000001000000020000000000000002000000030000000000"
    "0000040000000000000025210000000100000002000000000000000302000000040000000000000005000000000000002621"
    "0000000100000002000000000000000300000000000000040504006e616d656572726f722736000000010000000200000000"
    "0000000300000004000000000000000506000000000000000700000000000000080904006e616d656572726f72281d000000"
    "0100000002000000000000000300000000000000040000000000000001292000000001000000020000000000000002000000"
    "030000000000000004000000000000002a10000000940102a865786368616e6765a36b6579"
)
