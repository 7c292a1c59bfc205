"""A broker in memory, and the service for it: with its queues here, and as if they were elsewhere."""

from collections.abc import AsyncIterator, Callable

import pytest

from smista.engine import Broker
from smista.engine.interface import Engine
from smista.log import MemoryLog
from smista.service.service import Service
from tests.engine.far_engine import far, near


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        yield broker


@pytest.fixture(params=[near, far])
def where(request: pytest.FixtureRequest) -> Callable[[Broker], Engine]:
    found: Callable[[Broker], Engine] = request.param
    return found


@pytest.fixture
def service(broker: Broker, where: Callable[[Broker], Engine]) -> Service:
    return Service(where(broker))
