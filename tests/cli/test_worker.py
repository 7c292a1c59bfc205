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


def test_it_runs_the_consumers_and_stops_when_told(smista: Smista, url: str, queue: str, program: Path) -> None:
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
