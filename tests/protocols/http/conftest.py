"""One server in memory for all tests of a file; each test makes queues of its own on it."""

from collections.abc import Iterator

import pytest

from tests.protocols.http.caller import Caller
from tests.served import Served
from tests.server_thread import ServerThread


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server


@pytest.fixture(params=["json", "msgpack"])
def caller(server: Served, request: pytest.FixtureRequest) -> Iterator[Caller]:
    """Speaks one format, then the other."""
    with Caller(server.address, request.param) as caller:
        yield caller


@pytest.fixture
def http(server: Served) -> Iterator[Caller]:
    """For what is the same in both formats."""
    with Caller(server.address) as caller:
        yield caller


@pytest.fixture
def queue(caller: Caller) -> str:
    """A queue with the defaults of `queue.declare`."""
    return caller.new_queue()
