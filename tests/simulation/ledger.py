"""The ledger: what became of every message, written down from outside.

A broker notes in its journal that a message entered, moved or ended; the ledger watches it (`watching.py`). It asks
two things. Was that allowed: had the caller asked for it, or was its time up? And is it so: is in the broker's tables
exactly what entered and has not ended, each in one place, and is what was confirmed on disk?

A crash takes the ledger back to the last block that is on disk, as it does with the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from smista.core.message import Message, Reason, Receipt, State
from smista.core.queue import Queue
from smista.core.settings import DeadLetterMode, Overflow
from smista.core.state import BrokerState
from tests.simulation.blame import Blame

Name = tuple[int, int, int, int]
"""Of a delivery: queue, sequence, count and run, as in its receipt."""


class Ledger:
    def __init__(self, blame: Blame) -> None:
        self._blame = blame
        self.alive: dict[int, int] = {}
        """By number, the queue each message is in."""
        self.bodies: dict[int, bytes] = {}
        self.noted: dict[int, int] = {}
        """By number, the block in which its entry stands; 0 where none does."""
        self.ended: dict[int, tuple[str, int]] = {}
        """By number: how it ended, and the block that says so."""
        self.transient: set[int] = set()
        """Numbers of queues that are not durable."""
        self._pages: dict[int, dict[int, int]] = {0: {}}
        """By position: what was alive when that block was sealed."""
        # What callers have asked for.
        self.acknowledging: set[Name] = set()
        self.claims_done: dict[tuple[int, str], int] = {}
        self.deleting: Counter[str] = Counter()
        self.purging: Counter[str] = Counter()
        self.discarding: Counter[str] = Counter()
        """By queue, how many calls that ask for it have not returned."""
        self.used_at_ms: dict[int, int] = {}
        """By queue, when somebody last used it."""
        self.users: dict[int, int] = {}
        """By queue, how many consumers wait on it."""
        self.forgotten: dict[int, int] = {}
        """By queue, the number below which a purge took all memory of what was published."""
        self.leases: dict[Name, int | None] = {}
        """By delivery, when its lease ends; None for never."""
        self.held: Callable[[Name], bool] = lambda name: False
        """Whether somebody holds a delivery and is not done with it."""

    # -- what the journal says ----------------------------------------------------------------------------------------

    def entered(self, queue: Queue, messages: Iterable[Message], position: int) -> None:
        for message in messages:
            number = message.number
            if number in self.alive or number in self.ended:
                self._blame.say("a number is used twice", f"message {number} entered {queue.name!r} again")
            self.alive[number] = queue.number
            self.noted[number] = position if queue.settings.durable else 0
            if type(message.body) is bytes:
                self.bodies[number] = message.body
            if not queue.settings.durable:
                self.transient.add(queue.number)

    def copied(self, queue: Queue, copy: Message, original: Message, position: int) -> None:
        self.entered(queue, [copy], position)
        if original.number in self.bodies:
            self.bodies[copy.number] = self.bodies[original.number]

    def moved(self, source: Queue, message: Message, target: Queue, copy: Message) -> None:
        if self.alive.get(message.number) != source.number:
            self._blame.say("moved from where it was not", f"message {message.number} left queue {source.name!r}")
        if copy.number != message.number:
            self._blame.say("moved under another number", f"message {message.number} became {copy.number}")
        self.alive[copy.number] = target.number
        if not target.settings.durable:
            self.transient.add(target.number)

    def leased(self, queue: Queue, messages: Iterable[Message], deadline_ms: int | None) -> None:
        for message in messages:
            self.leases[_delivery(queue, message)] = deadline_ms

    def given_back(self, state: BrokerState, queue: Queue, message: Message, reason: Reason, at_ms: int) -> None:
        name = _delivery(queue, message)
        if reason is Reason.TIMED_OUT:
            until_ms = self.leases.get(name)
            if (until_ms is None or until_ms > at_ms) and not _is_claimed(state, queue, message.sequence):
                self._blame.say(
                    "a lease ended too early", f"delivery {name} of {queue.name!r} at {at_ms}, held until {until_ms}"
                )
        elif self.held(name):
            self._blame.say(
                "taken from its holder",
                f"delivery {name} of {queue.name!r}, {reason.name}; nobody who holds it did that",
            )

    def acknowledged(self, state: BrokerState, queue: Queue, messages: Iterable[Message], position: int) -> None:
        for message in messages:
            name = _delivery(queue, message)
            if name not in self.acknowledging and not self._is_claim_done(state, queue, message.sequence):
                self._blame.say("acknowledged by nobody", f"message {message.number} of {queue.name!r}")
            self._end(queue, message, "acknowledged", position)

    def removed(self, queue: Queue, messages: Iterable[Message], reason: Reason, at_ms: int, position: int) -> None:
        for message in messages:
            if not self._may_go(queue, message, reason, at_ms):
                self._blame.say(
                    "removed without cause", f"message {message.number} of {queue.name!r} for {reason.name} at {at_ms}"
                )
            self._end(queue, message, reason.name.lower(), position)

    def purged(self, queue: Queue, cut: int, *, ready_only: bool, position: int) -> None:
        if not self.purging[queue.name]:
            self._blame.say("purged by nobody", queue.name)
        for message in list(queue.ready.values() if ready_only else queue.messages()):
            self._end(queue, message, "purged", position)
        if not ready_only:
            self.forgotten[queue.number] = cut

    def deleted(self, queue: Queue, at_ms: int, position: int) -> None:
        if not self.deleting[queue.name] and not self._has_expired(queue, at_ms):
            used = self.used_at_ms.get(queue.number, 0)
            self._blame.say(
                "a queue was deleted by nobody",
                f"{queue.name!r} at {at_ms}, last used at {used}, it expires after {queue.settings.expires_ms} ms; "
                f"{self.users.get(queue.number, 0)} consumers",
            )
        for message in list(queue.messages()):
            self._end(queue, message, "deleted", position)

    def sealed(self, position: int) -> None:
        self._pages[position] = dict(self.alive)

    def _end(self, queue: Queue, message: Message, how: str, position: int) -> None:
        if self.alive.get(message.number) != queue.number:
            self._blame.say(
                "ended where it was not",
                f"message {message.number} of {queue.name!r} was {how}; it is in {self.alive.get(message.number)}, "
                f"ended before: {self.ended.get(message.number)}",
            )
        self.alive.pop(message.number, None)
        self.ended[message.number] = (how, position if queue.settings.durable else 0)

    # -- what may be --------------------------------------------------------------------------------------------------

    def _may_go(self, queue: Queue, message: Message, reason: Reason, at_ms: int) -> bool:
        settings = queue.settings
        match reason:
            case Reason.EXPIRED:
                return message.expires_at_ms is not None and message.expires_at_ms <= at_ms
            case Reason.RETIRED:
                since_ms = message.deaths[-1].at_ms if message.state is State.DEAD else message.ready_at_ms
                return settings.retention_ms is not None and since_ms + settings.retention_ms <= at_ms
            case Reason.OVERFLOW:
                has_limit = settings.max_depth is not None or settings.max_bytes is not None
                # One that refuses what does not fit lets in dead letters for those who wait, and then refuses the rest.
                may_be_beyond = settings.limit_ready_only and bool(message.deaths)
                return has_limit and (settings.overflow is not Overflow.REJECT or may_be_beyond)
            case Reason.CANCELLED:
                return self.discarding[queue.name] > 0
            case Reason.MAX_RETRIES | Reason.REJECTED:
                return settings.dead_letter in (DeadLetterMode.DROP, DeadLetterMode.MOVE_OR_DROP)
        return False

    def _is_claim_done(self, state: BrokerState, queue: Queue, sequence: int) -> bool:
        for consumer, claimant in state.claimants.get(queue.number, {}).items():
            up_to = self.claims_done.get((queue.number, consumer), 0)
            for number, claim in claimant.claims.items():
                if number <= up_to and any(sequence in rows.sequences for rows in claim.rows):
                    return True
        return False

    def _has_expired(self, queue: Queue, at_ms: int) -> bool:
        expires_ms = queue.settings.expires_ms
        if expires_ms is None or self.users.get(queue.number):
            return False
        return self.used_at_ms.get(queue.number, 0) + expires_ms <= at_ms

    def may_acknowledge(self, receipt: Receipt) -> None:
        self.acknowledging.add((receipt.queue, receipt.sequence, receipt.delivery, receipt.run))

    # -- what must be -------------------------------------------------------------------------------------------------

    def confirmed(self, number: int, last: int) -> None:
        """It was confirmed that this message is safe."""
        position = self.noted.get(number)
        if position is None:
            self._blame.say("confirmed and never entered", f"message {number}")
        elif position > last:
            self._blame.say("confirmed before it was on disk", f"message {number}, block {position}, on disk {last}")

    def gone(self, number: int, last: int) -> None:
        """It was confirmed that this message was acknowledged."""
        how, position = self.ended.get(number, ("", 0))
        if not how:
            self._blame.say("acknowledged and still there", f"message {number}")
        elif position > last:
            self._blame.say("an end was confirmed before it was on disk", f"message {number}, {how}, block {position}")

    def compare(self, state: BrokerState) -> None:
        """Every message is in exactly one place, and it is the right one."""
        found: dict[int, int] = {}
        for queue in state.queues.values():
            for message in queue.messages():
                if message.number in found:
                    self._blame.say("a message is in two places", f"{message.number}, one of them {queue.name!r}")
                found[message.number] = queue.number
        if found == self.alive:
            return
        for number in self.alive.keys() | found.keys():
            here, there = self.alive.get(number), found.get(number)
            if here == there:
                continue
            if there is None:
                self._blame.say("a message is lost", f"{number}, last seen in queue number {here}")
            elif here is None:
                how = self.ended.get(number, ("never entered", 0))[0]
                self._blame.say("a message came back", f"{number} is in queue number {there}; it was {how}")
            else:
                self._blame.say("a message is elsewhere", f"{number} is in queue {there} and should be in {here}")

    @staticmethod
    def leases_in(state: BrokerState) -> dict[Name, int | None]:
        return {
            _delivery(queue, message): message.deadline_ms
            for queue in state.queues.values()
            for message in queue.in_flight.values()
        }

    # -- over a restart -----------------------------------------------------------------------------------------------

    def restart(self, position: int) -> None:
        """The broker begins again with the block at `position` as the last one."""
        page = self._pages[position]
        self.alive = {number: queue for number, queue in page.items() if queue not in self.transient}
        # What was not in the log is forgotten, and so is its number, which may be given out again.
        self.noted = {number: at for number, at in self.noted.items() if 0 < at <= position}
        self.ended = {
            number: (how, at) for number, (how, at) in self.ended.items() if at <= position and number in self.noted
        }
        self._pages = {at: kept for at, kept in self._pages.items() if at <= position}
        self.users.clear()
        self.transient.clear()
        for asked in (self.deleting, self.purging, self.discarding):
            asked.clear()


def _delivery(queue: Queue, message: Message) -> Name:
    deliveries = message.deliveries
    assert deliveries is not None
    return queue.number, message.sequence, deliveries.count, deliveries.run


def _is_claimed(state: BrokerState, queue: Queue, sequence: int) -> bool:
    return any(
        sequence in rows.sequences
        for claimant in state.claimants.get(queue.number, {}).values()
        for claim in claimant.claims.values()
        for rows in claim.rows
    )
