"""The ledger: what the clients of a broker asked for and heard, in order; and the checker that holds a broker to it.

Every client notes its intent before it asks and the outcome when it hears it; what it never heard is unknown. What was
found after a crash is noted too (`Recovered`), so one fold over the ledger checks all rounds of a run.

A publish makes one **copy** per queue. A copy is in its queue, in that queue's dead-letter queue, or gone:

    publish ──▶ LIVE ──bury──▶ DEAD ──redrive──▶ LIVE          acknowledge, purge: either ──▶ GONE

The broker does each request in the step in which it is asked, so the order of the intents is the order in its log; and
the log loses, if anything, its end. The checker relies on both. When a request is confirmed, it and all before it are
certain. When the broker comes back there must be one moment, not before the last certain request, at which every copy
was as it is found now: a request that was never answered has happened wholly or not at all, and so have all before it.

What each kind of violation means:

    lost        confirmed, never ended, and not there          doubled     one copy found twice
    back        its end was confirmed, and it is there         partial     in some of the queues of a fan-out only
    misplaced   a confirmed move is undone, or half            torn        no one moment explains what is there
    unexpected  nobody published it, or it was refused         changed     not the bytes that were published
    stale       an old receipt had an effect                   early       delivered before it was due
    lease       two leases at a time, or a lease forgotten     order       a group's messages overtook each other
    count       deliveries forgotten, or a receipt used twice  dedup       a deduplication id forgotten
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from smista.core.message import Reason, State
from smista.engine import Broker

LIVE, DEAD, GONE, ABSENT = "live", "dead", "gone", "absent"
DEAD_LETTER_SUFFIX = "_dlq"

ReceiptFields = tuple[int, ...]
"""Queue, sequence, delivery, and whatever else a receipt holds."""


class Opened(msgspec.Struct, tag=True, frozen=True):
    """A broker was opened: a new session."""


class Publish(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Intent: one message, to each of `queues`."""

    id: str
    queues: tuple[str, ...]
    digest: str
    group: str | None = None
    place: int = 0
    """Its place within its group."""
    due_at_ms: int = 0
    may_expire: bool = False
    deduplication_id: str | None = None


class Delivered(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    message: str
    queue: str
    digest: str
    receipt: ReceiptFields
    at_ms: int
    until_ms: int | None


class Settle(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Intent: `acknowledge`, `bury` (nack for good), `retry` (nack) or `release` one delivery. `is_stale` when the
    client knows that its receipt is not the last one, and expects to be refused."""

    id: str
    action: str
    message: str
    queue: str
    receipt: ReceiptFields
    is_stale: bool = False


class Sweep(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Intent: `purge` or `delete` a queue, or `redrive` all of its dead letters."""

    id: str
    action: str
    queue: str


class Outcome(msgspec.Struct, tag=True, frozen=True):
    """`confirmed`, `duplicate`, `refused` (nothing happened), or `unknown`."""

    id: str
    result: str


class Found(msgspec.Struct, frozen=True, array_like=True):
    message: str
    queue: str
    digest: str
    state: int
    sequence: int
    delivery_count: int


class Recovered(msgspec.Struct, tag=True, frozen=True):
    """All that a broker holds right after it was opened."""

    at_ms: int
    found: list[Found]


Event = Opened | Publish | Delivered | Settle | Sweep | Outcome | Recovered

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class Ledger:
    """Append-only. With a path, each event is in the file before `note` returns; `on_note` hears how many there are."""

    def __init__(self, path: Path | None = None, *, on_note: Callable[[int], None] | None = None) -> None:
        self.events: list[Event] = []
        self._on_note = on_note
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if self._file is not None:
            # The last line of a client that was killed may be half.
            os.write(self._file, b"\n")

    def note(self, event: Event) -> None:
        self.events.append(event)
        if self._file is not None:
            os.write(self._file, _encode(event) + b"\n")
        if self._on_note is not None:
            self._on_note(len(self.events))


def read_ledger(path: Path) -> list[Event]:
    """The events in the file, but for lines that a kill has cut short."""
    events: list[Event] = []
    for line in path.read_bytes().split(b"\n"):
        if line:
            try:
                events.append(_decode(line))
            except msgspec.DecodeError:
                continue
    return events


# -- bodies -----------------------------------------------------------------------------------------------------------


def body_of(message: str, body_bytes: int) -> bytes:
    head = f"{message}|".encode()
    return (head + hashlib.sha256(head).digest() * (body_bytes // 32 + 1))[: max(len(head), body_bytes)]


def name_in(body: bytes) -> str:
    return body.split(b"|", 1)[0].decode("utf-8", "replace")


def digest_of(body: bytes) -> str:
    return hashlib.blake2s(body, digest_size=8).hexdigest()


async def contents(broker: Broker) -> Recovered:
    """Everything a broker holds, as an event for the ledger."""
    found: list[Found] = []
    for queue in broker.catalog.queue_names():
        after: int | None = 0
        while after is not None:
            page = await broker.browsing.browse(queue, after=after, limit=1000)
            after = page.after
            for message in page.messages:
                if not isinstance(message.body, bytes):
                    # Set aside because its block is damaged: for an operator to see, not a message any more.
                    assert message.deaths[-1].reason is Reason.DAMAGED, message
                    continue
                found.append(
                    Found(
                        name_in(message.body),
                        queue,
                        digest_of(message.body),
                        message.state,
                        message.sequence,
                        message.delivery_count,
                    )
                )
    return Recovered(broker.now_ms(), found)


# -- the checker ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Violation:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class Copy:
    """`history` is what the requests made of it, each with the number of the event that asked."""

    publish: Publish
    family: str
    history: list[tuple[int, str]]
    last: Delivered | None = None
    last_number: int = 0
    is_settled: bool = True

    @property
    def state(self) -> str:
        return self.history[-1][1] if self.history else ABSENT

    def state_at(self, number: int) -> str:
        return next((state for at, state in reversed(self.history) if at <= number), ABSENT)


@dataclass(slots=True)
class Checker:
    violations: list[Violation] = field(default_factory=list)
    copies: dict[tuple[str, str], Copy] = field(default_factory=dict)
    over: dict[tuple[str, str], str] = field(default_factory=dict)
    """Copies that are certainly GONE, or were never stored (ABSENT)."""
    totals: Counter[str] = field(default_factory=Counter)
    certain: int = 0
    """The number of the last event that is certainly on disk, with all before it."""
    certain_ids: dict[tuple[str, str], str] = field(default_factory=dict)
    """The message whose deduplication id is certainly remembered, by queue and id."""
    _number: int = 0
    _asked: dict[str, tuple[int, Publish | Settle | Sweep]] = field(default_factory=dict)
    _order: dict[tuple[str, str], int] = field(default_factory=dict)

    def feed(self, event: Event) -> None:
        self._number += 1
        match event:
            case Opened():
                self._order.clear()
            case Publish():
                self._asked[event.id] = (self._number, event)
                for queue in event.queues:
                    self.copies[event.id, queue] = Copy(event, queue, [(self._number, LIVE)])
            case Settle():
                self._asked[event.id] = (self._number, event)
                self._settle(event)
            case Sweep():
                self._asked[event.id] = (self._number, event)
                self._sweep(event)
            case Delivered():
                self.totals["delivered"] += 1
                self._delivered(event)
            case Outcome():
                self._outcome(event)
            case Recovered():
                self.totals["recovered"] += 1
                self._recovered(event)

    def _report(self, kind: str, what: str) -> None:
        self.violations.append(Violation(kind, what))

    # -- requests -----------------------------------------------------------------------------------------------------

    def _settle(self, event: Settle) -> None:
        copy = self.copies.get((event.message, family_of(event.queue)))
        if copy is None or event.is_stale:
            return
        copy.is_settled = True
        if event.action == "acknowledge":
            copy.history.append((self._number, GONE))
        elif event.action == "bury":
            copy.history.append((self._number, DEAD))

    def _sweep(self, event: Sweep) -> None:
        before, after = {"purge": (LIVE, GONE), "delete": (LIVE, GONE), "redrive": (DEAD, LIVE)}[event.action]
        for copy in self.copies.values():
            if copy.family == event.queue and copy.state == before:
                copy.is_settled = True
                copy.history.append((self._number, after))

    def _outcome(self, event: Outcome) -> None:
        number, asked = self._asked.pop(event.id)
        if event.result == "confirmed":
            self.certain = max(self.certain, number)
            self._confirmed(asked)
        elif event.result in ("duplicate", "refused"):
            self._take_back(number, asked, event.result)
        elif event.result != "unknown":
            self._report(event.result, f"the answer to {asked}")

    def _confirmed(self, asked: Publish | Settle | Sweep) -> None:
        match asked:
            case Publish():
                self.totals["published"] += 1
                self._check_deduplication(asked)
            case Settle():
                key = (asked.message, family_of(asked.queue))
                self.totals[asked.action] += 1
                copy = self.copies.get(key)
                if asked.is_stale:
                    self._report("stale", f"{asked.action} of {key} had an effect with receipt {asked.receipt}")
                elif asked.action == "acknowledge" and copy is not None and copy.state == GONE:
                    self._finish(key, GONE)
            case Sweep():
                self.totals[asked.action] += 1

    def _check_deduplication(self, asked: Publish) -> None:
        if asked.deduplication_id is None:
            return
        for queue in asked.queues:
            earlier = self.certain_ids.setdefault((queue, asked.deduplication_id), asked.id)
            if earlier != asked.id:
                self._report("dedup", f"{asked.id} was stored, and {earlier} has the same deduplication id")

    def _take_back(self, number: int, asked: Publish | Settle | Sweep, result: str) -> None:
        """It had no effect. What is taken back is its own step only; others may have been asked for since."""
        if isinstance(asked, Publish):
            for queue in asked.queues:
                self._finish((asked.id, queue), ABSENT)
            self.totals[result] += 1
            return
        for copy in self.copies.values():
            if any(at == number for at, _ in copy.history):
                copy.history = [step for step in copy.history if step[0] != number]

    def _finish(self, key: tuple[str, str], how: str) -> None:
        if self.copies.pop(key, None) is not None:
            self.over[key] = how

    # -- deliveries ---------------------------------------------------------------------------------------------------

    def _delivered(self, event: Delivered) -> None:
        key = (event.message, family_of(event.queue))
        copy = self.copies.get(key)
        if copy is None or copy.state_at(self.certain) == GONE:
            kind = "back" if copy is not None or self.over.get(key) == GONE else "unexpected"
            self._report(kind, f"{key} was delivered from {event.queue}")
            return
        if event.digest != copy.publish.digest:
            self._report("changed", f"{key} was delivered with another body")
        if event.at_ms < copy.publish.due_at_ms:
            self._report("early", f"{key} was delivered {copy.publish.due_at_ms - event.at_ms} ms before it was due")
        self._check_lease(key, copy, event)
        if copy.publish.group is not None and event.queue == copy.family:
            # Within a session: a crash may take back that a predecessor was settled.
            line = (copy.family, copy.publish.group)
            if copy.publish.place < self._order.get(line, 0):
                self._report("order", f"{key} was delivered after its successor")
            self._order[line] = copy.publish.place
        copy.last, copy.last_number, copy.is_settled = event, self._number, False

    def _check_lease(self, key: tuple[str, str], copy: Copy, event: Delivered) -> None:
        last = copy.last
        if last is None or last.receipt[:2] != event.receipt[:2]:
            return
        if last.receipt == event.receipt:
            self._report("count", f"{key} was delivered twice under receipt {event.receipt}")
        elif not copy.is_settled and (last.until_ms is None or event.at_ms < last.until_ms):
            self._report("lease", f"{key} was delivered while {last.receipt} held it")

    # -- after a crash ------------------------------------------------------------------------------------------------

    def _recovered(self, event: Recovered) -> None:
        found: defaultdict[tuple[str, str], list[Found]] = defaultdict(list)
        for one in event.found:
            found[one.message, family_of(one.queue)].append(one)
        self._check_found(found)
        for key, copy in self.copies.items():
            if key in found and copy.last is not None:
                self._check_delivery(key, copy, copy.last, found[key][0], event.at_ms)
        states = {key: _state_in(found.get(key)) for key in self.copies}
        self._check_states(states)
        self._resolve(states)

    def _check_found(self, found: dict[tuple[str, str], list[Found]]) -> None:
        stored_under: dict[tuple[str, str], str] = {}
        for key, places in found.items():
            copy = self.copies.get(key)
            if len(places) > 1:
                self._report("doubled", f"{key} is there {len(places)} times: {[place.queue for place in places]}")
            if copy is None:
                kind = "back" if self.over.get(key) == GONE else "unexpected"
                self._report(kind, f"{key} is in {places[0].queue}")
                continue
            if any(place.digest != copy.publish.digest for place in places):
                self._report("changed", f"{key} has another body than was published")
            if copy.publish.deduplication_id is not None:
                line = (copy.family, copy.publish.deduplication_id)
                if stored_under.setdefault(line, key[0]) != key[0]:
                    self._report("doubled", f"{key} and {stored_under[line]} have the same deduplication id")

    def _check_delivery(self, key: tuple[str, str], copy: Copy, last: Delivered, found: Found, at_ms: int) -> None:
        if last.receipt[1] != found.sequence:
            copy.last = None
            return
        if copy.last_number >= self.certain:
            # Handed out and not yet on disk when the broker died: that may be forgotten.
            if found.delivery_count < last.receipt[2]:
                copy.last = None
            return
        if found.delivery_count < last.receipt[2]:
            self._report("count", f"{key} has forgotten delivery {last.receipt[2]}, it knows {found.delivery_count}")
        is_held = last.until_ms is None or at_ms < last.until_ms
        if not copy.is_settled and is_held and found.state != State.IN_FLIGHT:
            self._report("lease", f"{key} was held under {last.receipt} and is no longer")

    def _check_states(self, states: dict[tuple[str, str], str]) -> None:
        """Each copy must be in a state it can be in; and then one moment must explain them all."""
        is_sound = True
        moments: set[int] | None = None
        steps = {at for copy in self.copies.values() for at, _ in copy.history if at > self.certain}
        candidates = sorted({self.certain, *steps})
        for key, copy in self.copies.items():
            state = states[key]
            is_open = bool(copy.history) and copy.history[-1][0] > self.certain
            if copy.publish.deduplication_id is not None and copy.state_at(self.certain) == state == ABSENT:
                continue  # It may have been a duplicate, and the answer was never heard.
            possible = {
                at for at in (candidates if is_open else candidates[:1]) if _is_alike(copy, copy.state_at(at), state)
            }
            if not possible:
                self._report(_name_of(copy.state_at(self.certain), state), f"{key}: {copy.history} and now {state}")
                is_sound = False
            elif is_open:
                moments = possible if moments is None else moments & possible
        for publish in {copy.publish.id: copy.publish for copy in self.copies.values()}.values():
            if len({self._is_stored((publish.id, queue), states) for queue in publish.queues} - {None}) > 1:
                self._report("partial", f"{publish.id} is in some of {publish.queues} only")
                is_sound = False
        if is_sound and moments is not None and not moments:
            self._report("torn", f"of what was asked since event {self.certain}, later parts are there and earlier not")

    def _is_stored(self, key: tuple[str, str], states: dict[tuple[str, str], str]) -> bool | None:
        """Whether a copy was ever stored; None if it may have been and ended."""
        if key in self.over:
            return self.over[key] == GONE
        if states[key] != ABSENT:
            return True
        return None if self._may_be_gone(key) else False

    def _may_be_gone(self, key: tuple[str, str]) -> bool:
        return any(state == GONE for _, state in self.copies[key].history)

    def _resolve(self, states: dict[tuple[str, str], str]) -> None:
        """What is found is certain from here on."""
        for key, state in states.items():
            copy = self.copies[key]
            if state == ABSENT:
                self._finish(key, GONE if self._may_be_gone(key) else ABSENT)
            else:
                copy.history = [(self._number, state)]
                if copy.publish.deduplication_id is not None:
                    self.certain_ids.setdefault((copy.family, copy.publish.deduplication_id), copy.publish.id)
        self._asked.clear()
        self.certain = self._number


def check(events: Iterable[Event]) -> Checker:
    """Fold the ledger; `violations` of the result should be empty."""
    checker = Checker()
    for event in events:
        checker.feed(event)
    return checker


def family_of(queue: str) -> str:
    """The queue whose messages may be in this queue."""
    return queue.removesuffix(DEAD_LETTER_SUFFIX)


def _state_in(places: list[Found] | None) -> str:
    if not places:
        return ABSENT
    return DEAD if places[0].queue.endswith(DEAD_LETTER_SUFFIX) else LIVE


def _is_alike(copy: Copy, expected: str, found: str) -> bool:
    if expected in (GONE, ABSENT) or found == ABSENT:
        return expected in (GONE, ABSENT) and found == ABSENT
    # What may expire goes to the dead letters when it likes.
    return expected == found or copy.publish.may_expire


def _name_of(expected: str, found: str) -> str:
    if found == ABSENT:
        return "lost"
    return "back" if expected == GONE else "misplaced"
