"""moto's server, which most people test SQS programs with. It keeps messages in memory."""

from __future__ import annotations

import importlib.metadata
import sys

from bench.peers.peer import Program
from bench.peers.sqs import SqsPeer


class Moto(SqsPeer, Program):
    name = "moto, sqs"
    durability = "none: messages are in memory"
    connections = 1
    keeps = False
    wait_s = 0
    backlog_max = 10_000

    def version(self) -> str:
        return importlib.metadata.version("moto")

    def command(self) -> list[str]:
        serve = "from moto.server import main; main()"
        return [sys.executable, "-c", serve, "-H", "127.0.0.1", "-p", str(self.port)]
