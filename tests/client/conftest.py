"""A broker in a process of its own for all tests here, in memory; each test has a queue of its own in it."""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from smista import AsyncClient, Client
from tests.client.relay import Relay
from tests.server_process import ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture
def broker_url(broker: ServerProcess) -> str:
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
async def client(broker: ServerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(broker.url) as client:
        yield client


@pytest.fixture
async def orders(client: AsyncClient, queue: str) -> str:
    """The name of a queue that is there."""
    await client.declare_queue(queue)
    return queue


@pytest.fixture
def sync_client(broker: ServerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


@pytest.fixture
async def relay(broker: ServerProcess) -> AsyncIterator[Relay]:
    async with Relay(broker.port) as relay:
        yield relay
