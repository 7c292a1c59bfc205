"""The output of commands: sentences and tables for people, JSON for programs.

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
from smista.cli.table import Column, Row, print_table
from smista.command_line import ExitCode
from smista.text import safe

T = TypeVar("T")


class Output:
    __slots__ = ("is_json",)

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def say(self, sentence: str, **fields: object) -> None:
        """Print the result: a sentence, or with `--json` an object with these fields."""
        if self.is_json:
            self.line(fields)
        else:
            print(safe(sentence))

    def line(self, fields: object) -> None:
        """Print a JSON object on a line of its own."""
        import msgspec

        self.raw(msgspec.json.encode(fields))

    def raw(self, line: bytes) -> None:
        """Print bytes as they are, and a line break."""
        sys.stdout.flush()
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    def items(
        self, found: Iterable[T], columns: Sequence[Column], row: Callable[[T], Row], fields: Callable[[T], Any]
    ) -> int:
        """Print a table with a `row` for each item, or an object with its `fields` for each; returns how many."""
        things = list(found)
        if self.is_json:
            for thing in things:
                self.line(fields(thing))
        elif things:
            print_table(columns, map(row, things))
        return len(things)

    def pairs(self, pairs: Iterable[tuple[str, object]], fields: object) -> None:
        """Print the properties of one thing, one per line, or one object."""
        if self.is_json:
            self.line(fields)
        else:
            print_table([Column("name"), Column("value", is_flexible=True)], pairs)

    def remark(self, sentence: str) -> None:
        """Print a remark on standard error, for people only."""
        if not self.is_json:
            note(sentence)

    def nothing(self, sentence: str) -> typer.Exit:
        """To be raised when nothing was found: prints a remark, and ends the command with exit code 4."""
        self.remark(sentence)
        return typer.Exit(ExitCode.NOTHING)


def note(sentence: str) -> None:
    """Print a line on standard error."""
    print(safe(sentence), file=sys.stderr)


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask for confirmation at a terminal; elsewhere go on without asking. The answer no ends the command."""
    if is_sure or not sys.stdin.isatty() or not sys.stderr.isatty():
        return
    with interrupts.interruptible():
        is_wanted = typer.confirm(safe(question), err=True)
    if not is_wanted:
        note("Nothing was changed.")
        raise typer.Exit(ExitCode.INTERRUPTED)


def forget_broken_pipe() -> None:
    """The reader of our output is gone (`| head`): keep the interpreter from reporting an error when it flushes."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
