"""The broker itself."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from smista import __version__
from smista.engine import LogSpace
from smista.protocols.http.commands.base import Command, Door, command
from smista.protocols.places import ConnectionRoom


class Info(msgspec.Struct):
    version: str
    namespaces: list[str]
    queues: int
    messages: int
    log_bytes: int
    now_ms: int
    refusal: str | None
    """Why publishes are refused just now; null while they are taken."""
    log: LogSpace
    """How much the log holds, and why it is not less."""
    connections: ConnectionRoom
    """How many there are, and may be."""


@command
class ShowInfo(Command):
    """What this broker is and holds."""

    name: ClassVar[str] = "broker.info"
    answer: ClassVar[Any] = Info

    async def run(self, door: Door) -> Info:
        broker = door.broker
        queues, messages = await broker.totals()
        refusal = broker.refusal
        return Info(
            __version__,
            broker.namespaces(),
            queues,
            messages,
            broker.log_bytes,
            broker.now_ms(),
            None if refusal is None else str(refusal),
            broker.log_space(),
            door.places.room(),
        )
