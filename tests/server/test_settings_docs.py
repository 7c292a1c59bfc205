"""docs/settings.md and deploy/smista.toml list every setting, truthfully."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from smista.server.errors import InvalidConfiguration
from smista.server.http import refusals
from smista.server.http.refusals import Refusal
from smista.server.settings import NOT_SETTINGS, RANGES, ServerSettings, flag, load, takes, variable
from tests.server_process import ServerProcess

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/settings.md").read_text()
EXAMPLE = ROOT / "deploy/smista.toml"
DEFAULTS = msgspec.structs.asdict(ServerSettings())


def rows() -> dict[str, list[str]]:
    """The rows of the tables of settings, by the setting."""
    found: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 6 and (name := re.fullmatch(r"`(\w+)`", cells[0])):
            assert name[1] not in found, "twice"
            found[name[1]] = cells
    return found


def shown(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def test_the_page_has_every_setting() -> None:
    assert sorted(rows()) == sorted(DEFAULTS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_page_gives_the_setting_as_it_is(name: str) -> None:
    row = rows()[name]
    assert row[1] == f"`{flag(name)}`"
    assert row[2] == f"`{variable(name)}`"
    assert row[3] == f"`{shown(DEFAULTS[name])}`"
    assert row[4] == takes(name).removeprefix("a number from ").removeprefix("a whole number from ")
    assert row[5]


def test_every_setting_that_is_a_number_has_a_range() -> None:
    numbers = {name for name, value in DEFAULTS.items() if isinstance(value, int | float) and value is not False}
    assert set(RANGES) == numbers | {"memory_bytes_max", "sqs_requests_per_second"}


def test_the_page_has_every_refusal() -> None:
    content = vars(refusals).values()
    known = [found for found in content if isinstance(found, Refusal)]
    makers = [found for found in content if inspect.isfunction(found)]
    known += [make(1) for make in makers]
    assert len(known) == 16
    table = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert {(int(status), code) for status, code in table} == {(found.status, found.code) for found in known}


def test_the_page_shows_the_message_for_a_misspelt_variable() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load({}, {"SMISTA_HTP_PORT": "8080"}, None)
    assert str(caught.value) in PAGE


def test_the_example_loads_and_changes_nothing() -> None:
    assert load({}, {}, EXAMPLE) == ServerSettings()


def test_the_example_has_every_setting_with_its_default(tmp_path: Path) -> None:
    settings = re.findall(r"^#(\w+) = (.+)$", EXAMPLE.read_text(), re.MULTILINE)
    assert sorted(name for name, _ in settings) == sorted(DEFAULTS)
    everything = tmp_path / "smista.toml"
    everything.write_text("".join(f"{name} = {value}\n" for name, value in settings))
    assert load({}, {}, everything) == ServerSettings()


def test_the_page_has_every_variable_that_is_no_setting() -> None:
    assert [name for name in NOT_SETTINGS if f"| `{name}`" not in PAGE] == []
    environ = {"SMISTA_URL": "http://127.0.0.1:1", "SMISTA_PORT": "tcp://10.0.0.1:5672", "SMISTA_SERVICE_HOST": "x"}
    assert load({}, environ, None) == ServerSettings()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_page_shows_a_line_of_the_log_as_it_is_printed(form: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--log-format", form) as server:
        [line] = [line for line in server.lines if "recovered" in line]
    [shown] = [
        text
        for text in re.findall(r"^    (.*\brecovered\b.*)$", PAGE, re.MULTILINE)
        if text.startswith("{") == (form == "json")
    ]
    assert without_values(shown) == without_values(line)


def without_values(line: str) -> str:
    """A line of the log with what differs from start to start, times, numbers and the directory, made equal."""
    return re.sub(r"\d+", "0", re.sub(r'(data=|"data":")[^ "]+', r"\1...", line))
