"""Servers for all tests of a file, one per way of configuring the protocol; each test makes queues of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocols.sqs.clients import Client, make_client, model, new_queue
from tests.server_thread import ServerThread

KEYS = "AKIDEXAMPLE:secret/with+signs,123456789012:another"


def _serve(**settings: object) -> Iterator[ServerThread]:
    with ServerThread(None, **settings) as server:
        yield server
    assert server.faults == []


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    yield from _serve()


@pytest.fixture(scope="module")
def strict_server() -> Iterator[ServerThread]:
    yield from _serve(sqs_strict_timing=True)


@pytest.fixture(scope="module")
def relaxed_server() -> Iterator[ServerThread]:
    yield from _serve(sqs_relaxed=True, body_bytes_max=4_000_000)


@pytest.fixture(scope="module")
def slow_server() -> Iterator[ServerThread]:
    """Takes one request a second."""
    yield from _serve(sqs_requests_per_second=1)


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[ServerThread]:
    """Offers no action at all."""
    yield from _serve(sqs_actions_off=",".join(model()["operations"]))


@pytest.fixture(scope="module")
def locked_server() -> Iterator[ServerThread]:
    """Wants signatures."""
    yield from _serve(sqs_access_keys=KEYS)


@pytest.fixture(scope="module", params=["json", "query"])
def sqs(server: ServerThread, request: pytest.FixtureRequest) -> Iterator[Client]:
    """boto3, in one wire protocol and then in the other."""
    client = make_client(server.url, request.param)
    yield client
    client.close()


@pytest.fixture(scope="module")
def boto(server: ServerThread) -> Iterator[Client]:
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
