"""docs/bulk.md says what a reader of the log can ask for and gets: all of it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from smista.bulk import columns
from smista.bulk.reader import READERS_MAX
from smista.protocols.http.log_paths import PATHS, Plan, PlanRead, ReadLog, ShardRange, ShowRange

PAGE = (Path(__file__).parents[2] / "docs/bulk.md").read_text()


def section(heading: str) -> str:
    found = re.search(rf"^### {heading}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def first_cells(text: str) -> list[str]:
    """The names in the first cell of each row."""
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def fields(kind: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def test_every_column_stands_there_with_its_type() -> None:
    listed = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section("Columns"), re.MULTILINE)
    schema = columns.schema(list(columns.COLUMNS))
    types = {
        field.name: str(field.type).replace("tz=", "") + ("" if field.nullable else ", never null") for field in schema
    }
    assert {name: kind.strip() for name, kind in listed} == types
    assert [name for name, _ in listed] == schema.names


def test_every_kind_stands_there() -> None:
    assert first_cells(section("Kinds")) == list(columns.KINDS)


def test_every_field_of_a_query_stands_there() -> None:
    asked = section("Parameters")
    rows, planned = asked.split("| `/v1/log/plan` takes")
    assert sorted(first_cells(rows)) == sorted(fields(ReadLog))
    assert sorted(first_cells(planned)) == sorted(fields(PlanRead))
    assert all(f"`{name}`" in section("Log positions") for name in fields(ShowRange))


def test_every_field_of_an_answer_stands_there() -> None:
    assert first_cells(section("Log positions")) == fields(ShardRange)
    assert all(f"`{name}`" in section("Parameters") for name in fields(Plan))


@pytest.mark.parametrize("path", PATHS)
def test_every_path_stands_there(path: str) -> None:
    assert f"| `GET {path}` |" in PAGE


def test_the_limit_stands_there() -> None:
    assert f"Up to {READERS_MAX} may read at once" in PAGE
