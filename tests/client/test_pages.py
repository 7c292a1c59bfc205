"""The pages on the client and the worker keep up with them, and their programs run."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from smista import AsyncClient, Worker
from smista.client import Delivery, PutSummary, Subscription
from smista.client.worker import load
from tests.waiting import PATIENCE_S

DOCS = Path(__file__).parent.parent.parent / "docs"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLIENT, WORKER = ((DOCS / name).read_text() for name in ("client.md", "worker.md"))


def run(program: str, broker_url: str) -> str:
    assert "http://127.0.0.1:9324" in program
    command = [sys.executable, "-W", "error", "-c", program.replace("http://127.0.0.1:9324", broker_url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("program", "output"),
    list(zip(PROGRAM.findall(CLIENT), ["margherita\nmarinara\ndiavola\n", "0\n1\n2\n", "3\n"], strict=True)),
    ids=["sync", "async", "publications"],
)
def test_the_programs_on_the_client_run(program: str, output: str, broker_url: str) -> None:
    assert run(program, broker_url) == output


def test_the_program_on_the_worker_runs(broker_url: str) -> None:
    [program] = PROGRAM.findall(WORKER)
    output = run(program, broker_url)
    # The letter may come too late: the second parcel ends it all.
    assert "parcel of 1" in output
    assert "parcel of 3" in output


def options(page: str, function: object) -> None:
    assert callable(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not inspect.Parameter.empty and name != "self":
            assert re.search(rf"^\| `{name}` \| `{re.escape(str(parameter.default))}` \|", page, re.MULTILINE), name


def test_every_option_of_a_client_is_explained_with_its_default() -> None:
    options(CLIENT, AsyncClient.__init__)


def test_every_setting_of_a_consumer_is_explained_with_its_default() -> None:
    options(WORKER, Worker.consumer)


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_every_call_of_a_client_is_listed() -> None:
    listed = CLIENT.split("## Calls")[1].split("## Errors")[0]
    inside = {"put_batch", "receive_as", "subscribe_as"}
    assert public(AsyncClient) - inside == set(re.findall(r"`(\w+)`", listed)) - {"page_size"}


def test_what_a_delivery_a_subscription_and_a_summary_can_do_is_explained() -> None:
    calls = {name for name in public(Delivery) if callable(getattr(Delivery, name))} - {"settle_soon"}
    inside = {"broken", "failed", "is_over", "opened", "pushed", "queue", "start", "stop", "waiting"}
    for name in calls | (public(Subscription) - inside) | public(PutSummary):
        assert re.search(rf"`(subscription\.)?{name}\b", CLIENT), name


def test_a_program_with_a_worker_can_be_loaded_without_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `smista worker post:app` does."""
    [program] = PROGRAM.findall(WORKER)
    (tmp_path / "post.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert load("post:app").queues == ["letters", "parcels"]
