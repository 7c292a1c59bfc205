"""Where a test of RabbitMQ's behaviour runs: on Smista, and on a real RabbitMQ where there is one to compare with.

    SMISTA_TEST_RABBITMQ=amqp://guest:guest@127.0.0.1:5672 make test

then runs each of them twice, so that what they expect is held against the truth.
"""

from __future__ import annotations

import os
import secrets
from urllib.parse import urlsplit

from tests.protocols.amqp.peer import Exchange, Peer, Queue
from tests.served import Served

RABBITMQ = os.environ.get("SMISTA_TEST_RABBITMQ", "")


class Place:
    def __init__(self, address: tuple[str, int], server: Served | None = None) -> None:
        self.address = address
        self._server = server
        self._names: list[str] = []

    @property
    def is_rabbitmq(self) -> bool:
        return self._server is None

    @property
    def server(self) -> Served:
        assert self._server is not None
        return self._server

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.address[0]}:{self.address[1]}"

    def connect(self, **options: object) -> Peer:
        return Peer(self.address, **options)  # type: ignore[arg-type] # handed on as they are

    def name(self, start: str = "q") -> str:
        """A name that nobody has used, for a queue or an exchange; what is made under it goes with the test."""
        name = f"{start}-{secrets.token_hex(4)}"
        self._names.append(name)
        return name

    def clean_up(self) -> None:
        names, self._names = self._names, []
        if names:
            with self.connect() as peer:
                channel = peer.channel()
                for name in names:
                    channel.call(Queue.Delete(queue=name), Queue.DeleteOk)
                    channel.call(Exchange.Delete(exchange=name), Exchange.DeleteOk)
                peer.close()


def rabbitmq() -> Place:
    parts = urlsplit(RABBITMQ)
    return Place((parts.hostname or "127.0.0.1", parts.port or 5672))
