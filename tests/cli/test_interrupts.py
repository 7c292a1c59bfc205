"""Ctrl-C, once or several times in a row: a command always ends."""

import asyncio
import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from smista.__main__ import main as smista_main
from smista.cli import interrupts
from tests.waiting import PATIENCE_S

LIVES = 300
INTERRUPTED = 130
GAPS_S = (0.0, 0.0002, 0.001, 0.003)


def test_a_command_ends_however_often_it_is_interrupted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.test_interrupts"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=4 * PATIENCE_S,
    )
    assert done.returncode == 0
    assert set(done.stdout.split()) == {str(INTERRUPTED), str(-signal.SIGINT)}


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "smista.cli.app", SimpleNamespace(run=interrupted))
    assert smista_main() == INTERRUPTED


async def _work(ready: int) -> None:
    """Tasks that wake each other, and need each other to end; it takes a while to take apart."""
    halves: list[asyncio.Queue[None]] = [asyncio.Queue(), asyncio.Queue()]

    async def pass_on(place: int) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await halves[place].get()
                await asyncio.sleep(0)
                halves[1 - place].put_nowait(None)
        await asyncio.sleep(0.002)

    tasks = [asyncio.create_task(pass_on(place)) for place in (0, 1)]
    halves[0].put_nowait(None)
    os.write(ready, b"x")
    try:
        await asyncio.gather(*tasks)
    finally:
        await asyncio.wait(tasks)
        await asyncio.sleep(0.002)


def _lives(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """Print how each of many commands ended that was interrupted up to five times."""
    randomness = random.Random(1)
    for _ in range(LIVES):
        reading, ready = os.pipe()
        child = os.fork()
        if not child:
            try:
                run(_work(ready))
            except (typer.Abort, KeyboardInterrupt):
                os._exit(INTERRUPTED)
            os._exit(0)
        os.close(ready)
        os.read(reading, 1)
        os.close(reading)
        ended = os.pidfd_open(child)
        for _ in range(randomness.randint(1, 5)):
            os.kill(child, signal.SIGINT)
            time.sleep(randomness.choice(GAPS_S))
        is_over, _, _ = select.select([ended], [], [], PATIENCE_S / 4)
        if not is_over:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(ended)
        print(os.waitstatus_to_exitcode(status), flush=True)
        if not is_over:
            return


def test_what_holds_up_the_loop_hears_the_first_ctrl_c() -> None:
    async def ask() -> Any:
        with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        return signal.getsignal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    assert interrupts.run(ask()) is not before, "behind the question the first cancels again"
    assert signal.getsignal(signal.SIGINT) is before


if __name__ == "__main__":
    _lives(asyncio.run if "asyncio" in sys.argv else interrupts.run)
