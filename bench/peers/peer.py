"""What a benchmark asks of a broker, whichever it is: one class derived from `Peer` for each, in a file of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Self

from bench import machine
from bench.links import Consumer, Publisher, Work

START_S = 90


class Peer(ABC):
    """A server of the benchmark's own: on free ports of loopback, its data in a temporary folder."""

    name: ClassVar[str]
    durability: ClassVar[str]
    """What is certain when a publish is confirmed, and how the fastest fair client does it."""
    connections: ClassVar[int] = 1
    """With how many it is fastest."""
    keeps: ClassVar[bool] = True
    """Whether messages outlive its process."""
    backlog_max: ClassVar[int | None] = None
    """How many messages it can be filled with in reasonable time; None: any number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    @classmethod
    def missing(cls) -> str:
        """What is not installed and cannot be; empty if it can be started. Installs what it may."""
        return ""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def start(self) -> None:
        """Returns when it can be used; also after a `stop`, on the same data."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def pids(self) -> list[int]:
        """Of all its processes."""

    @abstractmethod
    async def declare(self, work: Work) -> None: ...

    @abstractmethod
    async def publisher(self, work: Work) -> Publisher: ...

    @abstractmethod
    async def consumer(self, work: Work) -> Consumer: ...

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        folder = Path(tempfile.mkdtemp(prefix=f"smista-bench-{cls.name.replace(' ', '-').replace('/', '-')}-"))
        folder.chmod(0o777)
        try:
            peer = cls(folder)
            try:
                peer.start()
                yield peer
            finally:
                peer.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Program(Peer):
    """A peer that is one command, which ends in order on `ends_on`."""

    ends_on: ClassVar[signal.Signals] = signal.SIGTERM
    user: str | None = None
    """Whose it is, if not ours."""
    _process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]: ...

    def variables(self) -> Mapping[str, str]:
        return {}

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def start(self) -> None:
        self._process = subprocess.Popen(
            self.command(),
            cwd=self.folder,
            env={**os.environ, **self.variables()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            user=self.user,
        )
        end = time.monotonic() + START_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} did not come up: {' '.join(self.command())}")
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, self.ends_on)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def pids(self) -> list[int]:
        assert self._process is not None
        return machine.family(self._process.pid)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()
