"""A broker for all tests of a file, in memory; each test has a queue of its own in it."""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from smista import AsyncClient, Client
from tests.client.relay import Relay
from tests.served import Served
from tests.server_thread import ServerThread

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


@pytest.fixture
def broker_url(broker: Served) -> str:
    return broker.url


@pytest.fixture
def unused_address() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return f"127.0.0.1:{port}"


@pytest.fixture
def queue() -> str:
    """The name of a queue that nobody else uses; not declared yet."""
    return f"orders-{next(_numbers)}"


@pytest.fixture
async def client(broker: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(broker.url) as client:
        yield client


@pytest.fixture
async def orders(client: AsyncClient, queue: str) -> str:
    """The name of a queue that is there."""
    await client.declare_queue(queue)
    return queue


@pytest.fixture
def sync_client(broker: Served) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


@pytest.fixture
async def relay(broker: Served) -> AsyncIterator[Relay]:
    async with Relay(broker.port) as relay:
        yield relay
