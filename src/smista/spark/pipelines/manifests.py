"""An archive of the log in a folder, and the manifests that say what belongs to it.

    ARCHIVE/archive.json                        what is archived: queues, namespace, with bodies or without
    ARCHIVE/manifests/BATCH.json                a batch that is whole: its files, rows, columns, and how far it reaches
    ARCHIVE/data/batch=BATCH/queue=Q/date=D/hour=H/part-*.zstd.parquet
    ARCHIVE/checkpoint/                         how far Spark is

The rules that make it safe to read at any time:

- A batch's files are written first, its manifest last and in one step. Data without a manifest is not there: a run was
  killed, and the next one writes it anew.
- Readers read the files that manifests list, and no others. Files that are listed never change.
- A manifest that takes the place of others (compaction) names them in `replaces`; whoever sees it passes over those.
  The replaced ones, and files no longer listed, are removed only when nobody can be reading them any more.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

import msgspec

from smista.spark.errors import WrongOption
from smista.spark.pipelines import folder
from smista.spark.pipelines import functions as sql
from smista.spark.pipelines.errors import ArchiveDamaged, ArchiveDiffers
from smista.spark.pipelines.rows import COLUMNS, schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
VERSION = 1
HOUR_MS = 3_600_000
PARTITIONED_BY = {"queue": "string", "date": "date", "hour": "int"}


class DataFile(msgspec.Struct, frozen=True):
    path: str
    """Below the archive's `data`."""
    bytes: int

    @property
    def queue(self) -> str:
        return self._value("queue")

    @property
    def day(self) -> date:
        return date.fromisoformat(self._value("date"))

    @property
    def hour_at_ms(self) -> int:
        """When the hour of its rows begins."""
        hour = int(self._value("hour"))
        begins = datetime(self.day.year, self.day.month, self.day.day, hour, tzinfo=UTC)
        return round(begins.timestamp() * 1000)

    def _value(self, column: str) -> str:
        [value] = [part.removeprefix(f"{column}=") for part in self.path.split("/") if part.startswith(f"{column}=")]
        return unquote(value)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    batch: str
    rows: int
    reached: dict[int, int]
    """By shard: the last position of its log that is archived with this batch, or was before it."""
    columns: dict[str, str]
    files: list[DataFile]
    written_at_ms: int
    replaces: list[str] = []
    newest: str | None = None
    """Of a batch made of others, the one that its last rows came with: Spark may yet ask for that again."""
    version: int = VERSION

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def order(self) -> tuple[int, str]:
        """Sorts batches as they were archived: each reaches further in at least one shard, and in none less far."""
        return sum(self.reached.values()), self.batch


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive is of: chosen by its first run, and the same for all that follow."""

    queues: list[str]
    namespace: str | None
    has_bodies: bool
    version: int = VERSION


class Archive:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = folder.local_path(path)
        self.data = self.path / "data"
        self.manifests_path = self.path / "manifests"
        self.checkpoint = self.path / "checkpoint"

    # -- what it is of -------------------------------------------------------------------------------------------------

    def opened_for(self, wanted: Contents) -> None:
        """See that it is, or becomes, an archive of just this."""
        place = self.path / "archive.json"
        if not place.exists():
            folder.write_whole(place, msgspec.json.format(msgspec.json.encode(wanted)))
            return
        found = _decoded(place, Contents)
        if found != wanted:
            raise ArchiveDiffers(
                f"{self.path} is an archive of {_described(found)}, and not of {_described(wanted)}. Name another "
                "folder, or the same queues as before."
            )

    @property
    def exists(self) -> bool:
        return (self.path / "archive.json").exists()

    def contents(self) -> Contents:
        self.must_exist()
        return _decoded(self.path / "archive.json", Contents)

    def must_exist(self) -> None:
        if not self.exists:
            raise WrongOption(f"There is no archive in {self.path}; make one with `smista pipeline archive`.")

    # -- batches -------------------------------------------------------------------------------------------------------

    def batch_path(self, batch: str) -> Path:
        return self.data / f"batch={batch}"

    def has(self, batch: str) -> bool:
        """Whether its rows are here, in files of its own or in those that replace them."""
        return self._manifest_path(batch).exists() or any(each.newest == batch for each in self.all_manifests())

    def files_of(self, batch: str) -> list[DataFile]:
        """What Spark has written for a batch, on disk for good."""
        paths = sorted(self.batch_path(batch).rglob("*.parquet"))
        folder.sync(paths)
        folder.sync({path.parent for path in paths})
        return [DataFile(path.relative_to(self.data).as_posix(), path.stat().st_size) for path in paths]

    def add(self, manifest: Manifest) -> None:
        """From now on readers see the batch, and no longer what it replaces."""
        folder.write_whole(
            self._manifest_path(manifest.batch), msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        )

    def all_manifests(self) -> list[Manifest]:
        """Those that were replaced too; in the order in which they were archived."""
        try:
            names = sorted(name for name in os.listdir(self.manifests_path) if name.endswith(".json"))
        except FileNotFoundError:
            return []
        found = [manifest for name in names if (manifest := self._read(self.manifests_path / name)) is not None]
        return sorted(found, key=lambda manifest: manifest.order)

    def manifests(self) -> list[Manifest]:
        """Those that count."""
        found = self.all_manifests()
        replaced = {batch for manifest in found for batch in manifest.replaces}
        return [manifest for manifest in found if manifest.batch not in replaced]

    def reached(self) -> dict[int, int]:
        """By shard: the last position of its log that is archived."""
        manifests = self.manifests()
        return manifests[-1].reached if manifests else {}

    def forget(self, batch: str) -> None:
        self._manifest_path(batch).unlink(missing_ok=True)

    def _manifest_path(self, batch: str) -> Path:
        return self.manifests_path / f"{batch}.json"

    def _read(self, path: Path) -> Manifest | None:
        try:
            return _decoded(path, Manifest)
        except FileNotFoundError:
            return None  # replaced and removed since we looked; what replaces it is listed before that

    # -- reading -------------------------------------------------------------------------------------------------------

    def rows(
        self,
        spark: SparkSession,
        queues: Sequence[str] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> DataFrame:
        """The archived rows of these queues between two instants, with the columns of the log."""
        self.must_exist()
        manifests = self.manifests()
        columns = merged_columns(manifests)
        files = [
            file
            for manifest in manifests
            for file in manifest.files
            if _is_wanted(file, queues) and _is_between(file, since_ms, until_ms)
        ]
        frame = self.frame(spark, files, columns)
        if since_ms is not None:
            frame = frame.where(sql.col("at") >= sql.timestamp_millis(sql.lit(since_ms)))
        if until_ms is not None:
            frame = frame.where(sql.col("at") < sql.timestamp_millis(sql.lit(until_ms)))
        return frame.select(*columns)

    def frame(self, spark: SparkSession, files: Iterable[DataFile], columns: dict[str, str]) -> DataFrame:
        """What is in these files, and the queue, date and hour that their folders are named after."""
        paths = [self._checked(file) for file in files]
        wanted = schema({**columns, **PARTITIONED_BY})
        if not paths:
            return spark.createDataFrame([], wanted)
        # Given the columns, Spark neither guesses that a queue called 007 is a number nor opens every file to look;
        # a column that a file does not have is null.
        return spark.read.schema(wanted).option("basePath", str(self.data)).parquet(*paths)

    def _checked(self, file: DataFile) -> str:
        path = self.data / file.path
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise ArchiveDamaged(
                f"{path} is listed in a manifest and is not there. Restore it from a backup, or archive into another "
                "folder while the broker's log still reaches back."
            ) from None
        if found != file.bytes:
            raise ArchiveDamaged(f"{path} has {found} bytes, and its manifest says {file.bytes}: restore it.")
        return str(path)


def merged_columns(manifests: Iterable[Manifest]) -> dict[str, str]:
    """The columns of all batches: those of the log, then what only some of them have."""
    merged = dict(COLUMNS)
    for manifest in manifests:
        for name, kind in manifest.columns.items():
            if merged.setdefault(name, kind) != kind:
                raise ArchiveDiffers(
                    f"Column {name} is {kind} in batch {manifest.batch} of the archive and {merged[name]} elsewhere. "
                    "The broker was changed in between: archive into a new folder from then on."
                )
    return merged


def now_ms() -> int:
    return round(time.time() * 1000)


def _is_wanted(file: DataFile, queues: Sequence[str]) -> bool:
    return not queues or any(fnmatch.fnmatchcase(file.queue, pattern) for pattern in queues)


def _is_between(file: DataFile, since_ms: int | None, until_ms: int | None) -> bool:
    begins = file.hour_at_ms
    return (since_ms is None or begins + HOUR_MS > since_ms) and (until_ms is None or begins < until_ms)


def _described(contents: Contents) -> str:
    queues = ", ".join(contents.queues) if contents.queues else "all queues"
    place = "" if contents.namespace is None else f" in namespace {contents.namespace}"
    return f"{queues}{place}{'' if contents.has_bodies else ' without bodies'}"


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}. Restore it from a backup.") from None
    version = getattr(found, "version", VERSION)
    if version > VERSION:
        raise ArchiveDiffers(f"{path} was written by a newer version of Smista (format {version}); use that one.")
    return found
