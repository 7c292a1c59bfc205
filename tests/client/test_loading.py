"""What a program loads with the client: no broker."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "from smista import Client, AsyncClient, Delivery, Worker",
        "from smista.core.errors import QueueNotFound, ExchangeNotFound",
        "from smista.errors import BrokerError, LowDisk, OutcomeUnknown",
        "from smista.client import QueueSettings, ConnectionLost",
    ],
)
def test_the_client_and_its_errors_load_nothing_of_the_broker(statement: str) -> None:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    modules = set(subprocess.check_output([sys.executable, "-c", program], text=True).split())
    ours = {name for name in modules if name.startswith("smista.") and not name.startswith("smista.client")}
    parts = ("errors", "message", "settings", "wording")
    assert ours <= {"smista.core", "smista.errors", *(f"smista.core.{name}" for name in parts)}
    assert not modules & {"apsw", "httptools", "prometheus_client", "rich", "typer", "uvicorn", "uvloop"}
