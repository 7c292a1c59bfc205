"""The broker itself."""

from __future__ import annotations

import msgspec

from smista import __version__
from smista.engine import LogSpace
from smista.service.command import Command
from smista.service.connection_room import ConnectionRoom
from smista.service.context import Context
from smista.service.permission import Permission


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


class ShowInfo(Command[Info], needs=Permission.MONITOR.everywhere()):
    """What this broker is and holds."""

    name = "broker.info"

    async def run(self, context: Context) -> Info:
        broker = context.broker
        queues, messages = await broker.statistics.totals()
        refusal = broker.intake.refusal
        return Info(
            __version__,
            broker.catalog.namespaces(),
            queues,
            messages,
            broker.log.bytes,
            broker.now_ms(),
            None if refusal is None else str(refusal),
            broker.log.space(),
            context.service.connections(),
        )
