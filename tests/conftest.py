"""What starts servers is slow: `make check` leaves it out, `make test` runs it.

`make test` gives each of its processes one file after the other. All that starts Spark goes to one of them: Spark gives
its Python processes 10 s to start, and several at once need more on a busy machine. What takes longest comes first, so
that all processes end at about the same time.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parent
SLOW = ("cli", "client", "protocols", "server", "spark")
LONGEST = ("spark", "crash", "simulation")
WITH_SPARK = ("cli/test_pipeline.py",)
QUICK = (
    "protocols/amqp/test_codec.py",
    "protocols/amqp/test_leaving.py",
    "protocols/amqp/test_names.py",
    "protocols/amqp/test_transactions.py",
    "protocols/amqp/test_unacked.py",
    "protocols/http/test_access.py",
    "protocols/http/test_metrics.py",
    "protocols/test_caches.py",
    "server/test_settings.py",
    "server/test_settings_docs.py",
)


# Whatever starts tests in the background has them ignore Ctrl-C, and so would every program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes, and how many can be made up in a second, says something about the machine alone.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(TESTS)
        if place.parts[0] in SLOW and str(place) not in QUICK:
            item.add_marker(pytest.mark.slow)
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    folder = _group(item.nodeid).partition("/")[0]
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)


def _group(nodeid: str) -> str:
    """What goes to one process: a file, or all that starts Spark."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return "spark" if file.startswith("spark/") or file in WITH_SPARK else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return FileByFile(config, log) if config.getvalue("dist") == "loadfile" else None


class FileByFile(LoadScopeScheduling):  # type: ignore[misc]  # it tells no types
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)
