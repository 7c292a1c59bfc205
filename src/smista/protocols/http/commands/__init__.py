"""The commands, one module per subject; importing this fills the table."""

from smista.protocols.http.commands import (
    broker,
    claims,
    dead_letters,
    exchanges,
    looking,
    policies,
    publishing,
    queues,
    receiving,
    scheduled,
    staged,
)
from smista.protocols.http.commands.base import COMMANDS, DECODERS, Command, Door

__all__ = [
    "COMMANDS",
    "DECODERS",
    "Command",
    "Door",
    "broker",
    "claims",
    "dead_letters",
    "exchanges",
    "looking",
    "policies",
    "publishing",
    "queues",
    "receiving",
    "scheduled",
    "staged",
]
