"""One server in memory for all tests of a worker; each test makes queues of its own on it."""

from collections.abc import Iterator

import pytest

from tests.protocols.http.caller import Caller
from tests.server_process import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture(params=["json", "msgpack"])
def caller(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Caller]:
    """Speaks one format, then the other."""
    with Caller(server.address, request.param) as caller:
        yield caller


@pytest.fixture
def http(server: ServerProcess) -> Iterator[Caller]:
    """For what is the same in both formats."""
    with Caller(server.address) as caller:
        yield caller


@pytest.fixture
def queue(caller: Caller) -> str:
    """A queue with the defaults of `queue.declare`."""
    return caller.new_queue()
