"""`pyspark.sql.functions`, loaded when the first of them is called: the command line reads the options of all pipelines
and must not wait for PySpark, or need it, to do so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.functions import *  # noqa: F403  # the same names, for type checkers
else:

    def __getattr__(name: str) -> Any:
        from pyspark.sql import functions

        return getattr(functions, name)
