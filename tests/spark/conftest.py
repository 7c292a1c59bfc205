"""Real Spark against a real broker. One session for all tests of a process, since starting one takes ten seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from smista import Client
from smista.spark import session
from tests.server_process import ServerProcess
from tests.spark.queues import Queues

ROOT = Path(__file__).parents[2]
# PySpark leaves sockets and pipes to the garbage collector.
QUIET = (
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::DeprecationWarning:pyspark",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in QUIET:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Workers import the sources that tests make of ours.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    conf = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.task.maxFailures": "2",
        "spark.driver.memory": "1g",
        # Spark gives up on a Python process of its own that has not started within 10 s. On a busy machine it needs its
        # full share for that; that it leaves the broker more is not what is tested here.
        "spark.smista.niceness": "0",
    }
    found = session("tests", master="local[2,2]", conf=conf)
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data")).start() as server:
        yield server


@pytest.fixture
def queues(server: ServerProcess) -> Iterator[Queues]:
    with Client(server.url) as client:
        yield Queues(client, server.url)
