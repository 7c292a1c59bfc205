"""Where in the log things lie: the block that has what is known of each.

A message, a queue, a policy, a claim ... says by its `position` in which block it was written last. Before a block is
given up, what has this position is written again, and so has another one from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smista.core.message import Message
from smista.core.queue import Queue
from smista.engine.recorder import HasPosition


class Positions:
    def __init__(self) -> None:
        self.lasting: set[int] = set()
        """Blocks that hold what outlives messages: declarations, bindings, claims, commits or deduplication memory."""
        self.moved: dict[int, Message] = {}
        """By number, messages whose place is not the one under which their body was written."""

    def lasts(self, thing: HasPosition | None, position: int) -> None:
        """What outlives messages lies in this block now."""
        self.lasting.add(position)
        if thing is not None:
            thing.position = position

    def forgotten(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.sequence != message.number:
                self.moved.pop(message.number, None)

    def found(self, messages: Iterable[Message]) -> None:
        """A start has found these in the log."""
        self.moved.update((message.number, message) for message in messages if message.sequence != message.number)

    def find(self, queue: Queue, number: int) -> Message | None:
        """The message of this queue that was published under a number."""
        moved = self.moved.get(number)
        return queue.find(number if moved is None else moved.sequence)
