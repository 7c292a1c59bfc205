"""The commands, one module per subject that HTTP has its own way with; importing this fills the table.

All other commands of the service are taken and answered as they are, so that a new one needs nothing here.
"""

from smista.protocols.http.commands import batches, browsing, publishing, queues, receiving
from smista.protocols.http.commands.base import COMMANDS, DECODERS, Call, HttpCommand, command
from smista.service import commands as service_commands
from smista.service.command import COMMANDS as SERVICE_COMMANDS

__all__ = [
    "COMMANDS",
    "DECODERS",
    "Call",
    "HttpCommand",
    "batches",
    "browsing",
    "publishing",
    "queues",
    "receiving",
    "service_commands",
]

for _name, _kind in SERVICE_COMMANDS.items():
    if _name not in COMMANDS:
        command(_kind)
