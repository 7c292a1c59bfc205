"""With `--log-format json` whatever the server writes, to either stream, is a line of JSON: also what Python writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.http.caller import Caller
from tests.server_process import ServerProcess
from tests.waiting import eventually

pytestmark = pytest.mark.slow

STRAYING = Path(__file__).parent / "straying.py"


def json_lines(lines: list[str]) -> list[dict[str, Any]]:
    """Each line as an object; fails at the first that is none."""
    return [json.loads(line) for line in lines]


class Straying(ServerProcess):
    module = "tests.server.straying"


def by_message(lines: list[str], words: str) -> dict[str, Any]:
    found = [line for line in json_lines(lines) if words in line["message"]]
    assert found, f"no line says {words!r} among {lines}"
    return found[0]


def test_what_python_writes_is_json_and_so_is_where_it_listens() -> None:
    with Straying(None, "--log-format", "json") as server:
        assert by_message(server.lines, "http listening on")["url"] == server.url
        assert by_message(server.lines, "amqp listening on")["protocol"] == "amqp"
        words = [
            "a warning",
            "division by zero",
            "in a destructor",
            "in a task",
            "never awaited",
            "list index",
            "%d of",
        ]
        for each in words:
            eventually(lambda each=each: each in "\n".join(server.lines), show=lambda: server.lines)  # type: ignore[misc]
        assert server.stop() == 0
    lines = server.lines
    json_lines(lines)
    warned = by_message(lines, "a warning\nof two lines")
    assert (warned["level"], warned["logger"], warned["category"]) == ("warning", "py.warnings", "UserWarning")
    ended = by_message(lines, "a thread was ended by an error: division by zero")
    assert (ended["level"], ended["thread"]) == ("error", "divider")
    assert "ZeroDivisionError" in ended["trace"]
    assert "LookupError: in a destructor" in by_message(lines, "in a destructor")["trace"]
    assert by_message(lines, "Task exception was never retrieved")["logger"] == "asyncio"
    assert "broken" in by_message(lines, "%d of them")


def test_an_error_that_ends_the_server_is_json() -> None:
    done = subprocess.run(
        [
            sys.executable,
            STRAYING,
            "--raise",
            "serve",
            "--memory",
            "--http-port=0",
            "--amqp-port=0",
            "--log-format=json",
        ],
        env={**os.environ, "SMISTA_LOG_FORMAT": "json"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    last = json_lines(done.stdout.splitlines())[-1]
    assert (last["level"], "LookupError: serving" in last["trace"]) == ("critical", True)


@pytest.mark.slow
def test_what_the_process_that_reads_the_log_writes_is_json_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with ServerProcess(tmp_path / "data", "--log-format", "json", variables={"PYTHONFAULTHANDLER": "1"}) as server:
        with Caller(server.address) as http:
            assert http.send("GET", "/v1/log").status == 200
        pid = by_message(server.lines, "reading the log in bulk")["pid"]
        os.kill(pid, signal.SIGABRT)  # what Python then writes it writes without our help
        eventually(lambda: "Fatal Python error: Aborted" in "\n".join(server.lines), show=lambda: server.lines)
        assert server.stop() == 0
    said = by_message(server.lines, "the process that reads the log in bulk wrote something")
    assert (said["pid"], said["level"]) == (pid, "error")
    json_lines(server.lines)
