"""Somebody who reads the log in bulk, over a real socket."""

from __future__ import annotations

import http.client
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from tests.protocols.http.caller import Caller
from tests.served import Served
from tests.waiting import PATIENCE_S, eventually

Row = dict[str, Any]


def open_log(address: tuple[str, int], **query: object) -> http.client.HTTPResponse:
    """Ask for rows, and read no more than the head of the answer."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    connection.request("GET", "/v1/log?" + urlencode(_named(query), doseq=True), headers={"connection": "close"})
    return connection.getresponse()


def read_table(address: tuple[str, int], **query: object) -> pa.Table:
    with open_log(address, **query) as answer:
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
        return pa.ipc.open_stream(answer).read_all()


def read_rows(address: tuple[str, int], **query: object) -> list[Row]:
    """The rows, each without what is null."""
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in read_table(address, **query).to_pylist()
    ]


def log_range(http: Caller, **query: object) -> dict[str, Any]:
    """That of the only shard there is."""
    answer = http.rest("GET", "log", "range", **query)
    assert answer.status == 200, answer.body
    [value] = answer.value["shards"]
    assert isinstance(value, dict)
    return value


def plan(http: Caller, **query: object) -> dict[str, Any]:
    answer = http.rest("GET", "log", "plan", **_named(query))
    assert answer.status == 200, answer.body
    value: dict[str, Any] = answer.value
    return value


def _named(query: dict[str, object]) -> dict[str, object]:
    """`start` and `end` are `from` and `to`, which Python does not take as names; none is left out."""
    names = {"start": "from", "end": "to"}
    return {names.get(name, name): value for name, value in query.items() if value is not None}


def reader_pid(server: Served) -> int:
    """The process that reads the log for others."""
    pids = re.findall(r"reading the log in bulk.* pid=(\d+)", "\n".join(server.lines))
    return int(pids[-1])


def without_pyarrow(directory: Path) -> dict[str, str]:
    """Variables for a server whose Python seems not to have pyarrow."""
    (directory / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'pyarrow' else find(name, *more)\n"
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))}


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is merely not reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_for_end(pid: int) -> None:
    eventually(lambda: not is_alive(pid))
