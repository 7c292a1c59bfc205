"""One server for all tests of a file; each test makes queues of its own on it. And a RabbitMQ, see `places`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.protocols.amqp.peer import Channel, Peer
from tests.protocols.amqp.places import RABBITMQ, Place, rabbitmq
from tests.served import Served
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread


@pytest.fixture(scope="module")
def smista(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("smista")) as server:
        yield server
    assert server.faults == []


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ServerProcess]:
    """A broker for the test alone, to be stopped or killed, and started again on its ports and data."""
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.fixture(params=["smista", *(["rabbitmq"] if RABBITMQ else [])])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Where RabbitMQ's behaviour is to be seen."""
    if request.param == "rabbitmq":
        place = rabbitmq()
    else:
        server: Served = request.getfixturevalue("smista")
        place = Place(server.amqp_address, server)
    yield place
    place.clean_up()


@pytest.fixture
def here(smista: Served) -> Iterator[Place]:
    """For what only Smista does."""
    place = Place(smista.amqp_address, smista)
    yield place
    place.clean_up()


@pytest.fixture
def peer(place: Place) -> Iterator[Peer]:
    with place.connect() as peer:
        yield peer


@pytest.fixture
def channel(peer: Peer) -> Channel:
    return peer.channel()


@pytest.fixture
def queue(place: Place, channel: Channel) -> str:
    """A plain queue."""
    return channel.declare(place.name())


@pytest.fixture
def refused(place: Place) -> Iterator[Callable[..., str]]:
    """What a method is refused with, each on a connection of its own."""
    peers = []

    def refuse(*methods: object) -> str:
        peer = place.connect()
        peers.append(peer)
        return peer.channel().refusal(*methods)  # type: ignore[arg-type] # handed on as they are

    yield refuse
    for peer in peers:
        peer.drop()
