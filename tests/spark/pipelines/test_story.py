"""The story in examples/spark_story.py is true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import ServerProcess
from tests.waiting import SPARK_PATIENCE_S

STORY = Path(__file__).parents[3] / "examples" / "spark_story.py"


@pytest.mark.timeout(1_200)
def test_the_poison_is_found_and_sent_back_and_the_books_are_balanced(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        command = [sys.executable, str(STORY), server.url, "--orders", "200", "--to", str(tmp_path / "story")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SMISTA_")}
        environment["PYSPARK_SUBMIT_ARGS"] = "--conf spark.smista.niceness=0 pyspark-shell"
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SPARK_PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 orders could not be charged" in done.stdout
    assert "could not convert string to float: '<text>'" in done.stdout
    assert "Everything adds up." in done.stdout
    facts = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) == 2)
    assert (facts["published"], facts["acknowledged"], facts["dead"], facts["faults"]) == ("200", "200", "0", "0")
    for report in ("metrics", "triage"):
        assert "</svg>" in (tmp_path / "story" / report / "report.html").read_text()
