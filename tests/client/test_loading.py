"""What a program loads with the client: no broker."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "from smista import Client, AsyncClient, Delivery, Worker",
        "from smista.exchange_errors import ExchangeNotFound",
        "from smista.errors import BrokerError, LowDisk, OutcomeUnknown",
        "from smista.client import QueueSettings, ConnectionLost",
    ],
)
def test_the_client_and_its_errors_load_nothing_of_the_broker(statement: str) -> None:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    modules = set(subprocess.check_output([sys.executable, "-c", program], text=True).split())
    ours = {name for name in modules if name.startswith("smista.")}
    theirs = ("smista.client", "smista.errors", "smista.exchange_errors")
    parts = ("counters", "message", "settings")
    assert {name for name in ours if not name.startswith(theirs)} <= {
        "smista.address",
        "smista.core",
        "smista.message_properties",
        "smista.wording",
        *(f"smista.core.{name}" for name in parts),
    }
    assert not modules & {"apsw", "httptools", "prometheus_client", "rich", "typer", "uvloop"}
