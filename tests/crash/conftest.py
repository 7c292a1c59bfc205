from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line that is seen although the test passes."""

    def tell(line: str) -> None:
        with capfd.disabled():
            print(f"\n{line}", file=sys.stderr, flush=True)

    return tell
