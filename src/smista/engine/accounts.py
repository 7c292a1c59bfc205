"""How many bytes of what there are: in the blocks of the log, and in memory.

    live       of each block, what messages in it are still there; a block with nothing alive can be dropped
    resident   bodies that are in memory
    kept       what messages take in memory beside their bodies
    history    what is known of their failed deliveries, and of the queues they died in

Large properties that several messages share, the copies of a fan-out, are in memory once and count once: a thousand
copies of a message with a long list of receivers would else seem to fill the memory. So do deaths, which the copies of
a dead letter share. They are known by the object, which a message keeps for as long as it is there. Bodies count for
each message: they can be paged out.

Each is kept up to date as messages come and go, so that nobody ever has to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from smista.caches import SMALL_BYTES
from smista.core.message import Death, Failure, Message, Reason
from smista.core.queue import FAILURES_KEPT

MESSAGE_BYTES = 48
"""What a message costs in the log beside body and properties, about."""
KEPT_BYTES = 400
"""What a message takes in memory beside its body and properties: 250 bytes while it is ready, 380 in flight."""
LARGE_BYTES = SMALL_BYTES + 1
"""From where on shared properties count once. Smaller ones may be cached, and then be another object that is equal."""
FAILURE_BYTES = 170
"""What a failed delivery takes beside the error that its consumer gave ..."""
DEATH_BYTES = 200
"""... and a death beside its failures."""


def live_bytes(message: Message) -> int:
    return message.body_bytes + len(message.envelope.properties) + MESSAGE_BYTES


def failure_bytes(error: str) -> int:
    return FAILURE_BYTES + (len(error) if error.isascii() else 4 * len(error))


def failures_bytes(failures: Sequence[Failure]) -> int:
    return sum([failure_bytes(failure.error) for failure in failures])


class Accounts:
    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        """Live bytes in each block that has any. A copy of a fan-out counts in full."""
        self.live_total = 0
        """How much of the blocks lives, in all; of none more than there is of it."""
        self._sizes: dict[int, int] = {}
        """How large those blocks are in which more lives by count."""
        self.resident_bytes = 0
        """Bytes of bodies in memory ..."""
        self.kept_bytes = 0
        """... and of all else that messages take there ..."""
        self.history_bytes = 0
        """... but for their histories, which few have."""
        self._sharers: dict[int, tuple[object, int, int]] = {}
        """Large properties and deaths, by identity: they themselves, their size, and how many messages have them."""

    def count_entered(self, position: int, messages: Sequence[Message]) -> None:
        """Messages have entered, and lie in the block at `position`."""
        for message in messages:
            message.position = position
        bodies_bytes = sum(map(len, cast(list[bytes], [message.body for message in messages])))  # they have just come
        properties_sizes = [len(message.envelope.properties) for message in messages]
        properties_bytes = sum(properties_sizes)
        count = len(messages)
        size = bodies_bytes + properties_bytes + MESSAGE_BYTES * count
        self.live[position] = self.live.get(position, 0) + size
        self.live_total += size
        self.resident_bytes += bodies_bytes
        if max(properties_sizes) < LARGE_BYTES:
            self.kept_bytes += properties_bytes + KEPT_BYTES * count
        else:
            for message in messages:
                self.count_kept(message)

    def count_copies(self, position: int, messages: Sequence[Message], lasting: Sequence[Message]) -> None:
        """Copies of one message have entered, all with the same body and properties; those that are `lasting` lie in
        the block at `position`."""
        # Thousands in one step, so accounts are kept once for all of them. Measured at 0.7 us a queue against 1.5 with
        # each counted for itself.
        first = messages[0]
        self.resident_bytes += first.body_bytes * len(messages)
        self.count_kept(first, len(messages))
        for message in lasting:
            message.position = position
        if lasting:
            size = live_bytes(first) * len(lasting)
            self.live[position] = self.live.get(position, 0) + size
            self.live_total += size

    def count_in(self, message: Message) -> None:
        """A message lives in block `message.position` from now on."""
        size = live_bytes(message)
        self.live[message.position] = self.live.get(message.position, 0) + size
        self.live_total += size

    def count_out(self, message: Message) -> None:
        self._count_out(message.position, live_bytes(message))
        message.position = 0

    def _count_out(self, position: int, size: int) -> None:
        alive = self.live.get(position)
        if alive is None:
            # Not in the log at all; or purged, and its block given up before its memory was freed.
            return
        left = max(0, alive - size)
        block_bytes = self._sizes.get(position)
        self.live_total -= alive - left if block_bytes is None else min(alive, block_bytes) - min(left, block_bytes)
        if left:
            self.live[position] = left
        else:
            del self.live[position]
            self._sizes.pop(position, None)

    def block_is(self, position: int, size: int) -> None:
        """A block that is written is so large."""
        surplus = self.live.get(position, 0) - size
        if surplus > 0 and position not in self._sizes:
            self._sizes[position] = size
            self.live_total -= surplus

    def give_up(self, position: int) -> None:
        """Nothing in this block counts any more."""
        self._count_out(position, self.live.get(position, 0))

    def count_resident(self, messages: Iterable[Message]) -> None:
        """They are in memory; whether in the log too is counted by itself."""
        for message in messages:
            self.resident_bytes += message.body_bytes
            self.count_kept(message)

    def count_kept(self, message: Message, copies: int = 1) -> None:
        """So many messages with the same properties are there."""
        properties = message.envelope.properties
        self.kept_bytes += KEPT_BYTES * copies + self._share(properties, len(properties), copies)

    def _share(self, thing: object, size: int, copies: int = 1) -> int:
        """What it takes that so many more messages have a thing of this size."""
        if size < LARGE_BYTES:
            return size * copies
        _, _, sharers = self._sharers.get(id(thing), (thing, size, 0))
        self._sharers[id(thing)] = thing, size, sharers + copies
        return 0 if sharers else size

    def _unshare(self, thing: object, size: int) -> int:
        """What it frees that a message with such a thing is gone."""
        if size < LARGE_BYTES:
            return size
        _, _, sharers = self._sharers[id(thing)]
        if sharers > 1:
            self._sharers[id(thing)] = thing, size, sharers - 1
            return 0
        del self._sharers[id(thing)]
        return size

    def count_history(self, message: Message, copies: int = 1) -> None:
        """All that is known of a message's failures so far is in memory; so many messages have the same deaths."""
        for death in message.deaths:
            self.history_bytes += self._share(death, self._death_bytes(death), copies)
        self.history_bytes += _own_bytes(message) * copies

    def uncount_history(self, message: Message) -> None:
        for death in message.deaths:
            self.history_bytes -= self._unshare(death, self._death_bytes(death))
        self.history_bytes -= _own_bytes(message)

    def _death_bytes(self, death: Death) -> int:
        """Of a large one it was found before: a dead letter may have thousands of copies, and hundreds of failures."""
        known = self._sharers.get(id(death))
        return DEATH_BYTES + failures_bytes(death.failures) if known is None else known[1]

    def count_failure(self, message: Message, reason: Reason, error: str) -> None:
        """A delivery is about to end, and to enter its message's history, if it failed."""
        if message.deliveries is not None and reason is not Reason.RELEASED:
            failures = message.deliveries.failures
            self.history_bytes += failure_bytes(error)
            if len(failures) >= FAILURES_KEPT:
                self.history_bytes -= failure_bytes(failures[0].error)

    def count_forgotten(self, messages: Sequence[Message]) -> None:
        """Messages are gone for good."""
        # Once per message that is ever acknowledged: one loop, accounts kept per run of messages from one block.
        # Measured at 0.25 us a message against 0.7 for a method per account.
        position = size = properties_bytes = 0
        for message in messages:
            body = message.body
            if isinstance(body, int):
                body_bytes = body
            else:
                body_bytes = len(body)
                self.resident_bytes -= body_bytes
            if message.position != position:
                self._count_out(position, size)
                position, size = message.position, 0
            properties = message.envelope.properties
            own_bytes = len(properties)
            properties_bytes += own_bytes if own_bytes < LARGE_BYTES else self._unshare(properties, own_bytes)
            size += body_bytes + own_bytes + MESSAGE_BYTES
            message.position = 0
        self._count_out(position, size)
        self.kept_bytes -= properties_bytes + KEPT_BYTES * len(messages)
        if self.history_bytes:
            for message in messages:
                self.uncount_history(message)


def _own_bytes(message: Message) -> int:
    """What the failures take that are not a death's: those of one that is parked are."""
    failures = () if message.deliveries is None else message.deliveries.failures
    is_parked = bool(message.deaths) and message.deaths[-1].failures is failures
    return 0 if is_parked else failures_bytes(failures)
