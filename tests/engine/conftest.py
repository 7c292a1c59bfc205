from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.bench import Bench, MemoryPlace, Place, SqlitePlace


@pytest.fixture(params=["memory", "sqlite"])
async def orders(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """A broker over each kind of log, with a queue "orders" of default settings."""
    place: Place = MemoryPlace() if request.param == "memory" else SqlitePlace(tmp_path / "data")
    bench = Bench(place)
    await bench.open()
    await bench.declare()
    yield bench
    await bench.broker.close()


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[tuple[Bench, MemoryPlace]]:
    """A broker whose log does what the test tells it; no queue yet."""
    place = MemoryPlace()
    bench = Bench(place)
    await bench.open()
    yield bench, place
    place.log.gate.set()
    await bench.broker.close()
