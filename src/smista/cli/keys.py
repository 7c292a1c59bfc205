"""Keys that somebody presses at a terminal, one by one as they are pressed.

    with pressed(view.press):      # on a loop: called with "q", "up", "page down", ...
        await view.is_over.wait()

Where standard input is no terminal, or another program has it (as behind `&`), no key ever comes, and nothing changes.
Ctrl-C stays a signal. The terminal is given back as it was, also by a signal; see `interrupts.tidied_by`.
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
"""What terminals send behind ESC [ or ESC O."""
_KEY = re.compile(r"\x1b[\[O]([0-9;]*[A-Za-z~])|(\x1b)|(.)", re.DOTALL)


def read_keys(data: bytes) -> list[str]:
    """The keys in what a terminal sent: characters as they are, others by their names. Unknown ones are left out."""
    found = []
    for code, escape, character in _KEY.findall(data.decode(errors="ignore")):
        key = NAMES.get(code, "") if code else "escape" if escape else character
        if key:
            found.append(key)
    return found


@contextlib.contextmanager
def pressed(press: Callable[[str], object]) -> Iterator[None]:
    """Have `press` called, on the running loop, with each key."""
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

    def give_back() -> None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)

    with interrupts.tidied_by(give_back):
        try:
            tty.setcbreak(terminal, termios.TCSANOW)
            loop.add_reader(terminal, read)
            yield
        finally:
            loop.remove_reader(terminal)
            give_back()


def _terminal() -> int | None:
    """The number of standard input, if it is a terminal that is ours to read from."""
    try:
        number = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    if not os.isatty(number):
        return None
    try:
        return number if os.tcgetpgrp(number) == os.getpgrp() else None
    except OSError:
        return number  # no terminal that hands itself from one program to the next
