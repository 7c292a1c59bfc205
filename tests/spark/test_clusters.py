"""The same job on executors of their own: local-cluster, a standalone master and worker, Spark Connect."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from smista.spark import java
from tests.spark.conftest import ROOT
from tests.spark.queues import Queues, bodies
from tests.waiting import PATIENCE_S, SPARK_PATIENCE_S, eventually

SPARK_HOME = Path(pyspark.__file__).parent


@pytest.fixture
def environment() -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(java.find().home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run_job(environment: dict[str, str], master: str, queues: Queues, folder: Path) -> None:
    queue = queues.new(bodies(400))
    queues.client.declare_queue(f"{queue}-copy")
    command = [sys.executable, "-m", "tests.spark.cluster_job", master, queues.url, queue, str(folder)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=SPARK_PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[:2] == ["log", "400"]
    assert sorted(queues.take_all(f"{queue}-copy")) == bodies(400)
    assert queues.counts(queue) == (0, 0)


@contextlib.contextmanager
def started(environment: dict[str, str], folder: Path, command: list[str], *, says: str) -> Iterator[str]:
    """A process of Spark's, once it has said what it should; yields that."""
    said = folder / f"{re.sub(r'[^A-Za-z]', '', command[1])}.txt"
    with said.open("w") as output:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield eventually(
            lambda: [found[0] for found in re.finditer(says, said.read_text())],
            every_s=0.2,
            patience_s=SPARK_PATIENCE_S,
            as_long_as=lambda: process.poll() is None,
            show=lambda: said.read_text()[-3000:],
        )[0]
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_on_executors_of_their_own_and_when_a_task_is_tried_again(
    environment: dict[str, str], queues: Queues, tmp_path: Path
) -> None:
    run_job(environment, "local-cluster[2,1,1024]", queues, tmp_path)


def test_on_a_standalone_cluster(environment: dict[str, str], queues: Queues, tmp_path: Path) -> None:
    spark_class = [str(SPARK_HOME / "bin/spark-class")]
    ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    deploy = "org.apache.spark.deploy"
    master = [*spark_class, f"{deploy}.master.Master", *ports]
    with started(environment, tmp_path, master, says=r"spark://127\.0\.0\.1:\d+") as address:
        worker = [*spark_class, f"{deploy}.worker.Worker", *ports, "--cores", "2", "--memory", "1g"]
        worker += ["--work-dir", str(tmp_path / "work"), address]
        with started(environment, tmp_path, worker, says="Successfully registered with master"):
            run_job(environment, address, queues, tmp_path)


def test_over_spark_connect(environment: dict[str, str], queues: Queues, tmp_path: Path) -> None:
    port = free_port()
    server = [
        str(SPARK_HOME / "bin/spark-submit"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    server += ["--master", "local[2]", "--conf", f"spark.connect.grpc.binding.port={port}"]
    server += ["--conf", "spark.connect.grpc.binding.address=127.0.0.1", "--conf", "spark.ui.enabled=false"]
    server += ["spark-internal"]
    with started(environment, tmp_path, server, says="Spark Connect server started"):
        run_job(environment, f"sc://127.0.0.1:{port}", queues, tmp_path)
