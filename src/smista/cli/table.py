"""Tables: drawn with rich on a terminal, plain aligned columns elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from smista.text import safe, shortened, shown

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
FLEXIBLE_MIN = 10
WHOLE_MAX = 24
"""How much of the first cell is kept at least, before the last columns are left out: it names the row."""


class Column(NamedTuple):
    heading: str
    is_number: bool = False
    """Aligned to the right."""
    is_flexible: bool = False
    """Shortened on a narrow terminal; the others are shown whole."""


Row = Sequence[object]


def print_table(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        room = shutil.get_terminal_size().columns
        lines = _fitted(columns, _lines(columns, rows), room)
        # On a terminal that is still too narrow lines wrap; nothing is left out.
        Console(width=max(room, _total(_widths(lines)))).print(_drawn(columns, lines))
        return
    for line in aligned(columns, rows):
        print(line)


def drawn(columns: Sequence[Column], rows: Iterable[Row], room: int) -> Table:
    """A table no wider than `room`: last columns that do not fit are left out."""
    lines = _fitted(columns, _lines(columns, rows), room, WHOLE_MAX)
    widths = _widths(lines)
    shown = len(columns)
    while shown > 1 and _total(widths[:shown]) > room:
        shown -= 1
    return _drawn(columns[:shown], [line[:shown] for line in lines])


def aligned(columns: Sequence[Column], rows: Iterable[Row]) -> list[str]:
    """One line for the headings and one for each row."""
    lines = _lines(columns, rows)
    widths = _widths(lines)
    return [(" " * GAP).join(map(_padded, line, widths, columns)).rstrip() for line in lines]


def _drawn(columns: Sequence[Column], lines: list[list[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.is_number else "left", no_wrap=True)
    for line in lines[1:]:
        # Text, not str, in which rich would interpret markup.
        table.add_row(*map(Text, line))
    return table


def _lines(columns: Sequence[Column], rows: Iterable[Row]) -> list[list[str]]:
    return [[column.heading for column in columns], *([safe(shown(value)) for value in row] for row in rows)]


def _widths(lines: list[list[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*lines, strict=True)]


def _total(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _fitted(
    columns: Sequence[Column], lines: list[list[str]], room: int, first_min: int = FLEXIBLE_MIN
) -> list[list[str]]:
    """The lines with the cells of flexible columns shortened, the last column first, so that they fit if possible."""
    widths = _widths(lines)
    for place, column in reversed(list(enumerate(columns))):
        excess = _total(widths) - room
        if column.is_flexible and excess > 0:
            least = FLEXIBLE_MIN if place else first_min
            widths[place] = max(min(least, widths[place]), widths[place] - excess)
    return [list(map(shortened, line, widths)) for line in lines]


def _padded(cell: str, width: int, column: Column) -> str:
    return cell.rjust(width) if column.is_number else cell.ljust(width)
