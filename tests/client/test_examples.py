"""The examples run as they stand, against a real broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(name: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_burst_is_absorbed_and_the_database_is_spared(broker_url: str) -> None:
    lines = run("peak_shaving.py", broker_url, "--orders", "1000", "--per-second", "1000")
    assert lines[0].startswith("1000 orders accepted in ")
    assert lines[1].split() == ["1000", "waiting,", "0", "stored"]
    assert lines[-1].startswith("1000 orders stored in 1.")


def test_a_poison_order_is_set_aside_looked_at_and_sent_back(broker_url: str) -> None:
    problem = "could not convert string to float: '99,99'"
    lines = run("poison_orders.py", broker_url)
    assert sorted(lines[:5]) == [
        "order 121: charged 12.50",
        *[f"order 122: {problem}"] * 3,
        "order 123: charged 7.00",
    ]
    assert lines[5:] == [
        "dead letter: {'order_id': 122, 'amount': '99,99'}",
        *(f"  delivery {number}: ValueError: {problem}" for number in (1, 2, 3)),
        "sent back: 1",
        "order 122: charged 99.99",
        "left as dead letters: 0",
    ]
