"""A broker as its users start it: a process of its own, found by the line that says where it listens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

from tests.served import Served
from tests.waiting import PATIENCE_S

HTTP_LISTENING = re.compile(r"http listening on (http://[^\s\"]+)")
AMQP_LISTENING = re.compile(r"amqp listening on amqp://[^\s\"]+:(\d+)")


class ServerProcess(Served):
    """Started by `start`, on a free port unless told otherwise; `kill` is kill -9, `stop` is SIGTERM."""

    module = "smista"
    python = sys.executable
    may_start = True
    """Whether the test at hand is among the slow ones."""

    def __init__(self, data: Path | None = None, *flags: str, variables: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._data = data
        self._flags = flags
        self._variables = variables or {}
        self._process: subprocess.Popen[str] | None = None
        self._collecting: threading.Thread | None = None

    @property
    def data(self) -> Path:
        """The directory of its log."""
        assert self._data is not None
        return self._data

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, port: int = 0, amqp_port: int = 0) -> ServerProcess:
        assert self.may_start, "whoever starts a server is slow: mark the test, or use a ServerThread"
        place = ["--memory"] if self._data is None else ["--data", str(self._data)]
        ports = ["--http-port", str(port), "--amqp-port", str(amqp_port)]
        command = [self.python, "-m", self.module, "serve", *place, *ports]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SMISTA_")}
        environment.update(self._variables)
        self._process = subprocess.Popen(
            [*command, *self._flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            found = HTTP_LISTENING.search(line)
            if found is not None:
                self.url = found[1]
            found = AMQP_LISTENING.search(line)
            if found is not None:
                self.amqp_port = int(found[1])
                break
        else:
            raise AssertionError(f"the server ended with {self._process.wait()}: " + "\n".join(self.lines))
        self._collecting = threading.Thread(target=self._collect, args=(self._process.stdout,), daemon=True)
        self._collecting.start()
        return self

    def _collect(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))

    def restart(self) -> ServerProcess:
        """On the same ports and data."""
        return self.start(port=self.port, amqp_port=self.amqp_port)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def has_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()
        if self._collecting is not None:
            self._collecting.join(PATIENCE_S)
