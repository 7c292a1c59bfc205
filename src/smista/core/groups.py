"""Ordered groups: within a group messages go out strictly in the order in which they were published.

A group is the row of its unfinished messages, whatever their state. Only the first of the row may be received: while it
is in flight, or waits for a retry or for its delay, the group waits, and no other group does. So only the first of each
row ever stands in the queue's ready line, and nothing needs to be searched for.

Whoever is finished leaves its row at once, wherever it stands, for a first that keeps coming back may outlive any
number of those behind it: they would stay in memory, and every receive that takes several would walk past them. So a
row is cut into parts of bounded size, all of them in the order of sequences:

    anna    [1 2 5 6] [7 8 9 12] [13 14]

Where a message stands is found by bisection, first among the parts and then within one; the gap that it leaves is
closed in its part alone, and a part without messages goes. A message takes as many bytes as a reference does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from operator import attrgetter

from smista.core.message import Message, State

PART = 512
_sequence = attrgetter("sequence")

Row = list[list[Message]]


class Groups:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def join(self, group: str, message: Message) -> bool:
        """Add a published message to its group's row; True if it is the first and so may go out."""
        row = self._rows.get(group)
        if row is None:
            self._rows[group] = [[message]]
            return True
        if len(row[-1]) < PART:
            row[-1].append(message)
        else:
            row.append([message])
        return False

    def is_first(self, message: Message) -> bool:
        group = message.envelope.group
        return group is None or self._rows[group][0][0] is message

    def followers(self, message: Message, limit: int) -> list[Message]:
        """Up to `limit` messages behind `message`, the first of its row, that are ready without a gap: one receive may
        take them along."""
        group = message.envelope.group
        taken: list[Message] = []
        if group is None:
            return taken
        row = chain.from_iterable(self._rows[group])
        first = next(row)
        assert first is message
        for member in row:
            if len(taken) >= limit or member.state is not State.READY:
                break
            taken.append(member)
        return taken

    def leave(self, message: Message) -> Message | None:
        """Note that a message is finished; returns the one that is first in the row now, if that changed."""
        group = message.envelope.group
        if group is None:
            return None
        row = self._rows[group]
        was_first = row[0][0] is message
        at = index = 0
        if not was_first:
            at = bisect_right(row, message.sequence, key=_first_sequence) - 1
            index = bisect_left(row[at], message.sequence, key=_sequence)
        part = row[at]
        assert part[index] is message
        del part[index]
        if not part:
            del row[at]
        if not row:
            del self._rows[group]
            return None
        return row[0][0] if was_first else None

    def __len__(self) -> int:
        return len(self._rows)


def _first_sequence(part: list[Message]) -> int:
    return part[0].sequence
