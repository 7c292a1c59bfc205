"""Rows are what the records say: blocks of every kind of record, at random, against a plain reading of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from smista import records
from smista.bulk.batch import ROWS, Builder
from smista.bulk.columns import COLUMNS, KINDS
from smista.bulk.decoder import COUNTED, Decoder, Wanted
from smista.core.message import PLAIN, Envelope, Message, Reason, State
from smista.engine.ids import Ids
from smista.log.errors import LogNewer
from smista.records import Kind, RecordError
from smista.records.blocks import VERSION
from smista.records.frames import framed
from smista.records.moved import Moved
from smista.records.parked import Parked
from smista.records.placed import Placed
from smista.records.queue_deleted import QueueDeleted
from smista.records.readdressed import Readdressed
from smista.service import properties
from smista.service.properties import Properties

Row = dict[str, Any]
SHARD = 3
IDS = Ids(bytes(32), SHARD)
AT_MS = 1_700_000_000_000
SETTLED = [("acknowledged", records.acknowledged.encode), ("ready", records.became_ready.encode)]
PLACES = {1: ("/", "one"), 2: ("/", "two"), 3: ("shop", "three")}


def names(number: int, position: int) -> tuple[str, str]:
    assert position > 0
    return PLACES[number]


def decode(*blocks: bytes, columns: frozenset[str] = frozenset(COLUMNS), **wanted: Any) -> list[Row]:
    """The rows of blocks 1, 2, ..., each without what is null."""
    kinds, accepts = wanted.get("kinds", KINDS), wanted.get("accepts", lambda namespace, name: True)
    rows = Decoder(Wanted(columns, frozenset(kinds), wanted.get("bodies", True), accepts), names)
    builder = Builder(columns, broker=IDS.broker, shard=SHARD)
    for position, block in enumerate(blocks, 1):
        rows.add(position, block)
    batches = builder.build(rows)
    assert all(len(batch) <= ROWS for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    return [
        {name: value for name, value in row.items() if value is not None}
        for batch in batches
        for row in batch.to_pylist()
    ]


def enqueued(queue: int, at_ms: int, messages: list[Message]) -> bytes:
    return b"".join(records.enqueued.encode(queue, at_ms, messages, records.envelope.encode)[0])


def block(*parts: bytes) -> bytes:
    return b"".join([records.blocks.head(AT_MS), *parts])


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


# -- an author of records, and what the rows should be ----------------------------------------------------------------


class Author:
    """Writes records at random and notes, in plain words, the rows that they are."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sequence = 0
        self.rows: list[Row] = []
        self._position = 0
        self._index = 0

    def block(self, record_count: int) -> bytes:
        self._position += 1
        self._index = 0
        make = [
            self.enqueued,
            self.enqueued,
            self.fanned_out,
            self.placed,
            self.delivered,
            self.extended,
            self.settled,
            self.removed,
            self.given_back,
            self.rescheduled,
            self.parked,
            self.moved,
            self.purged,
            self.deleted,
            self.others,
        ]
        return block(*(self._random.choice(make)() for _ in range(record_count)))

    def _row(self, kind: str, queue: int, at_ms: int, **more: Any) -> None:
        namespace, name = PLACES[queue]
        row = {"shard": SHARD, "position": self._position, "index": self._index, "at": instant(at_ms), "kind": kind}
        row |= {"namespace": namespace, "queue": name}
        self.rows.append(row | {name: value for name, value in more.items() if value is not None})
        self._index += 1

    def _entered(self, queue: int, at_ms: int, sequence: int, envelope: Envelope, body: bytes, **more: Any) -> None:
        said = properties.read(envelope.properties)
        number, created_at_ms = more.pop("number", sequence), more.pop("created_at_ms", at_ms)
        self._row(
            "enqueued",
            queue,
            at_ms,
            sequence=sequence,
            message_id=IDS.message_id(number, created_at_ms),
            created_at=instant(created_at_ms),
            exchange=envelope.exchange or None,
            routing_key=envelope.routing_key or None,
            group=envelope.group,
            deduplication_id=envelope.deduplication_id,
            ttl_ms=envelope.ttl_ms,
            max_retries=envelope.max_retries,
            content_type=said.content_type,
            headers=[(name, str(value)) for name, value in said.headers.items()] or None,
            properties=envelope.properties or None,
            body_bytes=len(body),
            body=body,
            **more,
        )

    # -- chance ---

    def _queue(self) -> int:
        return self._random.choice([1, 2, 3])

    def _at_ms(self) -> int:
        return AT_MS + self._random.randrange(1_000_000)

    def _next(self) -> int:
        self._sequence += self._random.randrange(1, 5)
        return self._sequence

    def _sequences(self) -> list[int]:
        return [self._random.randrange(1, 1 << 49) for _ in range(self._random.choice([1, 1, 2, 40]))]

    def _envelope(self) -> Envelope:
        if self._random.random() < 0.5:
            return PLAIN
        said = Properties(
            headers={"n": str(self._random.randrange(20)), "é": "ß"} if self._random.random() < 0.5 else {},
            content_type=self._random.choice([None, "text/plain"]),
        )
        return Envelope(
            properties.write(said),
            self._random.choice(["", "exchange"]),
            self._random.choice(["", "key"]),
            self._random.choice([None, "group"]),
            self._random.choice([None, "id 1", "id 22"]),
        )

    # -- records ---

    def enqueued(self) -> bytes:
        """Uneven entries, or even ones that the decoder may take at one stroke."""
        count = self._random.choice([1, 2, 16, 50])
        is_even = self._random.random() < 0.6
        queue, at_ms, flags = self._queue(), self._at_ms(), self._random.choice([0, 1, 2, 3])
        size, envelope = self._random.choice([0, 1, 100]), self._envelope()
        is_alike = self._random.random() < 0.5
        messages = []
        for _ in range(count):
            if not is_even:
                flags, size, envelope = self._random.choice([0, 1, 2, 3]), self._random.randrange(50), self._envelope()
            elif not is_alike and envelope.properties:
                # As long as the others, and yet another one.
                said = Properties(headers={"n": self._random.choice("abc")})
                envelope = Envelope(properties.write(said))
            messages.append(self._message(queue, at_ms, flags, envelope, self._random.randbytes(size)))
        return enqueued(queue, at_ms, messages)

    def _message(self, queue: int, at_ms: int, flags: int, envelope: Envelope, body: bytes) -> Message:
        sequence, priority = self._next(), self._random.randrange(256)
        ready_at_ms = at_ms + 5_000 if flags & 1 else at_ms
        expires_at_ms = at_ms + 9_000 if flags & 2 else None
        self._entered(
            queue,
            at_ms,
            sequence,
            envelope,
            body,
            priority=priority,
            ready_at=instant(ready_at_ms),
            expires_at=None if expires_at_ms is None else instant(expires_at_ms),
        )
        return Message(
            sequence, sequence, queue, envelope, body, priority, at_ms, ready_at_ms, expires_at_ms=expires_at_ms
        )

    def fanned_out(self) -> bytes:
        at_ms, envelope, body = self._at_ms(), self._envelope(), self._random.randbytes(self._random.randrange(50))
        targets = []
        for queue in self._random.sample([1, 2, 3], self._random.randrange(1, 4)):
            sequence, priority = self._next(), self._random.randrange(256)
            ready_at_ms = at_ms + self._random.choice([0, 7])
            expires_at_ms = self._random.choice([0, at_ms + 9])
            targets.append((queue, sequence, priority, ready_at_ms, expires_at_ms))
            self._entered(
                queue,
                at_ms,
                sequence,
                envelope,
                body,
                priority=priority,
                ready_at=instant(ready_at_ms),
                expires_at=instant(expires_at_ms) if expires_at_ms else None,
            )
        address = records.envelope.encode(envelope)
        return records.fanned_out.encode(at_ms, address, envelope.properties, body, targets)

    def placed(self) -> bytes:
        """Some new, some relocated: those are no rows."""
        body, before = self._random.randbytes(20), Envelope()
        states: list[Placed] = []
        for _ in range(self._random.randrange(1, 4)):
            queue, entered_at_ms, envelope = self._queue(), self._random.choice([0, self._at_ms()]), self._envelope()
            is_as_before = bool(states) and self._random.random() < 0.5
            envelope = before if is_as_before else envelope
            before = envelope
            sequence, number = self._next(), self._next()
            expires_at_ms = self._random.choice([None, AT_MS])
            states.append(
                Placed(
                    queue,
                    sequence,
                    number,
                    None if is_as_before else envelope,
                    3,
                    AT_MS - 5,
                    entered_at_ms,
                    State.READY,
                    expires_at_ms,
                    None,
                    None,
                    (),
                    entered_at_ms,
                )
            )
            if entered_at_ms:
                self._entered(
                    queue,
                    entered_at_ms,
                    sequence,
                    envelope,
                    body,
                    number=number,
                    created_at_ms=AT_MS - 5,
                    priority=3,
                    ready_at=instant(entered_at_ms),
                    expires_at=None if expires_at_ms is None else instant(expires_at_ms),
                )
        return records.placed.encode(states, body)

    def delivered(self) -> bytes:
        queue, at_ms, sequences = self._queue(), self._at_ms(), self._sequences()
        deadline_ms, consumer = self._random.choice([None, at_ms + 9]), self._random.choice(["", "worker", "Jürgen"])
        first_count = self._random.choice([0, len(sequences)])
        for sequence in sequences:
            self._row(
                "delivered",
                queue,
                at_ms,
                sequence=sequence,
                deadline_at=None if deadline_ms is None else instant(deadline_ms),
                consumer=consumer or None,
                delivery_count=1 if first_count else None,
            )
        return records.delivered.encode(queue, at_ms, deadline_ms, 1, first_count, 5, consumer, sequences)

    def extended(self) -> bytes:
        queue, at_ms, sequences = self._queue(), self._at_ms(), self._sequences()
        deadline_ms = self._random.choice([None, at_ms + 9])
        for sequence in sequences:
            deadline_at = None if deadline_ms is None else instant(deadline_ms)
            self._row("extended", queue, at_ms, sequence=sequence, deadline_at=deadline_at)
        return records.extended.encode(queue, at_ms, deadline_ms, sequences)

    def settled(self) -> bytes:
        queue, at_ms, sequences = self._queue(), self._at_ms(), self._sequences()
        kind, encode = self._random.choice(SETTLED)
        for sequence in sequences:
            self._row(kind, queue, at_ms, sequence=sequence)
        return encode(queue, at_ms, sequences)

    def removed(self) -> bytes:
        queue, at_ms, sequences = self._queue(), self._at_ms(), self._sequences()
        reason = self._random.choice([Reason.EXPIRED, Reason.RETIRED, Reason.OVERFLOW, Reason.CANCELLED])
        kind = "expired" if reason in (Reason.EXPIRED, Reason.RETIRED) else "removed"
        for sequence in sequences:
            self._row(kind, queue, at_ms, sequence=sequence, reason=reason.name.lower())
        return records.removed.encode(queue, at_ms, reason, sequences)

    def given_back(self) -> bytes:
        queue, at_ms, sequence, reason = self._queue(), self._at_ms(), self._next(), Reason.TIMED_OUT
        error = self._random.choice(["", "bad ☹"])
        ready_at = instant(at_ms + 3)
        self._row(
            "returned", queue, at_ms, sequence=sequence, reason="timed_out", error=error or None, ready_at=ready_at
        )
        return records.given_back.encode(queue, sequence, at_ms, at_ms + 3, reason, error)

    def rescheduled(self) -> bytes:
        queue, at_ms, sequence = self._queue(), self._at_ms(), self._next()
        self._row("rescheduled", queue, at_ms, sequence=sequence, ready_at=instant(at_ms + 3))
        return records.rescheduled.encode(queue, sequence, at_ms, at_ms + 3)

    def parked(self) -> bytes:
        queue, at_ms, sequence = self._queue(), self._at_ms(), self._next()
        self._row("dead_lettered", queue, at_ms, sequence=sequence, reason="max_retries", error="burnt")
        return records.parked.encode(Parked(queue, sequence, at_ms, Reason.MAX_RETRIES, Reason.NACKED, "name", "burnt"))

    def moved(self) -> bytes:
        queue, target, at_ms = self._queue(), self._random.choice([0, 1, 2, 3]), self._at_ms()
        sequence, new_sequence = self._next(), self._next()
        reason, error = self._random.choice([(Reason.REDRIVEN, ""), (Reason.REJECTED, "burnt")])
        address = self._random.choice([None, ("exchange", "key"), ("", "")])
        self._row(
            "moved" if reason is Reason.REDRIVEN else "dead_lettered",
            queue,
            at_ms,
            sequence=sequence,
            reason=reason.name.lower(),
            error=error or None,
            target_queue=PLACES[target][1] if target else None,
            target_sequence=new_sequence,
            exchange=None if address is None else address[0] or None,
            routing_key=None if address is None else address[1] or None,
        )
        record = records.moved.encode(
            Moved(queue, sequence, target, new_sequence, 0, 0, at_ms, reason, Reason.NACKED, "name", error)
        )
        if address is not None:
            record += records.readdressed.encode(Readdressed(target or 1, new_sequence, *address))
        return record

    def purged(self) -> bytes:
        queue, at_ms, ready_only = self._queue(), self._at_ms(), self._random.random() < 0.5
        reason = "ready" if ready_only else "all"
        self._row("purged", queue, at_ms, reason=reason, target_sequence=99, count=7)
        return records.purged.encode(queue, at_ms, 99, 7, ready_only=ready_only)

    def deleted(self) -> bytes:
        queue, at_ms = self._queue(), self._at_ms()
        self._row("deleted", queue, at_ms)
        return records.queue_deleted.encode(QueueDeleted(queue, *PLACES[queue], at_ms))

    def others(self) -> bytes:
        """What is no row, and what nobody knows yet."""
        kind = self._random.choice([Kind.QUEUE_DECLARED, Kind.BOUND, Kind.OPENED, Kind.REMEMBERED, Kind.CLAIMED])
        return framed(kind, b"whatever") + b"\xfa\x03\x00\x00\x00new"


@pytest.fixture(params=range(60))
def story(request: pytest.FixtureRequest) -> tuple[list[bytes], list[Row]]:
    author = Author(request.param)
    return [author.block(12) for _ in range(4)], author.rows


def pick(rows: list[Row], columns: Iterator[str] | frozenset[str]) -> list[Row]:
    wanted = set(columns)
    return [{name: value for name, value in row.items() if name in wanted} for row in rows]


def test_rows_are_what_the_records_say(story: tuple[list[bytes], list[Row]]) -> None:
    blocks, rows = story
    assert decode(*blocks) == rows


def test_rows_are_counted_without_being_read(story: tuple[list[bytes], list[Row]]) -> None:
    blocks, rows = story
    counter = Decoder(COUNTED, lambda number, position: ("", ""))
    assert [counter.add(position, each) for position, each in enumerate(blocks, 1)] == [
        sum(row["position"] == position for row in rows) for position in range(1, len(blocks) + 1)
    ]


def test_a_filter_leaves_out_rows_and_changes_none(story: tuple[list[bytes], list[Row]]) -> None:
    blocks, rows = story
    chance = random.Random(len(rows))
    kinds = chance.sample(KINDS, 5)
    columns = frozenset(chance.sample(list(COLUMNS), 12))
    found = decode(
        *blocks, columns=columns, kinds=kinds, accepts=lambda namespace, name: name != "two", bodies="body" in columns
    )
    assert found == pick([row for row in rows if row["kind"] in kinds and row["queue"] != "two"], columns)


def test_nothing_is_an_empty_list() -> None:
    assert decode(block()) == []


def test_a_large_block_comes_in_several_batches() -> None:
    sequences = list(range(1, 3 * ROWS))
    assert [row["sequence"] for row in decode(block(records.acknowledged.encode(1, AT_MS, sequences)))] == sequences


@pytest.mark.parametrize("seed", range(20))
def test_what_is_cut_short_is_refused_and_not_guessed(seed: int) -> None:
    author = Author(seed)
    whole = author.block(3)
    chance = random.Random(seed)
    for _ in range(20):
        cut = whole[: chance.randrange(9, len(whole))]
        try:
            found = decode(cut)
        except RecordError:
            continue
        assert found == author.rows[: len(found)]


def test_a_length_that_lies_is_refused() -> None:
    for make in (Author.enqueued, Author.fanned_out, Author.delivered, Author.settled):
        record = make(Author(3))
        longer = record[:1] + (int.from_bytes(record[1:5], "little") + 4).to_bytes(4, "little") + record[5:] + bytes(4)
        with pytest.raises(RecordError):
            decode(block(longer))


def test_a_block_of_a_later_version_is_refused() -> None:
    with pytest.raises(LogNewer):
        decode(bytes([VERSION + 1]) + block()[1:])
