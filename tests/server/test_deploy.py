"""What is in deploy/ fits the server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from smista import Client
from smista.server.settings import ServerSettings, load
from tests.server_process import ServerProcess

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
DEFAULTS = ServerSettings()
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana.json").read_text())
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that it puts on samples itself; and the one of a histogram's buckets."""
METRIC = re.compile(r"\b((?:smista|process)_\w+)(?:\{([^}]*)\})?")


def test_the_unit_waits_longer_than_a_drain_takes() -> None:
    unit = (DEPLOY / "smista.service").read_text()
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > DEFAULTS.drain_timeout_s
    [files] = re.findall(r"^LimitNOFILE=(\d+)$", unit, re.MULTILINE)
    assert int(files) > DEFAULTS.connections_max


def test_the_unit_leaves_readable_what_the_clock_reads() -> None:
    assert not re.search(r"^ProcSubset=", (DEPLOY / "smista.service").read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "smista.service").read_text()
    assert unit.count("/opt/smista/bin/smista ") == 1
    # It wants the program to be there.
    (tmp_path / "smista.service").write_text(unit.replace("/opt/smista/bin/smista ", f"{sys.executable} -m smista "))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "smista.service")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_sets_what_the_server_knows() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    settings = load({}, dict(re.findall(r"\b(SMISTA_[A-Z_]+)=(\S+)", image)), None)
    assert (settings.host, settings.data) == ("0.0.0.0", "/var/lib/smista")
    # Docker kills after 10 s.
    assert settings.drain_timeout_s < 10


def test_the_image_exposes_the_ports_the_server_listens_on() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    assert f"EXPOSE {DEFAULTS.http_port} {DEFAULTS.amqp_port}\n" in image
    assert f"'{DEFAULTS.http_port}'" in image


# -- the dashboard ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """What a broker on disk exposes once a message has gone through it: by metric its labels, by label their values."""
    with ServerProcess(tmp_path_factory.mktemp("data")) as server:
        with Client(server.url) as client:
            client.declare_queue("orders")
            client.publish("orders", "x")
            [delivery] = client.receive("orders")
            delivery.ack()
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, dict[str, set[str]]] = {}
    for sample in (sample for family in families for sample in family.samples):
        labels = found.setdefault(sample.name, {})
        for label, value in sample.labels.items():
            labels.setdefault(label, set()).add(value)
    return found


def targets() -> list[dict[str, Any]]:
    return [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def expressions() -> list[str]:
    variables = DASHBOARD["templating"]["list"]
    asked = [variable["definition"] for variable in variables if "definition" in variable]
    return asked + [target["expr"] for target in targets()]


@pytest.mark.slow
@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_the_dashboard_asks_for_metrics_and_labels_that_a_broker_exposes(
    exposed: dict[str, dict[str, set[str]]], expression: str
) -> None:
    metrics = METRIC.findall(expression)
    assert metrics
    shared: set[str] = set()
    for name, selectors in metrics:
        assert name in exposed
        shared |= exposed[name].keys()
        for label, operator, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', selectors):
            assert label in exposed[name].keys() | OF_PROMETHEUS
            assert operator != "=" or value in exposed[name][label]
    for grouping in re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", expression):
        assert set(grouping.split(", ")) <= shared | OF_PROMETHEUS
    assert_variables_are_known(expression)


def assert_variables_are_known(text: str) -> None:
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", text)) <= known | {"__rate_interval"}


def test_what_the_dashboard_calls_a_line_is_left_by_its_expression() -> None:
    for target in targets():
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        groupings = re.findall(r"\bby \(([^)]*)\)", target["expr"])
        assert named <= {label for grouping in groupings for label in grouping.split(", ")}, target["expr"]


def test_the_dashboard_asks_no_data_source_but_the_one_that_is_chosen() -> None:
    [variable] = [each for each in DASHBOARD["templating"]["list"] if each["type"] == "datasource"]
    asked = [panel["datasource"] for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    asked += [target["datasource"] for target in targets()]
    asked += [each["datasource"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert {source["uid"] for source in asked} == {"${" + variable["name"] + "}"}
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
