"""What is slow and what goes together.

`make check` leaves out what is slow: whatever starts a server or another program of its own, and what takes seconds.
Protocols are tested there with a server in this process (`tests/server_thread.py`), a few thousand tests of them.

`make test` runs all, in several processes that each take one group after the other: a file, or all that shares a JVM.
What takes longest comes first, so that all processes end at about the same time.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.server_process import ServerProcess

TESTS = Path(__file__).parent

SLOW = ("cli/", "spark/")
"""Folders and files of which everything is slow. Elsewhere, tests and files are marked one by one."""

STARTS_JVMS = (
    "cli/test_pipeline.py",
    "spark/pipelines/test_story.py",
    "spark/test_clusters.py",
    "spark/test_crashes.py",
    "spark/test_exactly_once.py",
    "spark/test_java.py",
    "spark/test_session.py",
    "spark/test_submit.py",
)
"""One after the other: each has all the memory and all the cores that it takes a Spark to start."""

LONGEST = ("spark", "jvms")
"""Groups, and files by how their path begins."""

# Whatever starts tests in the background has them ignore Ctrl-C, and so would every program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A few hundred Pythons are started, and each would compile all of Smista where its environment says to keep nothing.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Ten thousand tests and what they import are no garbage: looking through them takes half a second, each time.
gc.disable()

# Every Spark that a test starts works on a handful of rows: see the file there.
os.environ.setdefault("SPARK_CONF_DIR", str(TESTS / "spark" / "conf"))

# How long an example takes, and how many can be made up in a second, says something about the machine alone.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = str(item.path.relative_to(TESTS))
        if place.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group(_group(place)))
    items.sort(key=lambda item: _rank(str(item.path.relative_to(TESTS))))


def _group(place: str) -> str:
    """What goes to one process."""
    if place in STARTS_JVMS:
        return "jvms"
    return "spark" if place.startswith("spark/") else place


def _rank(place: str) -> int:
    ranks = (rank for rank, start in enumerate(LONGEST) if _group(place).startswith(start))
    return next(ranks, len(LONGEST))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    ServerProcess.may_start = item.get_closest_marker("slow") is not None
