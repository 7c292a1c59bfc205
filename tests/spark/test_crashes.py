"""The driver is killed with kill -9, in each moment of a micro-batch, on one checkpoint after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import ROOT
from tests.spark.dying_driver import MOMENTS
from tests.spark.queues import Queues, bodies
from tests.waiting import SPARK_PATIENCE_S


def drive(queues: Queues, queue: str, folder: Path, moment: str) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.spark.dying_driver", queues.url, queue, str(folder), moment]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=SPARK_PATIENCE_S, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-4000:]
    return done.returncode


@pytest.mark.timeout(1_800)
def test_every_message_arrives_once_whenever_the_driver_is_killed(queues: Queues, tmp_path: Path) -> None:
    queue = queues.new(bodies(1000))
    for moment in MOMENTS:
        assert drive(queues, queue, tmp_path, moment) == -signal.SIGKILL, moment
    assert drive(queues, queue, tmp_path, "never") == 0
    found = pq.read_table(tmp_path / "rows").column("body").to_pylist()
    assert sorted(found) == bodies(1000)
    assert queues.counts(queue) == (0, 0)
