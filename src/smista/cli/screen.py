"""The whole terminal to draw on; its previous contents are restored at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from smista.cli import interrupts

if TYPE_CHECKING:
    from rich.console import RenderableType

ENTER = "\x1b[?1049h\x1b[?25l"
"""Switches to the alternate screen, without a cursor."""
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    def __init__(self) -> None:
        self._terminal = sys.stdout.fileno()
        self._is_ours = False
        self._restoring = interrupts.restored_by(self._restore)

    def __enter__(self) -> Self:
        self._restoring.__enter__()
        self._is_ours = True
        self._write(ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()
        self._restoring.__exit__(kind, error, traceback)

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns

    @property
    def height(self) -> int:
        return shutil.get_terminal_size().lines

    def draw(self, content: RenderableType) -> None:
        """Show this content; what does not fit is left out."""
        from rich.console import Console

        width, height = shutil.get_terminal_size()
        console = Console(width=width, height=height)
        with console.capture() as captured:
            console.print(content, end="")
        lines = captured.get().splitlines()[:height]
        if self._is_ours:
            self._write(HOME + f"{REST_OF_LINE}\n".join(lines) + REST_OF_LINE + REST_OF_SCREEN)

    def _restore(self) -> None:
        if self._is_ours:
            self._is_ours = False
            with contextlib.suppress(OSError):
                self._write(LEAVE)

    def _write(self, text: str) -> None:
        # Unbuffered, since a signal may come in the middle of writing to a buffer.
        rest = text.encode(errors="replace")
        while rest:
            rest = rest[os.write(self._terminal, rest) :]
