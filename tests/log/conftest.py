from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.benches import Bench, MemoryBench, SqliteBench


@pytest.fixture(params=[MemoryBench, SqliteBench], ids=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Every log there is, one after the other."""
    bench: Bench = request.param(tmp_path / "data")
    yield bench
    bench.log.close()
