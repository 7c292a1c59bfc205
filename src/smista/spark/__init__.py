"""Spark reads the broker's log, consumes its queues and publishes to them: `format("smista")`, see docs/spark.md.

    from smista.spark import session

    spark = session("orders")
    spark.read.format("smista").option("queue", "orders").load().show()

It knows the broker by its HTTP interface alone. What runs on executors (`source` and all it imports) needs nothing
beyond PySpark, pyarrow and the standard library, so that a zip of this package under `--py-files` will do.

java        which Java Spark is started with
session     a Spark session
source      the data source: which reader or writer a query gets
options     what a query may set
columns     what rows look like
wire        requests to the broker, repeated while it restarts
heartbeat   what keeps a consumer's name and claims while its query lives
log_reader, claim_reader, writer
"""

from __future__ import annotations

from smista.spark.session import register, session

__all__ = ["register", "session"]
