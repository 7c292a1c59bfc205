"""A session on this machine yields to the broker beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.waiting import SPARK_PATIENCE_S

pytestmark = pytest.mark.slow

PROGRAM = """
import contextlib, json, os
from pathlib import Path
from smista.spark import session

def niceness(process):
    with contextlib.suppress(OSError):  # a thread that ended
        return os.getpriority(os.PRIO_PROCESS, int(process))

jvm = session("tests", master="local[1]").sparkContext._gateway.proc.pid
print(json.dumps({
    "java": sorted({niceness(thread.name) for thread in Path(f"/proc/{jvm}/task").iterdir()} - {None}),
    "driver": niceness(0),
}))
"""


def test_spark_without_a_cluster_computes_with_what_others_leave() -> None:
    # In a process of its own: the session that other tests share is told to yield to nobody.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=SPARK_PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"java": [10], "driver": os.getpriority(os.PRIO_PROCESS, 0)}
