"""`/openapi.json` tells the truth: schemathesis holds the server to it. And the page that shows it stands alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smista.protocols.http import log_paths
from smista.protocols.http.claim_rows import ROWS_PATH
from smista.protocols.http.commands import COMMANDS
from smista.protocols.http.errors import STATUS
from smista.protocols.http.openapi import document
from smista.protocols.http.routes import ROUTES
from smista.protocols.http.staged_put import STAGE_PATH
from tests.protocols.http.caller import Caller, tracebacks
from tests.served import Served
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S

IS_LONG = bool(os.environ.get("SMISTA_LONG"))
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    content: dict[str, Any] = msgspec.json.decode(document())
    return content


# -- what it says -----------------------------------------------------------------------------------------------------


def test_it_is_served_as_it_is_made(http: Caller, api: dict[str, Any]) -> None:
    answer = http.send("GET", "/openapi.json")
    assert (answer.status, answer.value) == (200, api)
    assert api["openapi"] == "3.1.0"


def test_it_lists_every_route_and_nothing_else(api: dict[str, Any]) -> None:
    listed = {(method.upper(), path) for path, item in api["paths"].items() for method in item}
    plain = {("GET", path) for path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json")}
    bulk = {("GET", path) for path in log_paths.PATHS} | {("GET", ROWS_PATH), ("PUT", STAGE_PATH)}
    assert listed == {(route.method, route.path) for route in ROUTES} | plain | bulk | {("POST", "/v1/command")}


def test_it_says_of_the_metrics_when_they_are_not_given(api: dict[str, Any]) -> None:
    assert "metrics" in api["paths"]["/metrics"]["get"]["responses"]["429"]["description"]


def test_it_lists_every_command_with_all_its_fields(api: dict[str, Any]) -> None:
    requests = api["paths"]["/v1/command"]["post"]["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
    payloads = {one["properties"]["command"]["const"]: one["properties"]["payload"] for one in requests}
    assert payloads.keys() == COMMANDS.keys()
    for name, payload in payloads.items():
        listed = {field for variant in payload.get("anyOf", [payload]) for field in variant["properties"]}
        kind: Any = COMMANDS[name]
        fields = {field.encode_name for field in msgspec.structs.fields(kind)}
        # `queue.create` has another name for its queue, which is not advertised.
        assert fields - listed == ({"name"} if name == "queue.create" else set())


def test_every_operation_lists_every_status_that_an_error_may_have(api: dict[str, Any]) -> None:
    only_elsewhere = {426}
    for path, item in api["paths"].items():
        if path.startswith("/v1/"):
            for operation in item.values():
                listed = {int(status) for status in operation["responses"]}
                assert listed >= set(STATUS.values()) - only_elsewhere | {408, 431}


def test_every_operation_has_a_name_and_a_summary_of_its_own(api: dict[str, Any]) -> None:
    operations = [operation for path in api["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations if "operationId" in operation]
    assert len(ids) == len(set(ids))
    assert all(operation["summary"] for operation in operations)


def test_every_reference_leads_somewhere(api: dict[str, Any]) -> None:
    named = set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', document().decode()))
    assert named <= api["components"]["schemas"].keys()


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_in_itself(http: Caller) -> None:
    answer = http.send("GET", "/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    page = answer.body.decode()
    assert re.findall(r"https?:|//\w+\.|@import|url\(|<link|<iframe|<img", page) == []
    sources = re.findall(r'(?:src|href|fetch\()\s*[=(]?\s*"([^"]+)"', page)
    assert set(sources) <= {"/openapi.json", "/metrics"}
    assert not re.search(r"<script[^>]+src", page)


# -- schemathesis -----------------------------------------------------------------------------------------------------


def fuzz(server: Served, folder: Path, *options: str, in_msgpack: bool) -> int:
    """Run schemathesis as anybody would, with all its checks but one (see the hooks for which and why); how many
    requests it made. What it keeps goes into the folder."""
    # Always the same requests, so that it fails for whoever broke something; other ones each time in the long form.
    seed = () if IS_LONG else ("--seed", "1")
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"),
        *(f"{server.url}/openapi.json", *options, *seed),
        *("--exclude-checks", "positive_data_acceptance", "--no-color"),
        *("--request-timeout", str(PATIENCE_S), "--suppress-health-check", "too_slow"),
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)}
    if in_msgpack:
        environment["SMISTA_TEST_MSGPACK"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert tracebacks(server) == ""
    [count] = re.findall(r"(\d+) generated, \1 passed", done.stdout)
    return int(count)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_schemathesis_finds_nothing_wrong_with_rest(fresh: Served, tmp_path: Path) -> None:
    examples = "50" if IS_LONG else "3"
    options = ("--exclude-path", "/v1/command", "--phases", "coverage,fuzzing", "--max-examples", examples)
    assert fuzz(fresh, tmp_path, *options, in_msgpack=IS_LONG) > 3_000


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_schemathesis_finds_nothing_wrong_with_rest_in_messagepack(fresh: Served, tmp_path: Path) -> None:
    examples = "100" if IS_LONG else "6"
    options = ("--exclude-path", "/v1/command", "--phases", "fuzzing", "--max-examples", examples)
    assert fuzz(fresh, tmp_path, *options, in_msgpack=True) > 100


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_schemathesis_finds_nothing_wrong_with_commands(fresh: Served, tmp_path: Path) -> None:
    examples = "2000" if IS_LONG else "100"
    phases = "coverage,fuzzing" if IS_LONG else "fuzzing"
    options = ("--include-path", "/v1/command", "--phases", phases, "--max-examples", examples)
    assert fuzz(fresh, tmp_path, *options, in_msgpack=True) >= 100
