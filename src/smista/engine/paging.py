"""Bodies that stay in the log while memory is short, and come back when their turn comes.

Below the watermark every body is in memory. Above it, what is published to a queue that has a backlog is let go as soon
as its block is durable: the newest bodies are the ones that will be needed last. They are read back a block at a time,
and the last few blocks read are kept, since the neighbours follow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from smista.core.message import Message, State
from smista.core.state import BrokerState
from smista.engine.recorder import Recorder, placed_states
from smista.log import records
from smista.log.records import Kind

BACKLOG = 64
BLOCKS_KEPT = 8


class Paging:
    def __init__(self, state: BrokerState, recorder: Recorder, *, resident_bytes_max: int) -> None:
        self._state = state
        self._recorder = recorder
        self._resident_bytes_max = resident_bytes_max
        self._entering: dict[int, list[Message]] = {}
        self._blocks: OrderedDict[int, dict[int, bytes]] = OrderedDict()
        self.has_let_go = False
        """Whether any body was ever let go: while not, nobody needs to look."""

    @property
    def is_over(self) -> bool:
        return self._recorder.resident_bytes > self._resident_bytes_max

    def block_sealed(self, position: int) -> None:
        recorder = self._recorder
        if recorder.listed:
            self._entering[position] = recorder.listed
            recorder.listed = []
        recorder.is_listing = self.is_over

    def block_durable(self, position: int) -> None:
        """Let go of what entered with this block, where there is a backlog before it."""
        if not self.is_over:
            self._entering.pop(position, None)
            return
        for message in self._entering.pop(position, ()):
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
            self._recorder.resident_bytes -= len(body)

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
                self._recorder.resident_bytes += len(message.body)


def bodies(block: bytes) -> Iterable[tuple[int, bytes]]:
    """The number and body of every message that a block holds."""
    for record in records.records(block):
        match record.kind:
            case Kind.ENQUEUED:
                for entry in records.enqueued(record.data):
                    yield entry.sequence, entry.body
            case Kind.FANNED_OUT:
                for entry in records.read_fanned_out(record.data):
                    yield entry.sequence, entry.body
            case Kind.PLACED:
                head, body = records.read_placed(record.data)
                for placed, _, _ in placed_states(head):
                    yield placed.number, body
