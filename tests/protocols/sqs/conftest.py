"""Servers for all tests of a worker, one per way of configuring the door; each test makes queues of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocols.sqs.clients import Client, make_client, model, new_queue
from tests.server_process import ServerProcess

KEYS = "AKIDEXAMPLE:secret/with+signs,123456789012:another"


def _serve(*flags: str) -> Iterator[ServerProcess]:
    with ServerProcess(None, *flags) as server:
        yield server
    assert [line for line in server.lines if "Traceback" in line or " ERROR " in line] == []


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    yield from _serve()


@pytest.fixture(scope="session")
def strict_server() -> Iterator[ServerProcess]:
    yield from _serve("--sqs-strict-timing")


@pytest.fixture(scope="session")
def relaxed_server() -> Iterator[ServerProcess]:
    yield from _serve("--sqs-relaxed", "--body-bytes-max", "4000000")


@pytest.fixture(scope="session")
def slow_server() -> Iterator[ServerProcess]:
    """Takes one request a second."""
    yield from _serve("--sqs-requests-per-second", "1")


@pytest.fixture(scope="session")
def guarded_server() -> Iterator[ServerProcess]:
    """Offers no action at all."""
    yield from _serve("--sqs-actions-off", ",".join(model()["operations"]))


@pytest.fixture(scope="session")
def locked_server() -> Iterator[ServerProcess]:
    """Wants signatures."""
    yield from _serve("--sqs-access-keys", KEYS)


@pytest.fixture(scope="session", params=["json", "query"])
def sqs(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    """boto3, in one wire protocol and then in the other."""
    client = make_client(server.url, request.param)
    yield client
    client.close()


@pytest.fixture(scope="session")
def boto(server: ServerProcess) -> Iterator[Client]:
    """boto3 as it comes, for what is the same in both."""
    client = make_client(server.url)
    yield client
    client.close()


@pytest.fixture
def queue(sqs: Client) -> str:
    return new_queue(sqs)


@pytest.fixture
def fifo(sqs: Client) -> str:
    return new_queue(sqs, FifoQueue="true")
