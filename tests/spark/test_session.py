"""A session on this machine yields to the broker beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_spark_without_a_cluster_computes_with_what_others_leave(spark: SparkSession) -> None:
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr] # it is there since we have started it
    assert {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in Path(f"/proc/{jvm}/task").iterdir()} == {10}
    [worker] = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getpriority(os.PRIO_PROCESS, 0)).collect()
    assert worker == 10
    assert os.getpriority(os.PRIO_PROCESS, 0) < 10
