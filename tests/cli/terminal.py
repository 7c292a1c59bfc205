"""A command at a terminal of its own: what is seen there, keys pressed, and in which mode the terminal is left."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from types import TracebackType
from typing import Self

from tests.cli.conftest import plain_environment
from tests.waiting import PATIENCE_S

ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"
_SEQUENCE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


class Terminal:
    def __init__(self, *arguments: str, lines: int = 30) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (lines, 100))
        self.mode = termios.tcgetattr(theirs)
        """As it was before."""
        self.seen = ""
        self._theirs = theirs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smista", *arguments],
            env={**plain_environment(), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )

    @property
    def screen(self) -> str:
        """What stands there now: what was drawn last, without what only moves the cursor."""
        return _SEQUENCE.sub("", self.seen.rpartition("\x1b[H")[2])

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, words: str) -> None:
        """Read until this is to be seen on the screen that was drawn last."""
        end_s = time.monotonic() + PATIENCE_S
        while words not in self.screen:
            assert self.process.poll() is None, f"it ended; the last that was seen: {self.screen!r}"
            assert time.monotonic() < end_s, f"no {words!r} is to be seen: {self.screen!r}"
            self._read()

    def _read(self) -> None:
        """What has come, or nothing after a while: it may have ended."""
        if select.select([self._ours], [], [], 1.0)[0]:
            self.seen += os.read(self._ours, 65_536).decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Its exit code, once it has ended by itself; what it wrote last has been seen then."""
        code = self.process.wait(PATIENCE_S)
        os.set_blocking(self._ours, False)
        try:
            while data := os.read(self._ours, 65_536):
                self.seen += data.decode(errors="replace")
        except OSError:
            pass
        return code

    @property
    def is_given_back(self) -> bool:
        """Whether the terminal is as it was, and shows what stood there before."""
        return termios.tcgetattr(self._theirs) == self.mode and self.seen.rfind(LEFT) > self.seen.rfind(ENTERED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)
