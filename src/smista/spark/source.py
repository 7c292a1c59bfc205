"""`format("smista")`: which reader or writer a query gets, by what it asks for.

                    read                        readStream                  write, writeStream
    mode=log        LogReader                   LogStreamReader
    mode=consume    refused                     ClaimStreamReader
                                                                            SmistaWriter, SmistaStreamWriter

The parameters of these methods are named by Spark, which passes them by name.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from smista.spark import columns
from smista.spark.claim_reader import ClaimStreamReader
from smista.spark.errors import WrongOption
from smista.spark.log_reader import LogReader, LogStreamReader
from smista.spark.options import CONSUME, Given
from smista.spark.writer import SmistaStreamWriter, SmistaWriter


class SmistaSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "smista"

    @property
    def _given(self) -> Given:
        return Given(self.options)

    def schema(self) -> StructType:
        given = self._given
        is_consuming = given.mode == CONSUME
        has_body = given.flag("includeBody")
        return columns.chosen(
            columns.CLAIMED if is_consuming else columns.LOG,
            given.names("columns"),
            has_body=is_consuming if has_body is None else has_body,
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._given.mode == CONSUME:
            raise WrongOption(
                "Mode consume is for spark.readStream: only a stream says when its rows are safe, so that they can be "
                "acknowledged. For a job that ends by itself, add .trigger(availableNow=True)."
            )
        reading = self._given.log_reading(is_stream=False)
        columns.check_asked(schema, self.schema())
        return LogReader(reading, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if self._given.mode == CONSUME:
            consuming = self._given.consuming()
            columns.check_asked(schema, self.schema())
            return ClaimStreamReader(consuming, schema)
        reading = self._given.log_reading(is_stream=True)
        columns.check_asked(schema, self.schema())
        return LogStreamReader(reading, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise WrongOption("A queue cannot be overwritten: use mode('append'), and purge it before if need be.")
        columns.check_published(schema)
        return SmistaWriter(self._given.publishing())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if overwrite:
            raise WrongOption("A queue takes appended rows only: use outputMode('append') or 'update'.")
        columns.check_published(schema)
        return SmistaStreamWriter(self._given.publishing())
