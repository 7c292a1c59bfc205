"""A broker in memory, and the service for it."""

from collections.abc import AsyncIterator

import pytest

from smista.engine import Broker
from smista.log import MemoryLog
from smista.service.service import Service


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        yield broker


@pytest.fixture
def service(broker: Broker) -> Service:
    return Service(broker)
