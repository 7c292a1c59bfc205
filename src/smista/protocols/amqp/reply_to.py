"""Direct reply-to: answers that go to whoever asked, past all queues.

Who consumes from `amq.rabbitmq.reply-to` gets a token; what it publishes with that name in `reply_to` carries the token
to whoever answers, who publishes to it through the default exchange.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_PREFIX = REPLY_TO + "."

Deliver = Callable[[str, bytes, bytes], bool]
"""Hands over an answer, by its routing key, properties and body; whether anybody waits for it."""


class ReplyTo:
    def __init__(self) -> None:
        self._waiting: dict[str, Deliver] = {}

    def is_reply_queue(self, name: str) -> bool:
        """Whether this is what direct replies go to: by its common name, or that of somebody who waits."""
        return name == REPLY_TO or (name.startswith(REPLY_PREFIX) and name.removeprefix(REPLY_PREFIX) in self._waiting)

    def wait(self, deliver: Deliver) -> str:
        """Returns the token for this one."""
        token = secrets.token_urlsafe(18)
        self._waiting[token] = deliver
        return token

    def forget(self, token: str) -> None:
        self._waiting.pop(token, None)

    def deliver(self, routing_key: str, properties: bytes, body: bytes) -> bool:
        """False where nobody waits for it any more, or nobody reads."""
        waiting = self._waiting.get(routing_key.removeprefix(REPLY_PREFIX))
        return waiting is not None and waiting(routing_key, properties, body)
