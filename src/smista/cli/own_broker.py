"""A temporary broker: a process on a free port with its data in a temporary directory, both removed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from smista.command_line import WrongUsage

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_READY = "http listening on "


@contextlib.asynccontextmanager
async def own_broker() -> AsyncIterator[tuple[str, Path]]:
    """Yields its address and its directory once it is ready."""
    with tempfile.TemporaryDirectory(prefix="smista-demo-") as directory:
        data = Path(directory)
        log = data / "broker.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "smista", "serve", "--data", str(data / "data")),
                *("--http-port", "0", "--amqp-port", "0", "--log-level", "warning"),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                # Settings of other brokers must not affect this one.
                env={name: value for name, value in os.environ.items() if not name.startswith("SMISTA_")},
                # Ctrl-C reaches only us, and we stop it in order.
                start_new_session=True,
            )
        try:
            yield await _address(process, log), data
        finally:
            await _stopped(process)


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while line := (await process.stdout.readline()).decode():
                if line.startswith(_READY):
                    return line.removeprefix(_READY).strip()
    except TimeoutError:
        pass
    raise WrongUsage(f"The broker did not start: {_problem(log)}")


def _problem(log: Path) -> str:
    return log.read_text(errors="replace").strip() or "it logged no reason."


async def _stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                # Reads on, so that a full pipe does not block its last output.
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
