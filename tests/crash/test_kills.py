"""kill -9 under load, again and again on the same data, at random moments; one ledger over all rounds.

What a kill cannot show, a lost sync, is left to the power cuts; what it shows beyond them is a real process with real
files: locks, recovery of what another process left, and nothing that only an orderly end would have written.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.ledger import GONE, check, read_ledger
from tests.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]
WORK_BYTES = 150_000
"""How much a life notes in the ledger at most, about: what a machine with nothing else to do takes 0.3 s for."""
KILLS = 250 if os.environ.get("SMISTA_LONG") else 3


def start(directory: Path, ledger: Path, session: int, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.crash.worker", str(directory), str(ledger), str(session), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(child: subprocess.Popen[bytes]) -> tuple[str, str]:
    out, errors = child.communicate(timeout=PATIENCE_S)
    return out.decode(), errors.decode()


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("seed", range(4))
def test_no_kill_breaks_a_promise(tmp_path: Path, seed: int, tell: Callable[[str], None]) -> None:
    source = random.Random(seed)
    directory, path = tmp_path / "data", tmp_path / "ledger"
    recovered = 0
    for session in range(KILLS):
        child = start(directory, path, session)
        assert child.stdout is not None
        if source.random() < 0.1:
            time.sleep(source.uniform(0.1, 0.4))  # Perhaps while it recovers.
        elif child.stdout.readline():
            recovered += 1
            # By how far it has come, not by how long that took.
            written_bytes = path.stat().st_size + source.randrange(WORK_BYTES)
            eventually(lambda: path.stat().st_size >= written_bytes or child.poll() is not None, every_s=0.001)  # noqa: B023
        child.send_signal(signal.SIGKILL)
        _, errors = end(child)
        assert (child.returncode, errors) == (-signal.SIGKILL, "")
    child = start(directory, path, KILLS, "drain")
    assert end(child) == ("drained\n", "")
    checker = check(read_ledger(path))
    kinds = Counter(violation.kind for violation in checker.violations)
    totals = checker.totals
    tell(
        f"kills, seed {seed}: {KILLS} kills, {recovered} of them under load; {totals['published']} publishes, "
        f"{totals['acknowledge']} acknowledgements, {totals['bury']} dead letters, {totals['redrive']} redrives: "
        f"lost {kinds['lost']}, back {kinds['back']}, doubled {kinds['doubled']}"
    )
    assert checker.violations == []
    assert not checker.copies, "all was delivered and acknowledged at the end"
    assert sum(how == GONE for how in checker.over.values()) >= totals["published"]
    assert totals["published"] > 10 * KILLS
