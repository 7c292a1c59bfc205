"""A broker, and `smista(...)`: a command run against it in a process of its own."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.cli.launcher import Done, Launcher
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S

READY = "http listening on "
LATE_WORKER = re.compile(r"^Traceback .*\n(?:  .*\n)+pyspark\.\S+: \[CANNOT_OPEN_SOCKET\].*$", re.MULTILINE)
"""What a Python process of Spark writes that came too late on a busy machine. The pipeline went on without it."""


def plain_environment() -> dict[str, str]:
    """Ours without what is set for other brokers, and without colours and widths that somebody forces."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SMISTA_") and name not in ("FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")
    }


@contextlib.contextmanager
def process(*arguments: str, directory: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A `smista` that runs on; stopped at the end, if it has not ended by then."""
    with (directory / "stderr.txt").open("a") as errors:
        running = subprocess.Popen(
            [sys.executable, "-m", "smista", *arguments],
            cwd=directory,
            env={**plain_environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
            running.wait()


def address_of(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    raise AssertionError("it ended before it was ready")


class Smista(Protocol):
    def __call__(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        directory: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Done: ...


@pytest.fixture(scope="session")
def broker() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture(scope="session")
def url(broker: ServerProcess) -> str:
    return broker.url


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher() as running:
        yield running


@pytest.fixture(scope="session")
def offline(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Smista:
    """`smista(...)` where no broker is needed, or none is to be found."""
    somewhere = tmp_path_factory.mktemp("commands")

    def run(
        *arguments: str,
        stdin: bytes | None = None,
        directory: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Done:
        done = launcher.run(
            *arguments,
            stdin=stdin,
            environment={**plain_environment(), **(environment or {})},
            directory=directory or somewhere,
        )
        assert "Traceback" not in LATE_WORKER.sub("", done.err), done.err
        return done

    return run


@pytest.fixture(scope="session")
def smista(offline: Smista, url: str) -> Smista:
    """`smista(...)` with a broker at SMISTA_URL."""

    def run(
        *arguments: str,
        stdin: bytes | None = None,
        directory: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Done:
        return offline(
            *arguments, stdin=stdin, directory=directory, environment={"SMISTA_URL": url, **(environment or {})}
        )

    return run


_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name nobody else uses."""
    return f"t{os.getpid()}-{next(_numbers)}-"


@pytest.fixture
def queue(smista: Smista, name: str) -> str:
    """A queue nobody else uses, with retries that do not take long."""
    queue = name + "orders"
    done = smista("declare", queue, "--retry-base", "10ms")
    assert done.code == 0, done.err
    return queue
