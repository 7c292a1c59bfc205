"""How many bytes of what there are: in the blocks of the log, and in memory.

    live       of each block, what messages in it are still there; a block with nothing alive can be dropped
    resident   bodies that are in memory
    kept       what messages take in memory beside their bodies

Each is kept up to date as messages come and go, so that nobody ever has to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smista.core.message import Message

MESSAGE_BYTES = 48
"""What a message costs in the log beside body and properties, about."""
KEPT_BYTES = 400
"""What a message takes in memory beside its body and properties: 250 bytes while it is ready, 380 in flight."""


def kept_bytes(message: Message) -> int:
    """What a message takes in memory, beside its body."""
    return KEPT_BYTES + len(message.envelope.properties)


def live_bytes(message: Message) -> int:
    return message.body_bytes + len(message.envelope.properties) + MESSAGE_BYTES


class Accounts:
    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        """Live bytes in each block that has any."""
        self.live_total = 0
        self.lasting: set[int] = set()
        """Blocks that hold declarations, bindings, claims, commits or deduplication memory."""
        self.resident_bytes = 0
        """Bytes of bodies in memory ..."""
        self.kept_bytes = 0
        """... and of all else that messages take there."""

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
        self.live_total -= size
        if alive > size:
            self.live[position] = alive - size
        else:
            del self.live[position]

    def give_up(self, position: int) -> None:
        """Nothing in this block counts any more."""
        self.live_total -= self.live.pop(position, 0)
        self.lasting.discard(position)

    def count_resident(self, messages: Iterable[Message]) -> None:
        """They are in memory; whether in the log too is counted by itself."""
        for message in messages:
            self.resident_bytes += message.body_bytes
            self.kept_bytes += kept_bytes(message)

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
            own_bytes = len(message.envelope.properties)
            properties_bytes += own_bytes
            size += body_bytes + own_bytes + MESSAGE_BYTES
            message.position = 0
        self._count_out(position, size)
        self.kept_bytes -= properties_bytes + KEPT_BYTES * len(messages)
