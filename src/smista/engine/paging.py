"""Bodies that stay in the log while memory is short, and come back when their turn comes.

Below the watermark every body is in memory. Above it, what is published to a queue that has a backlog is let go as soon
as its block is durable: the newest bodies are the ones that will be needed last. They are read back a block at a time,
and the last few blocks read are kept, since the neighbours follow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from smista import records
from smista.core.message import Message, State
from smista.core.state import BrokerState
from smista.engine.journal import EngineJournal
from smista.records import Kind

BACKLOG = 64
BLOCKS_KEPT = 8


class Paging:
    def __init__(self, state: BrokerState, journal: EngineJournal, *, resident_bytes_max: int) -> None:
        self._state = state
        self._journal = journal
        self._accounts = journal.accounts
        self._resident_bytes_max = resident_bytes_max
        self._blocks: OrderedDict[int, dict[int, bytes]] = OrderedDict()
        self.has_let_go = False
        """Whether any body was ever let go: while not, nobody needs to look."""

    @property
    def is_over(self) -> bool:
        return self._accounts.resident_bytes > self._resident_bytes_max

    def block_durable(self, position: int) -> None:
        """Let go of what entered with this block, where there is a backlog before it."""
        entered = self._journal.entered.pop(position, ())
        if not self.is_over:
            return
        for message in entered:
            queue = self._state.queues.get(message.queue)
            # One that was written again meanwhile is not on disk in its new block yet.
            is_written = message.position <= position
            if is_written and queue is not None and message.state is not State.IN_FLIGHT and queue.depth > BACKLOG:
                self.let_go(message)

    def let_go(self, message: Message) -> None:
        body = message.body
        if message.position and message.state is not State.GONE and type(body) is bytes:
            message.body = len(body)
            self.has_let_go = True
            self._accounts.resident_bytes -= len(body)

    def missing(self, messages: Iterable[Message]) -> list[int]:
        """The blocks from which bodies of these messages must be brought back."""
        if not self.has_let_go:
            return []
        return sorted(
            {
                message.position
                for message in messages
                if type(message.body) is not bytes and message.position and message.state is not State.GONE
            }
        )

    def has_block(self, position: int) -> bool:
        return position in self._blocks

    def block_read(self, position: int, block: bytes) -> None:
        self._blocks[position] = dict(bodies(block))
        while len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)

    def bring_back(self, position: int, messages: Iterable[Message]) -> None:
        """Put the bodies of a block that was read into those of the messages that live in it."""
        block = self._blocks[position]
        for message in messages:
            # One that moved meanwhile is another object now.
            is_there = message.position == position and message.state is not State.GONE
            if is_there and type(message.body) is not bytes:
                message.body = block[message.number]
                self._accounts.resident_bytes += len(message.body)


def bodies(block: bytes) -> Iterable[tuple[int, bytes]]:
    """The number and body of every message that a block holds."""
    for record in records.blocks.records(block):
        match record.kind:
            case Kind.ENQUEUED:
                for entry in records.enqueued.decode(record.data):
                    yield entry.sequence, entry.body
            case Kind.FANNED_OUT:
                for entry in records.fanned_out.decode(record.data):
                    yield entry.sequence, entry.body
            case Kind.PLACED:
                found, body_view = records.placed.decode(record.data)
                body = bytes(body_view)
                for placed, _, _ in found:
                    yield placed.number, body
