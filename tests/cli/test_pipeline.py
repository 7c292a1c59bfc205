"""`smista pipeline ...` as people call it. What each pipeline does is tested in tests/spark/pipelines."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smista.spark.pipelines import compact
from tests.cli.conftest import Smista
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S

NOBODY = "http://127.0.0.1:1"
SPARK = (
    *("--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=1"),
    # Else it takes very long on a busy machine.
    *("--conf", "spark.smista.niceness=0"),
)
SLOW_ONCE = """#!/bin/sh
case "$*" in
    *streaming*) mkdir "{marker}" 2>/dev/null && sleep 15 && exit 1 ;;
esac
exec "{python}" "$@"
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker on disk: one in memory has no log to read."""
    with ServerProcess(tmp_path_factory.mktemp("broker")) as server:
        yield server.url


def test_load_publishes_rows(offline: Smista, url: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    assert offline("--url", url, "declare", "lines").code == 0
    where = ("--to", "lines", "--body", "value", "--endpoint", url)
    done = offline("pipeline", "load", "lines.txt", *where, *SPARK, "--json", directory=tmp_path)
    assert done.code == 0, done.err
    assert done.json == {"pipeline": "load", "rows": 2, "queue": "lines", "is_good": True}
    assert offline("--url", url, "stats", "lines", "--json").json["ready"] == 2


def test_archive_copies_the_log(offline: Smista, url: str, tmp_path: Path) -> None:
    offline("--url", url, "declare", "copied")
    offline("--url", url, "put", "copied", "a", "b", "c")
    done = offline("pipeline", "archive", str(tmp_path), "-q", "copied", "--url", url, *SPARK)
    assert done.code == 0, done.err
    assert "batch 0: 3 rows" in done.err
    assert done.out.splitlines()[0] == "pipeline  archive"
    [manifest] = (tmp_path / "manifests").iterdir()
    assert json.loads(manifest.read_text())["rows"] == 3


def test_a_python_process_that_starts_too_slowly_for_spark_is_started_again(
    offline: Smista, url: str, tmp_path: Path
) -> None:
    offline("--url", url, "declare", "slow")
    offline("--url", url, "put", "slow", "a")
    python = tmp_path / "python"
    python.write_text(SLOW_ONCE.format(marker=tmp_path / "marker", python=sys.executable))
    python.chmod(0o755)
    where = ("pipeline", "archive", str(tmp_path / "archive"), "-q", "slow", "--url", url)
    done = offline(*where, *SPARK, "--json", environment={"PYSPARK_PYTHON": str(python)})
    assert done.code == 0, done.err
    assert "Starting it again" in done.err
    assert done.json["rows"] == 1


def test_no_broker_is_3_before_spark_is_started(offline: Smista, tmp_path: Path) -> None:
    for done in (
        offline("pipeline", "metrics", str(tmp_path), "--endpoint", NOBODY),
        offline("pipeline", "triage", str(tmp_path), "--endpoint", NOBODY),
        offline("pipeline", "reconcile", "--endpoint", NOBODY),
    ):
        assert (done.code, done.out) == (3, "")
        assert done.err.endswith("[connection_failed]\n")


def test_what_cannot_be_used_is_2_before_spark_is_started(offline: Smista, tmp_path: Path) -> None:
    for done, expected in (
        (offline("pipeline", "compact", str(tmp_path)), "There is no archive in"),
        (offline("pipeline", "redrive", str(tmp_path)), "Say which: --group"),
        (offline("pipeline", "replay", str(tmp_path), "--name", "x"), "Say where to"),
        (offline("pipeline", "archive", str(tmp_path), "--conf", "x"), "'x' is not NAME=VALUE: --conf wants that."),
        (offline("pipeline", "metrics", str(tmp_path), "--sla", "soon"), "'soon' is not a duration"),
        (offline("pipeline", "alerts", "--to", "x", "--state", "y", "--lookback", "1s"), "--lookback has to be 2h"),
        (offline("pipeline", "metrics"), "Missing argument 'FOLDER'"),
    ):
        assert (done.code, done.out) == (2, "")
        assert expected in done.err


def test_without_pyspark_it_says_how_to_get_it(offline: Smista, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'pyspark' else find(name, *rest)\n"
    )
    command = [sys.executable, "-m", "smista", "pipeline", "reconcile"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'smista[spark]'" in done.stderr


def test_each_is_a_program_of_its_own_too(tmp_path: Path) -> None:
    command = [sys.executable, compact.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: There is no archive in")
