"""The commands, one module per subject; importing this fills the table."""

from smista.protocols.http.commands import (
    broker,
    dead_letters,
    exchanges,
    looking,
    publishing,
    queues,
    receiving,
    scheduled,
)
from smista.protocols.http.commands.base import COMMANDS, DECODERS, Command, Door

__all__ = [
    "COMMANDS",
    "DECODERS",
    "Command",
    "Door",
    "broker",
    "dead_letters",
    "exchanges",
    "looking",
    "publishing",
    "queues",
    "receiving",
    "scheduled",
]
