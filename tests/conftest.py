"""What starts servers is slow: `make check` leaves it out, `make test` runs it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
SLOW = ("cli", "client", "protocols", "server", "spark")
QUICK = (
    "protocols/amqp/test_codec.py",
    "protocols/amqp/test_leaving.py",
    "protocols/amqp/test_names.py",
    "protocols/amqp/test_transactions.py",
    "protocols/amqp/test_unacked.py",
    "protocols/http/test_metrics.py",
    "server/test_settings.py",
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
