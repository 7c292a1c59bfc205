"""Pipelines under spark-submit, as it comes with the package pyspark: their file is the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from smista.spark import java
from smista.spark.pipelines import archive as a_pipeline
from smista.spark.pipelines.manifests import Archive
from tests.spark.conftest import ROOT
from tests.spark.queues import Queues, bodies
from tests.spark.test_clusters import SPARK_HOME
from tests.waiting import SPARK_PATIENCE_S

PIPELINES = Path(a_pipeline.__file__).parent


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python that has all that Smista needs, and Smista not: as the machines of a cluster may be."""
    folder = tmp_path / "bare"
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    # What a .pth file names is not asked for .pth files of its own, so not for the one that leads to our sources.
    Path(paths["purelib"], "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


def submit(
    pipeline: str, *arguments: str, options: tuple[str, ...] = (), python: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")},
        "JAVA_HOME": str(java.find().home),
        "PYSPARK_PYTHON": str(python or sys.executable),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(SPARK_HOME / "bin/spark-submit"), *options, "--conf", "spark.ui.enabled=false"]
    command += [str(PIPELINES / f"{pipeline}.py"), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SPARK_PATIENCE_S, check=False
    )


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Spark gives both streams of the program out as one; the summary is its last line."""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_pipelines_file_is_a_program_for_spark_submit(queues: Queues, tmp_path: Path) -> None:
    queue = queues.new(bodies(20))
    queues.take_all(queue)
    place, local = tmp_path / "archive", ("--master", "local[2]")
    told = summary(submit("archive", str(place), "--endpoint", queues.url, "--queue", queue, "--json", options=local))
    assert (told["rows"], told["batches"]) == (60, 1)  # published, delivered, acknowledged
    told = summary(submit("reconcile", "--archive", str(place), "--json", options=local))
    assert (told["published"], told["acknowledged"], told["faults"]) == (20, 20, 0)


def test_the_package_may_come_along_as_a_zip(queues: Queues, bare: Path, tmp_path: Path) -> None:
    found = subprocess.run([bare, "-c", "import msgspec, pyspark, smista"], capture_output=True, text=True, check=False)
    assert "No module named 'smista'" in found.stderr
    queue = queues.new(bodies(20))
    package = tmp_path / "smista.zip"
    with zipfile.ZipFile(package, "w") as zipped:
        for path in sorted((ROOT / "src").rglob("*.py")):
            zipped.write(path, path.relative_to(ROOT / "src"))
    options = ("--master", "local-cluster[1,1,1024]", "--py-files", str(package))
    place = tmp_path / "archive"
    arguments = (str(place), "--endpoint", queues.url, "--queue", queue, "--json")
    assert summary(submit("archive", *arguments, options=options, python=bare))["rows"] == 20
    assert [manifest.rows for manifest in Archive(place).manifests()] == [20]


def test_what_goes_wrong_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    for pipeline, arguments, code, said in (
        ("archive", (str(tmp_path / "archive"), "--endpoint", "http://127.0.0.1:1"), 3, "No broker can be reached"),
        ("compact", (str(tmp_path / "archive"),), 2, "There is no archive in"),
    ):
        done = submit(pipeline, *arguments, options=("--master", "local[2]"))
        assert done.returncode == code
        [line] = done.stdout.splitlines()
        assert line.startswith(f"Error: {said}")
        assert "\tat " not in done.stderr
    assert not (tmp_path / "archive").exists()
