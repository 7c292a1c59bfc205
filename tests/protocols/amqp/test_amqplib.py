"""amqplib for node, unmodified; what it does stands in amqplib_client.cjs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S
from tools import test_clients as clients

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).with_name("amqplib_client.cjs")


@pytest.fixture(scope="module", autouse=True)
def amqplib() -> None:
    reason = clients.fetch_amqplib()
    if reason is not None:
        pytest.skip(reason)


def start(url: str, start: str, function: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["node", str(CLIENT), url, start, function],
        env={**os.environ, "NODE_PATH": str(clients.FOLDER / "node_modules")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    "function",
    [
        "publishes_with_confirms_and_consumes",
        "limits_what_is_in_flight",
        "requeues_and_rejects_to_the_dead_letters",
        "lets_messages_expire",
        "puts_higher_priorities_first",
        "chooses_by_topic_and_headers",
        "is_told_what_is_wrong",
        "hears_of_a_full_queue",
        "hears_of_a_deleted_queue",
    ],
)
def test_amqplib(place: Place, function: str) -> None:
    name = place.name("amqplib")
    process = start(place.url, name, function)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert output == "done\n"


def test_amqplib_connects_again_after_a_restart(mortal: ServerProcess) -> None:
    process = start(f"amqp://guest:guest@127.0.0.1:{mortal.amqp_port}", "", "connects_again")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    mortal.kill()
    mortal.restart()
    output, _ = process.communicate("restarted\n", timeout=PATIENCE_S)
    assert output == "done\n"
