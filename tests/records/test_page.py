"""docs/log-format.md says what stands in the log: every record with its number, its name and its fields."""

from __future__ import annotations

import enum
import importlib
import re
import types
import typing
from pathlib import Path

import msgspec
import pytest

from smista.core.claims import ClaimState
from smista.core.counters import Counters
from smista.core.jobs import JobState, Place, Plan
from smista.core.message import Death, Deliveries, Envelope, Failure, Reason, State
from smista.core.staging import Part
from smista.records import Kind, blocks, frames
from smista.records.bound import BindingFields
from smista.records.claimant import ClaimFields
from smista.records.layout import Field
from smista.records.opened import Anchor
from smista.records.placed import Placed

PAGE = (Path(__file__).parents[2] / "docs/log-format.md").read_text()
PARTS: dict[str, type[msgspec.Struct]] = {
    "anchor": Anchor,
    "binding": BindingFields,
    "counters": Counters,
    "claim": ClaimFields,
    "part": Part,
    "plan": Plan,
    "place": Place,
    "message": Placed,
    "envelope": Envelope,
    "deliveries": Deliveries,
    "failure": Failure,
    "death": Death,
}
BINDINGS = (Kind.BOUND, Kind.UNBOUND)
WORDS: dict[object, str] = {
    int: "int",
    str: "text",
    float: "float",
    bool: "bool",
    bytes: "bytes",
    types.NoneType: "nil",
}
WORDS.update((kind, name) for name, kind in PARTS.items())
ENUMS: dict[type[enum.IntEnum], str] = {
    Reason: "reason",
    State: "state",
    ClaimState: "claim state",
    JobState: "job state",
}


def word(kind: object) -> str:
    """The type of a packed field as the page has it."""
    if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
        return ENUMS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(word(one) for one in arguments)
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return f"list of {word(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(word(one) for one in arguments)}]"
    if origin is dict:
        return "map"
    return WORDS.get(kind, "map")


def packed_fields(structure: type[msgspec.Struct]) -> list[Field]:
    kinds = typing.get_type_hints(structure)
    return [Field(name, word(kinds[name])) for name in structure.__struct_fields__]


def fields_of(kind: Kind) -> list[Field]:
    """The fields of a record, from its module."""
    module = importlib.import_module(f"smista.records.{kind.name.lower()}")
    if hasattr(module, "FIELDS"):
        return list(module.FIELDS)
    name = "".join(part.title() for part in kind.name.split("_"))
    return packed_fields(getattr(module, name))


def section(heading: str) -> str:
    found = re.search(rf"^### {heading}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no {heading}"
    return found[1]


def fields_there(heading: str) -> list[Field]:
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \|", section(heading), re.MULTILINE)
    return [Field(name, kind) for kind, name in rows]


def test_every_kind_stands_there_with_its_number() -> None:
    there = re.findall(r"^### (\d+) ([A-Z_]+)$", PAGE, re.MULTILINE)
    assert [(int(number), name) for number, name in there] == [(kind.value, kind.name) for kind in Kind]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in BINDINGS])
def test_every_field_of_a_record_stands_there(kind: Kind) -> None:
    assert fields_there(f"{kind.value} {kind.name}") == fields_of(kind)


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_a_packed_record_stands_there(name: str) -> None:
    assert fields_there(name) == packed_fields(PARTS[name])


def test_the_heads_of_blocks_and_records_stand_there() -> None:
    for layout in (blocks.HEAD, frames.FRAME):
        for name, width in layout.fields:
            offset, size = layout.offsets[name], int(width[1:]) // 8
            place = str(offset) if size == 1 else f"{offset}-{offset + size - 1}"
            assert f"| {place} | {width} | {name}" in PAGE
    assert f"version, now {blocks.VERSION}" in PAGE


def test_every_reason_stands_there() -> None:
    rows = [line.strip("| ").split(" | ") for line in section("Reasons").splitlines() if line.startswith("|")]
    numbers, _, names = rows
    there = {int(number): name.replace(" ", "_").upper() for number, name in zip(numbers, names, strict=True)}
    assert there == {reason.value: reason.name for reason in Reason}
