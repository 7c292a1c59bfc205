"""Rows of a log as tests write them, and one Spark for all tests of the pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from smista import Client
from smista.spark.pipelines.rows import COLUMNS, schema
from smista.spark.pipelines.run import Run
from tests.server_process import ServerProcess

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
SETTINGS = {
    # Compiling code for every plan takes longer than a few rows do without it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The one of all tests of Spark, quick with a handful of rows."""
    before = {name: spark.conf.get(name) or "" for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def lines() -> list[str]:
    """What a run printed on its way."""
    return []


@pytest.fixture
def run(spark: SparkSession, lines: list[str]) -> Run:
    return Run(spark=spark, on_progress=lines.append)


class Log:
    """A log in the making: each call adds a row, a block of its own, `s` seconds after the beginning."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._positions = itertools.count(1)
        self.rows: list[tuple[Any, ...]] = []

    def add(self, kind: str, sequence: int | None, s: float = 0, queue: str = "orders", **more: Any) -> Log:
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row.update(shard=0, position=next(self._positions), index=0, at=BEGAN + timedelta(seconds=s), kind=kind)
        row.update(namespace="/", queue=queue, sequence=sequence)
        if kind == "enqueued":
            row.update(message_id=f"m{sequence}", created_at=row["at"], body=b"{}", body_bytes=2)
        row.update(more)
        self.rows.append(tuple(row.values()))
        return self

    def frame(self) -> DataFrame:
        return self._spark.createDataFrame(self.rows, schema())


@pytest.fixture
def log(spark: SparkSession) -> Log:
    return Log(spark)


def found(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The rows as tuples of these columns, sorted."""
    return sorted((tuple(row[name] for name in columns) for row in frame.collect()), key=str)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def client(broker: ServerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


_names = itertools.count(1)


@pytest.fixture
def queue(client: Client) -> str:
    """A queue nobody else uses."""
    name = f"orders-{next(_names)}"
    client.declare_queue(name)
    return name


@pytest.fixture
def at_broker(spark: SparkSession, lines: list[str], broker: ServerProcess) -> Run:
    """A run that has a broker."""
    return Run(spark=spark, endpoint=broker.url, on_progress=lines.append)


def bodies(client: Client, queue: str) -> list[str]:
    """What lies ready in a queue, in order."""
    return [message.text() for message in client.peek(queue, 1_000)]
