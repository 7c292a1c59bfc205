"""Reads keys from a terminal as they are pressed.

    with pressed(view.press):      # on a loop: called with "q", "up", "page down", ...
        await view.is_over.wait()

If standard input is no terminal, or another program has it (as after `&`), no key ever comes and nothing is changed.
Ctrl-C remains a signal. The terminal's mode is restored, also by a signal; see `interrupts.restored_by`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from smista.cli import interrupts

NAMES = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "7~": "home",
    "4~": "end",
    "8~": "end",
    "5~": "page up",
    "6~": "page down",
}
"""What terminals send after ESC [ or ESC O."""
_KEY = re.compile(r"\x1b[\[O]([0-9;]*[A-Za-z~])|(\x1b)|(.)", re.DOTALL)


def read_keys(data: bytes) -> list[str]:
    """The keys that a terminal sent: characters as they are, others by name. Unknown ones are left out."""
    found = []
    for code, escape, character in _KEY.findall(data.decode(errors="ignore")):
        key = NAMES.get(code, "") if code else "escape" if escape else character
        if key:
            found.append(key)
    return found


@contextlib.contextmanager
def pressed(press: Callable[[str], object]) -> Iterator[None]:
    """Call `press` with each key, on the running loop."""
    terminal = _terminal()
    if terminal is None:
        yield
        return
    before = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            data = os.read(terminal, 1024)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(terminal)  # it has been hung up
        for key in read_keys(data):
            press(key)

    def restore() -> None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)

    with interrupts.restored_by(restore):
        try:
            tty.setcbreak(terminal, termios.TCSANOW)
            loop.add_reader(terminal, read)
            yield
        finally:
            loop.remove_reader(terminal)
            restore()


def _terminal() -> int | None:
    """The file number of standard input, if it is a terminal that this program may read from."""
    try:
        number = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    if not os.isatty(number):
        return None
    try:
        return number if os.tcgetpgrp(number) == os.getpgrp() else None
    except OSError:
        return number  # a terminal without job control
