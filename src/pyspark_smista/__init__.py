"""What makes `spark.read.format("smista")` work without a line of registration.

PySpark imports every top-level module whose name begins with `pyspark_` and registers the class `DefaultSource` it
finds there. The data source itself is in `smista.spark`.
"""

from __future__ import annotations

from smista.spark.source import SmistaSource as DefaultSource

__all__ = ["DefaultSource"]
