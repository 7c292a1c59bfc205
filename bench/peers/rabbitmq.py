"""RabbitMQ, Debian's package, with a node name and a port mapper (epmd) of its own, which end with it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.peers import installing
from bench.peers.amqp import AmqpPeer
from bench.peers.peer import Program, free_port, output


class RabbitMq(AmqpPeer, Program):
    name = "rabbitmq"
    durability = "durable classic queue, persistent messages: by its documentation on disk, synced in batches"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._epmd, self._distribution = free_port(), free_port()
        (folder / "plugins").write_text("[].")

    @classmethod
    def missing(cls) -> str:
        return installing.debian("rabbitmq-server", "rabbitmq-server")

    def version(self) -> str:
        return output("dpkg-query", "--showformat", "${Version}", "--show", "rabbitmq-server")

    def command(self) -> list[str]:
        return [installing.found("rabbitmq-server") or ""]

    def variables(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "none"),
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def is_ready(self) -> bool:
        """It listens before it answers."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(probe.recv(1))
        return False

    def stop(self) -> None:
        if self._process is not None:
            # A signal to the script that started the node does not reach it where another user runs it.
            ctl = installing.found("rabbitmqctl") or ""
            quiet = subprocess.DEVNULL
            environment = {**os.environ, **self.variables()}
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([ctl, "stop"], env=environment, stdout=quiet, stderr=quiet, check=False, timeout=120)
        super().stop()
        self._stop_epmd()

    def _stop_epmd(self) -> None:
        """The port mapper that Erlang started for this node, and only that one."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    is_epmd = b"epmd" in (entry / "cmdline").read_bytes()
                    if is_epmd and f"ERL_EPMD_PORT={self._epmd}".encode() in (entry / "environ").read_bytes():
                        os.kill(int(entry.name), signal.SIGTERM)
