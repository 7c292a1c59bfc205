"""The layout of `--help`.

typer shows Python's types (`QUEUE <str>`), ranges as `x>=1`, and cuts descriptions that do not fit in a list. Here
types are left out where the name is clear, ranges are written as "at least 1", and long lines wrap.
"""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

_CHOICES = re.compile(r"<([^<>|]+(?:\|[^<>|]+)+)>")
_BESIDE = re.compile(r"  \[(.*)\]$", re.DOTALL)
_LEAST, _MOST, _BETWEEN = re.compile(r"x>=(\S+)"), re.compile(r"x<=(\S+)"), re.compile(r"(\S+)<=x<=(\S+)")


class _Plain:
    """The layout that commands and groups share."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]  # of the class beside this one
        parameters: list[Any] = self.get_params(ctx)  # type: ignore[attr-defined]  # of the class beside this one
        several = {parameter.metavar for parameter in parameters if parameter.nargs == -1}
        names = (re.sub(r"^\{(.*)\}", r"\1", piece) for piece in pieces)
        return [f"{name}..." if name.strip("[]") in several else name for name in names]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameters: list[Any] = self.get_params(ctx)  # type: ignore[attr-defined]  # of the class beside this one
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            records = [
                plain(record, is_argument=kind == "argument")
                for parameter in parameters
                if parameter.param_type_name == kind and (record := parameter.get_help_record(ctx)) is not None
            ]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Command(_Plain, TyperCommand):
    pass


class Group(_Plain, TyperGroup):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        self.write_commands(formatter, "Commands", list(self.commands))

    def write_commands(self, formatter: Any, title: str, names: list[str]) -> None:
        """List these commands, each with its whole first sentence."""
        width = max(map(len, self.commands))
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), first_sentence(self.commands[name])) for name in names])


def first_sentence(command: Any) -> str:
    sentence: str = command.get_short_help_str(limit=1_000)
    return sentence


def plain(record: tuple[str, str], *, is_argument: bool) -> tuple[str, str]:
    """A parameter's name and help, without typer's notation."""
    name, help = record
    name = name.partition(" <")[0] if is_argument else _CHOICES.sub(r"\1", name)
    return name, _BESIDE.sub(lambda found: f"  [{_beside(found[1])}]", help)


def _beside(text: str) -> str:
    """The text in brackets after an option's help."""
    parts = (re.sub(r"^default: \((.*)\)$", r"default: \1", part) for part in text.split("; "))
    return "; ".join(map(_range, parts))


def _range(text: str) -> str:
    return _MOST.sub(r"at most \1", _LEAST.sub(r"at least \1", _BETWEEN.sub(r"\1 to \2", text)))


def plain_error(text: str) -> str:
    """typer's message on a wrong command line, without its notation."""
    return re.sub(r"is not in the range (.*)\.$", lambda found: f"is out of range: {_range(found[1])}.", text)
