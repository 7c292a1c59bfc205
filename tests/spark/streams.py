"""Streams that end by themselves."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from smista.spark.pipelines.run import STARTS, TOO_SLOW
from tests.waiting import SPARK_PATIENCE_S


def ended(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query that has come to its end. It is started again where Spark gave up on a Python process, as on a busy
    machine; the checkpoint says where it goes on."""
    for starts_left in reversed(range(STARTS)):
        query = start()
        try:
            assert query.awaitTermination(SPARK_PATIENCE_S)
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error) or not starts_left:
                raise
        else:
            break
    return query
