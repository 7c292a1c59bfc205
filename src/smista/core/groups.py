"""Ordered groups: within a group messages go out strictly in the order in which they were published.

A group is the row of its unfinished messages, whatever their state; one that finishes out of turn (expired, parked)
stays in the row, passed over, until it comes to the front. Only the first of the row may be received: while it
is in flight, or waits for a retry or for its delay, the group waits, and no other group does. So only the first of each
row ever stands in the queue's ready line, and nothing needs to be searched for.
"""

from __future__ import annotations

from collections import deque

from smista.core.message import Message, State


class Groups:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[str, deque[Message]] = {}

    def join(self, group: str, message: Message) -> bool:
        """Add a published message to its group's row; True if it is the first and so may go out."""
        row = self._rows.get(group)
        if row is None:
            self._rows[group] = deque((message,))
            return True
        row.append(message)
        return row[0] is message

    def is_first(self, message: Message) -> bool:
        group = message.envelope.group
        return group is None or self._rows[group][0] is message

    def followers(self, message: Message, limit: int) -> list[Message]:
        """Up to `limit` messages behind `message`, the first of its row, that are ready without a gap: one receive may
        take them along."""
        group = message.envelope.group
        taken: list[Message] = []
        if group is None:
            return taken
        row = iter(self._rows[group])
        assert next(row) is message
        for member in row:
            if len(taken) >= limit or (member.state < State.DEAD and member.state is not State.READY):
                break
            if member.state is State.READY:
                taken.append(member)
        return taken

    def leave(self, message: Message) -> Message | None:
        """Note that a message is finished; returns the one that is first in the row now, if that changed."""
        group = message.envelope.group
        if group is None:
            return None
        row = self._rows[group]
        if row[0] is not message:
            return None
        while row and row[0].state >= State.DEAD:
            row.popleft()
        if not row:
            del self._rows[group]
            return None
        return row[0]

    def __len__(self) -> int:
        return len(self._rows)
