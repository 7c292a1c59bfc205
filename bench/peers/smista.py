"""Smista over each of its protocols, from this checkout or from another one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import smista
from bench import machine
from bench.links import Consumer, Publisher, Work
from bench.peers import sqs, stream
from bench.peers.amqp import AmqpPeer
from bench.peers.peer import Peer
from smista import Client
from tests.server_process import ServerProcess


class _Smista(Peer):
    durability = "synced before every confirm"
    python = sys.executable
    """Of the checkout that is served."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = ServerProcess(folder / "data")
        self.server.python = self.python

    def version(self) -> str:
        return smista.__version__

    def start(self) -> None:
        self.server.start()
        self.port = self.server.port

    def stop(self) -> None:
        self.server.__exit__()

    def pids(self) -> list[int]:
        return machine.family(self.server.pid)


class SmistaAmqp(AmqpPeer, _Smista):
    name = "smista"

    @property
    def amqp_port(self) -> int:
        return self.server.amqp_port


class SmistaStream(_Smista):
    name = "smista, stream"

    async def declare(self, work: Work) -> None:
        with Client(self.server.url) as client:
            for queue in work.names:
                client.declare_queue(queue, max_prefetch=10_000)

    async def publisher(self, work: Work) -> Publisher:
        return await stream.StreamPublisher.connect(self.port, work)

    async def consumer(self, work: Work) -> Consumer:
        return await stream.StreamConsumer.connect(self.port, work)


class SmistaSqs(sqs.SqsPeer, _Smista):
    name = "smista, sqs"


def before(kind: type[_Smista]) -> type[Peer]:
    """The same, served from the checkout that `SMISTA_TEST_BENCH_BEFORE` names; it has an environment of its own."""
    checkout = Path(os.environ["SMISTA_TEST_BENCH_BEFORE"])
    return type(f"Before{kind.__name__}", (kind,), {"name": "before", "python": str(checkout / ".venv/bin/python")})


def with_before(kind: type[_Smista]) -> Sequence[type[Peer]]:
    return [kind, before(kind)] if os.environ.get("SMISTA_TEST_BENCH_BEFORE") else [kind]
