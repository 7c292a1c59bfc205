"""A ledger for clients of a protocol, and its checker.

The ledger of `ledger.py` knows the order of all requests, since one process makes them all in one broker. Here several
connections speak to another process, so only what one message goes through is in order. That is enough to tell:

    lost        confirmed, nobody asked to acknowledge it, and it is not there
    back        its acknowledgement was confirmed, and it is there or was delivered
    doubled     one publish, stored as two messages
    duplicate   delivered again, and nothing names the cause
    unexpected  nobody published it, or it was refused
    changed     not the bytes that were published

What explains a second delivery: its broker was killed in between (that the message was leased, or acknowledged without
an answer, may not have been on disk), its lease ended, its consumer gave it back, or its consumer's connection went.
Times are the broker's own, of which kills are noted too.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

CLOCK_SLACK_MS = 50
"""How far the broker's clock and ours may be apart. Between a kill and the first delivery after it lies much more."""


@dataclass(slots=True, frozen=True)
class Violation:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class Handed:
    """One delivery that a client has heard of."""

    message: str
    at_ms: int
    until_ms: int | None
    """When its lease ends; None for as long as its connection lives."""
    connection: object
    over: str = ""
    """Why it may be delivered again, as far as its consumer knows."""
    has_asked: bool = False
    """Whether its consumer has asked to acknowledge it and not been refused."""


@dataclass(slots=True)
class Copy:
    digest: str
    is_confirmed: bool = False
    is_refused: bool = False
    message_ids: set[str] = field(default_factory=set)
    last: Handed | None = None
    asked_count: int = 0
    """How often somebody asked to acknowledge it and was not refused."""
    is_acknowledged: bool = False


@dataclass(slots=True, frozen=True)
class Found:
    """A message that is in the broker."""

    message_id: str
    body: bytes


class ProtocolLedger:
    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.causes: Counter[str] = Counter()
        """How often a message was delivered again, and why."""
        self.totals: Counter[str] = Counter()
        self._copies: dict[str, Copy] = {}
        self._kills_ms: list[int] = []
        self._held: dict[object, list[Handed]] = {}

    @property
    def backlog(self) -> int:
        """About how many messages wait to be consumed."""
        return self.totals["published"] - self.totals["acknowledged"] - self.totals["acks unanswered"]

    def _report(self, kind: str, what: str) -> None:
        self.violations.append(Violation(kind, what))

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publishing(self, message: str, body: bytes) -> None:
        """Somebody is about to publish it. Nothing is known of it until `confirmed` or `refused`."""
        assert message not in self._copies
        self._copies[message] = Copy(digest_of(body))

    def confirmed(self, message: str, message_id: str) -> None:
        copy = self._copies[message]
        copy.is_confirmed = True
        self._identify(message, copy, message_id)
        self.totals["published"] += 1

    def refused(self, message: str) -> None:
        self._copies[message].is_refused = True
        self.totals["refused"] += 1

    def _identify(self, message: str, copy: Copy, message_id: str) -> None:
        if message_id not in copy.message_ids:
            copy.message_ids.add(message_id)
            if len(copy.message_ids) > 1:
                self._report("doubled", f"{message} is {sorted(copy.message_ids)}")

    # -- consuming ----------------------------------------------------------------------------------------------------

    def delivered(
        self, body: bytes, message_id: str, *, at_ms: int, until_ms: int | None, connection: object
    ) -> Handed | None:
        """None for what should not have been delivered."""
        self.totals["delivered"] += 1
        message = name_in(body)
        # What went out before a kill may not have been on disk, if its publish was not confirmed either.
        is_from_before = bool(self._kills_ms) and at_ms <= self._kills_ms[-1]
        copy = self._look_up(message, body, None if is_from_before else message_id)
        if copy is None:
            return None
        if copy.is_acknowledged:
            self._report("back", f"{message} was delivered after it was acknowledged")
        handed = Handed(message, at_ms, until_ms, connection)
        if copy.last is not None:
            cause = self._cause(copy.last, handed)
            self.causes[cause] += 1
            if cause == "none":
                self._report("duplicate", f"{copy.last} and then {handed}")
        copy.last = handed
        self._held.setdefault(connection, []).append(handed)
        return handed

    def _look_up(self, message: str, body: bytes, message_id: str | None) -> Copy | None:
        copy = self._copies.get(message)
        if copy is None or copy.is_refused:
            self._report("unexpected", f"{message} ({message_id})")
            return None
        if digest_of(body) != copy.digest:
            self._report("changed", f"{message} ({message_id})")
        if message_id is not None:
            self._identify(message, copy, message_id)
        return copy

    def _cause(self, last: Handed, handed: Handed) -> str:
        if any(last.at_ms <= at_ms + CLOCK_SLACK_MS and at_ms <= handed.at_ms for at_ms in self._kills_ms):
            return "killed before the ack was confirmed" if last.has_asked else "killed"
        if last.over:
            return last.over
        if last.until_ms is not None and last.until_ms <= handed.at_ms:
            return "lease ended"
        return "none"

    def gave_back(self, handed: Handed, how: str) -> None:
        """Its consumer is about to give it back."""
        handed.over = how

    def asking(self, handed: Handed) -> None:
        """Its consumer is about to ask to acknowledge it."""
        handed.has_asked = True
        self._copies[handed.message].asked_count += 1

    def acknowledged(self, handed: Handed) -> None:
        copy = self._copies[handed.message]
        copy.is_acknowledged = True
        self.totals["acknowledged"] += 1

    def ack_refused(self, handed: Handed) -> None:
        """It had no effect."""
        handed.has_asked = False
        self._copies[handed.message].asked_count -= 1
        self.totals["acks refused"] += 1

    def ack_unanswered(self) -> None:
        """Nobody knows what became of it."""
        self.totals["acks unanswered"] += 1

    def dropped(self, connection: object) -> None:
        """The connection is gone, or is about to go."""
        for handed in self._held.pop(connection, ()):
            handed.over = handed.over or "connection lost"

    # -- the broker ---------------------------------------------------------------------------------------------------

    def killed(self, at_ms: int) -> None:
        """The broker is dead, as of now."""
        self._kills_ms.append(at_ms)
        for copy in self._copies.values():
            if not copy.is_confirmed:
                # Whoever saw it saw it before it was on disk: published again, it is another message.
                copy.message_ids.clear()
        self.totals["kills"] += 1

    def expected(self) -> set[str]:
        """Confirmed, and nobody has asked to acknowledge it."""
        return {message for message, copy in self._copies.items() if copy.is_confirmed and not copy.asked_count}

    def ended(self) -> set[str]:
        return {message for message, copy in self._copies.items() if copy.is_acknowledged}

    def check_found(self, found: Iterable[Found], *, expected: set[str], ended: set[str]) -> None:
        """Judge what is in the broker by what was expected, and what had ended, before somebody began to look."""
        self.totals["checks"] += 1
        present = set()
        for one in found:
            message = name_in(one.body)
            if self._look_up(message, one.body, one.message_id) is not None:
                present.add(message)
        for message in expected - present:
            if not self._copies[message].asked_count:
                self._report("lost", f"{message} is not there")
        for message in ended & present:
            self._report("back", f"{message} is there, and its acknowledgement was confirmed")

    @property
    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.violations}


def body_of(message: str, body_bytes: int) -> bytes:
    head = f"{message}|".encode()
    return (head + hashlib.sha256(head).digest().hex().encode() * (body_bytes // 64 + 1))[: max(len(head), body_bytes)]


def name_in(body: bytes) -> str:
    return body.split(b"|", 1)[0].decode("utf-8", "replace")


def digest_of(body: bytes) -> str:
    return hashlib.blake2s(body, digest_size=8).hexdigest()
