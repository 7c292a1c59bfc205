from __future__ import annotations

import pytest

from tests.core.bench import Bench


@pytest.fixture
def orders() -> Bench:
    """A queue with the default settings."""
    return Bench()
