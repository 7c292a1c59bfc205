"""What a command loads: what it needs, since every call of it waits for that."""

import subprocess
import sys

import pytest

from tests.cli.conftest import plain_environment

RUN = """
import sys
from smista.cli.app import run
code = run(sys.argv[1:])
print(code, *sys.modules, file=sys.stderr)
"""
HEAVY = {
    "apsw",
    "httptools",
    "pyspark",
    "smista.engine",
    "smista.log",
    "smista.protocols",
    "smista.server",
    "smista.spark",
    "uvloop",
}


def loaded(*arguments: str, url: str = "") -> set[str]:
    """The modules that a command has loaded by its end, which was a good one."""
    environment = {**plain_environment(), "SMISTA_URL": url}
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], env=environment, capture_output=True, text=True)
    code, *modules = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    return set(modules)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["queues", "--help"], ["put", "--help"]])
def test_help_loads_no_client_either(arguments: list[str]) -> None:
    assert not loaded(*arguments) & {*HEAVY, "smista.client", "smista.core", "websockets"}


def test_commands_to_a_broker_load_the_client_and_nothing_of_the_broker(url: str, queue: str) -> None:
    for arguments in (["queues"], ["put", queue, "hello"], ["peek", queue], ["get", queue, "--ack"]):
        modules = loaded(*arguments, url=url)
        assert "smista.client" in modules
        assert not modules & HEAVY
        assert {name for name in modules if name.startswith("smista.core.")} == {
            "smista.core.counters",
            "smista.core.message",
            "smista.core.settings",
        }


def test_pipelines_are_loaded_by_their_own_commands_alone() -> None:
    modules = loaded("pipeline", "--help")
    assert "smista.spark.pipelines.triage" in modules
    assert "pyspark" not in modules
