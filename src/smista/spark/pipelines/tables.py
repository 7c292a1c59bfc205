"""Small tables in a folder of their own, replaced whole.

    TABLE/current.json          which version counts
    TABLE/version=N/*.parquet   the versions: the one that counts, and the one before, which somebody may be reading

A reader sees one version or the next, never a mixture; a writer that was killed leaves a version that nobody looks at.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from smista.spark.errors import WrongOption
from smista.spark.pipelines import folder
from smista.spark.pipelines.errors import ArchiveDamaged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Current(msgspec.Struct, frozen=True):
    version: int
    columns: str
    """Spark's DDL, so that an empty table has its columns too."""


class Table:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = folder.local_path(path)
        self._current = self.path / "current.json"

    @property
    def exists(self) -> bool:
        return self._current.exists()

    def read(self, spark: SparkSession) -> DataFrame:
        current = self._read()
        if current is None:
            raise WrongOption(f"There is no table in {self.path}.")
        return spark.read.schema(current.columns).parquet(str(self._version(current.version)))

    def replace(self, frame: DataFrame) -> None:
        """The rows of `frame` are the table from now on. They may come from the table itself."""
        with folder.alone_in(self.path, "replacing the table"):
            before = self._read()
            version = 1 if before is None else before.version + 1
            frame.write.mode("overwrite").option("compression", "zstd").parquet(str(self._version(version)))
            columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema.fields)
            folder.sync(self._version(version).glob("*.parquet"))
            folder.write_whole(self._current, msgspec.json.encode(Current(version, columns)))
            for old in self.path.glob("version=*"):
                if int(old.name.removeprefix("version=")) < version - 1:
                    shutil.rmtree(old)

    def _version(self, number: int) -> Path:
        return self.path / f"version={number}"

    def _read(self) -> Current | None:
        try:
            return msgspec.json.decode(self._current.read_bytes(), type=Current)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(
                f"{self._current} cannot be read: {error}. Remove {self.path} and make it anew."
            ) from None
