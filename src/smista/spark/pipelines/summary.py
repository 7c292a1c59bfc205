"""What a pipeline prints when it has ended: a table for people, one JSON object for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from smista.text import safe, shortened, shown

GAP = "  "
CELL_MAX = 60


@dataclass(slots=True)
class Summary:
    facts: dict[str, object]
    """In the order they are printed."""
    rows: Sequence[Mapping[str, Any]] = ()
    """What was found, where that is a short list: groups, faults."""
    is_good: bool = True
    """False where the pipeline did its work and what it found is a reason for alarm: the exit code is 1 then."""
    notes: list[str] = field(default_factory=list)
    """Sentences for people."""

    def text(self) -> str:
        blocks = ["\n".join(_aligned([[name.replace("_", " "), _shown(fact)] for name, fact in self.facts.items()]))]
        if self.rows:
            heading = list(self.rows[0])
            cells = [[name.replace("_", " ") for name in heading]]
            cells += [[_shown(row[name]) for name in heading] for row in self.rows]
            blocks.append("\n".join(_aligned(cells)))
        return "\n\n".join([*blocks, *self.notes])

    def json(self) -> str:
        content = {**self.facts, **({"found": list(self.rows)} if self.rows else {}), "is_good": self.is_good}
        return json.dumps(content, default=_plain, ensure_ascii=False)


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else shown(value)
    return shortened(safe(text), CELL_MAX)


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime | date) else str(value)
