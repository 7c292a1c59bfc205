"""The documentation keeps up with the code: whatever can be set, called or raised is named, and what it shows runs."""

import enum
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import smista
import smista.errors
from smista import client
from smista.core.counters import QueueStats
from smista.core.message import FOREVER_MS, Reason, State
from smista.core.retry import backoff_ms
from smista.core.settings import SETTING_RANGES, Backoff, QueueSettings
from smista.engine import Broker, BrokerSettings
from smista.errors import BrokerError
from smista.protocols.http.commands.queues import StatsAnswer
from tests.cli.test_ways import PAGES as WAYS
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def rows(text: str) -> dict[str, list[str]]:
    """The rows of all tables in `text` whose first cell is one name in backticks, by that name."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and (name := re.fullmatch(r"`(\w+)`", cells[0])):
            found[name[1]] = cells
    return found


def shown(value: object) -> str:
    """A setting's value as the tables show it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value.value if isinstance(value, enum.StrEnum) else str(value)


def shown_limit(value: float) -> str:
    for exponent in (31, 52, 62):
        if value == 1 << exponent:
            return f"2^{exponent}"
    return "1e9" if value == 1e9 else str(value)


def every_error() -> Iterator[type[BrokerError]]:
    for module in pkgutil.walk_packages(smista.__path__, "smista."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    pending: list[type[BrokerError]] = [BrokerError]
    while pending:
        error = pending.pop()
        yield error
        pending += error.__subclasses__()


def run(program: str, directory: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_of_queue_settings_has_every_field_with_its_default() -> None:
    table = rows(page("queues.md").split("## Declare")[0])
    default = QueueSettings()
    assert {name: cells[2] for name, cells in table.items()} == {
        name: f"`{shown(getattr(default, name))}`" for name in QueueSettings.__struct_fields__
    }


def test_the_table_of_queue_settings_has_the_ranges_the_code_checks() -> None:
    assert FOREVER_MS == 1 << 52
    table = rows(page("queues.md").split("## Declare")[0])
    assert {name: table[name][3] for name in SETTING_RANGES} == {
        name: f"{shown_limit(least)} to {shown_limit(most)}" for name, (least, most) in SETTING_RANGES.items()
    }


def test_the_table_of_broker_settings_has_every_field_with_its_default() -> None:
    table = rows(page("engine.md").split("## Settings")[1])
    default = BrokerSettings()
    assert {name: cells[2] for name, cells in table.items()} == {
        name: f"`{shown(getattr(default, name))}`" for name in BrokerSettings.__struct_fields__
    }


def test_the_table_of_back_offs_is_what_the_code_computes() -> None:
    lines = page("leases-and-retries.md").splitlines()
    [waits] = [line for line in lines if line.startswith("| exponential, s |")]
    settings = QueueSettings(retry_backoff=Backoff.EXPONENTIAL)
    computed = [backoff_ms(settings, failure, 0.0) // 1000 for failure in range(1, 11)]
    assert [int(cell) for cell in re.findall(r"\d+", waits)] == computed


def test_every_error_is_explained_with_its_code() -> None:
    described = rows(page("errors.md"))
    found = {name: cells[1] for name, cells in described.items()}
    assert found == {error.__name__: f"`{error.code}`" for error in every_error() if error is not BrokerError}


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in every_error()]
    assert len(codes) == len(set(codes))


def test_every_error_can_be_imported_from_smista() -> None:
    errors = {error.__name__: error for error in every_error()}
    assert {name: getattr(smista, name) for name in dir(smista) if name in errors} == errors
    stub = (ROOT / "src/smista/__init__.pyi").read_text()
    typed = {f"{module}.{name}" for module, name in re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)}
    imported = {f"{error.__module__}.{name}" for name, error in errors.items()}
    assert typed >= imported
    assert {name.rpartition(".")[2] for name in typed} == set(dir(smista)) - {"__version__"}


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in (smista.errors.__doc__ or "").splitlines():
        if found := re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?:  |$)", line):
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1] if depth else ""
    bases = {error.__name__: error.__base__ for error in every_error()}
    assert drawn == {name: base.__name__ if base and name != "BrokerError" else "" for name, base in bases.items()}


@pytest.mark.parametrize("state", State)
def test_every_state_is_explained(state: State) -> None:
    assert f"| `{state.name}` |" in page("messages.md")


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_explained(reason: Reason) -> None:
    table = [line for line in page("dead-letters.md").splitlines() if line.startswith("| `")]
    assert any(f"`{reason.name}`" in line for line in table)


def test_every_call_of_the_broker_is_listed() -> None:
    text = page("engine.md").split("## Calls")[1]
    calls = [name for name, _ in inspect.getmembers(Broker) if not name.startswith("_")]
    assert [name for name in calls if not re.search(rf"`{name}\b", text)] == []


def test_every_page_is_linked_from_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", page("index.md")))
    assert linked >= {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    decisions = ROOT / "docs/decisions"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (decisions / "000-index.md").read_text()))
    assert linked == {path.name for path in decisions.glob("*.md")} - {"000-index.md"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", path.read_text())
    relative = [link for link in links if "://" not in link]
    assert [link for link in relative if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_heading_finds_it(path: Path) -> None:
    missing = []
    for target, anchor in re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", path.read_text()):
        page = path.parent / target if target else path
        if "://" not in target and anchor not in anchors(page.read_text()):
            missing.append(f"{target}#{anchor}")
    assert missing == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    without_programs = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_programs, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


TERMS = (
    "queue", "message", "body", "headers", "ready", "scheduled", "in flight", "dead", "delivery", "delivery count",
    "lease", "extend", "receipt", "publish", "receive", "acknowledge", "nack", "release", "dead letter", "redrive",
    "expire", "purge", "exchange", "binding", "route", "consumer", "credit", "prefetch", "group", "deduplication id",
    "log", "block", "log position", "record", "protocol", "listener", "session", "principal", "shard", "owner", "node",
    "message id", "queue position", "claim", "staged batch",
)  # fmt: skip


def test_the_glossary_explains_every_term() -> None:
    cells = re.findall(r"^\| (.*?) \| .* \| .* \| .* \|$", page("glossary.md"), re.MULTILINE)
    explained = {term for cell in cells for term in re.sub(r"\[|\]\(.*?\)", "", cell).split(", ")}
    assert [term for term in TERMS if term not in explained] == []


@pytest.mark.slow
def test_the_program_in_the_readme_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = PROGRAM.findall((ROOT / "README.md").read_text())
    assert program == (ROOT / "examples/first_program.py").read_text()
    with ServerProcess(tmp_path / "data") as server:
        monkeypatch.setenv("SMISTA_URL", server.url)
        assert run(program, tmp_path) == "{'dish': 'pizza', 'count': 2} - delivery 1\n"
    assert (tmp_path / "data/log.db").exists()


def test_the_program_on_the_engine_runs(tmp_path: Path) -> None:
    [program] = PROGRAM.findall(page("engine.md"))
    assert run(program, tmp_path) == ""


def test_the_states_are_drawn_once_and_alike() -> None:
    def drawn(text: str) -> list[str]:
        blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        return [block for block in blocks if "READY" in block]

    assert drawn((ROOT / "README.md").read_text()) == drawn(page("messages.md")) != []
    [diagram] = drawn(page("messages.md"))
    assert {state.name for state in State} == set(re.findall(r"[A-Z_]{4,}", diagram))


def test_one_vocabulary_of_statistics() -> None:
    """What a queue counts has one name in process, over HTTP, in the client, in the metrics and on the pages."""
    ours = set(QueueStats.__struct_fields__) - {"queue"}
    synaps = {"consumed_total", "acked_total", "avg_wait_time_ms", "oldest_message_age_secs"}
    assert set(StatsAnswer.__struct_fields__) - {"queue"} == ours | synaps
    assert client.QueueStats is QueueStats
    text = page("queues.md").split("## Statistics")[1]
    assert {name for name in ours - {"namespace"} if f"`{name}`" not in text} == set()
    words = page("commands.md").split("## Synap's words")[1]
    assert {name for name in synaps if f"`{name}`" not in words} == set()


IMPORT = re.compile(r"^[ `]*from (smista[\w.]*) import ([\w, ]+)|`from (smista[\w.]*) import ([\w, ]+)`", re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_everything_that_is_imported_on_a_page_is_there(path: Path) -> None:
    for first, names, second, others in IMPORT.findall(path.read_text()):
        module = importlib.import_module(first or second)
        for name in (names or others).split(","):
            assert hasattr(module, name.strip()), (path.name, module.__name__, name)


TRIED_ELSEWHERE = {
    "README.md": "here",
    "engine.md": "here",
    "client.md": "client/test_pages.py",
    "worker.md": "client/test_pages.py",
    **dict.fromkeys(WAYS, "cli/test_ways.py"),
}


def test_every_program_on_a_page_is_run_somewhere() -> None:
    with_programs = {path.name for path in PAGES if PROGRAM.search(path.read_text())}
    assert with_programs == set(TRIED_ELSEWHERE)
