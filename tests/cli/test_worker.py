"""`worker`: a program's consumers, run from the command line."""

from pathlib import Path

import pytest

from tests.cli.conftest import Smista, process
from tests.waiting import PATIENCE_S, eventually

PROGRAM = """
from smista import Worker

app = Worker("http://127.0.0.1:1")
print("to be {word}", flush=True)

@app.consumer({queue!r})
def handle(order: str) -> None:
    print("{word}", order, flush=True)
"""


@pytest.fixture
def program(queue: str, tmp_path: Path) -> Path:
    path = tmp_path / "kitchen.py"
    path.write_text(PROGRAM.format(queue=queue, word="cooked"))
    return path


def test_it_runs_the_consumers_and_stops_when_asked(smista: Smista, url: str, queue: str, program: Path) -> None:
    smista("put", queue, "pizza")
    with process("worker", "kitchen:app", "--url", url, directory=program.parent) as working:
        assert working.stdout is not None
        assert working.stdout.readline() == "to be cooked\n"
        assert working.stdout.readline() == "cooked pizza\n"
        eventually(lambda: smista("stats", queue, "--json").json["depth"] == 0)
        working.terminate()
        assert working.wait(PATIENCE_S) == 0


def test_it_starts_anew_when_the_program_changes(smista: Smista, url: str, queue: str, program: Path) -> None:
    smista("put", queue, "pizza")
    with process("worker", "kitchen", "--reload", directory=program.parent, SMISTA_URL=url) as working:
        assert working.stdout is not None
        assert working.stdout.readline() == "to be cooked\n"
        assert working.stdout.readline() == "cooked pizza\n"
        program.write_text(PROGRAM.format(queue=queue, word="baked"))
        assert working.stdout.readline() == "to be baked\n"
        smista("put", queue, "bread")
        assert working.stdout.readline() == "baked bread\n"


def test_a_namespace_is_not_for_the_command_line(offline: Smista) -> None:
    assert offline("--namespace", "x", "worker", "kitchen:app").code == 2


@pytest.mark.parametrize("name", ["nowhere:app", "kitchen:nothing", "kitchen:handle", ":"])
def test_a_name_that_leads_to_no_worker_is_wrong_usage(offline: Smista, program: Path, name: str) -> None:
    done = offline("worker", name, directory=program.parent)
    assert (done.code, "[worker_not_found]" in done.err) == (2, True)


BROKEN = {
    "no syntax": ("def handle(:\n", "SyntaxError"),
    "not there": ("import not_there_at_all\n", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    "a fault": ("def helper():\n    return 1 / 0\n\nhelper()\n", "ZeroDivisionError"),
    "no address": ("from smista import Worker\napp = Worker('htp://x')\n", "InvalidArgument"),
    "no queue": (
        "from smista import Worker\napp = Worker()\n@app.consumer\ndef handle(order): ...\n",
        "over handle does not name its queue",
    ),
}


@pytest.mark.parametrize(("program", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_a_module_that_cannot_be_loaded_is_wrong_usage_and_shown_where(
    url: str, tmp_path: Path, program: str, expected: str
) -> None:
    (tmp_path / "broken.py").write_text(program)
    with process("worker", "broken:app", "--url", url, directory=tmp_path) as working:
        assert working.wait(PATIENCE_S) == 2
    shown = (tmp_path / "stderr.txt").read_text()
    assert expected in shown
    assert "broken.py" in shown
    assert "Error: The module of broken:app cannot be loaded" in shown
    assert not any(word in shown for word in ("typer", "importlib", "cli/worker.py"))


def test_a_worker_without_consumers_is_wrong_usage(offline: Smista, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("from smista import Worker\napp = Worker()\n")
    done = offline("worker", "idle:app", directory=tmp_path)
    assert (done.code, "idle:app has no consumers" in done.err) == (2, True)


@pytest.mark.parametrize("variables", [{}, {"SMISTA_URL": "htp://x"}], ids=["option", "variable"])
def test_an_address_that_is_none_is_wrong_usage(offline: Smista, program: Path, variables: dict[str, str]) -> None:
    option = [] if variables else ["--url", "htp://x"]
    done = offline("worker", "kitchen:app", *option, directory=program.parent, environment=variables)
    assert (done.code, "'htp://x' is not the address of a broker" in done.err) == (2, True)
