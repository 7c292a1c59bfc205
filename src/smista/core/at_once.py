"""How many bytes of properties are read or written in one turn of the loop.

A message may have ten thousand headers: they take 20 ms, as long as thousands of plain messages do. So whoever delivers
or filters many messages in one turn of the loop counts the bytes of their properties beside the messages, and leaves
the rest for a later turn. One message is one step, however large its properties are.
"""

from __future__ import annotations

from collections.abc import Sequence

from smista.core.message import Message

PROPERTIES_AT_ONCE = 64 << 10
"""In bytes, give or take a message: some 20 ms where they are many short headers. Of the properties that most clients
send, some 150 bytes a message, these are 400 messages a turn: with a quarter of it deliveries took a third longer."""


def properties_bytes(messages: Sequence[Message]) -> int:
    # 0.04 us a message, in a path that each passes.
    return sum([len(message.envelope.properties) for message in messages])
