"""What a command prints: sentences and tables for people, JSON for machines.

With `--json`, a command that lists things prints one object per line, every other command one object. Both go to
standard output; progress, questions and errors go to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import typer

from smista.cli import interrupts
from smista.cli.exits import ExitCode
from smista.cli.table import Column, Row, print_table
from smista.cli.text import safe

T = TypeVar("T")


class Output:
    __slots__ = ("is_json",)

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def say(self, sentence: str, **fields: object) -> None:
        """What was done: as a sentence, or as an object with these fields."""
        if self.is_json:
            self.line(fields)
        else:
            print(safe(sentence))

    def line(self, fields: object) -> None:
        """One JSON object on a line of its own."""
        import msgspec

        self.raw(msgspec.json.encode(fields))

    def raw(self, line: bytes) -> None:
        """Bytes as they are, and a line break."""
        sys.stdout.flush()
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    def items(
        self, found: Iterable[T], columns: Sequence[Column], row: Callable[[T], Row], fields: Callable[[T], Any]
    ) -> int:
        """A table with a `row` for each, or an object with its `fields` for each; returns how many there were."""
        things = list(found)
        if self.is_json:
            for thing in things:
                self.line(fields(thing))
        elif things:
            print_table(columns, map(row, things))
        return len(things)

    def pairs(self, pairs: Iterable[tuple[str, object]], fields: object) -> None:
        """One thing's properties under each other, or one object."""
        if self.is_json:
            self.line(fields)
        else:
            print_table([Column("name"), Column("value", is_flexible=True)], pairs)

    def remark(self, sentence: str) -> None:
        """Something for people only; not part of what was asked for."""
        if not self.is_json:
            note(sentence)

    def nothing(self, sentence: str) -> typer.Exit:
        """To be raised where there is nothing to show: says so to people, and ends the command with 4."""
        self.remark(sentence)
        return typer.Exit(ExitCode.NOTHING)


def note(sentence: str) -> None:
    """A line on standard error."""
    print(safe(sentence), file=sys.stderr)


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask whoever sits at a terminal; go on without asking where nobody does. A no ends the command."""
    if is_sure or not sys.stdin.isatty() or not sys.stderr.isatty():
        return
    with interrupts.heard_at_once():
        is_wanted = typer.confirm(safe(question), err=True)
    if not is_wanted:
        note("Nothing was changed.")
        raise typer.Exit(ExitCode.INTERRUPTED)


def forget_broken_pipe() -> None:
    """Whoever read our output has gone (`| head`): keep the interpreter from complaining when it flushes at its end."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
