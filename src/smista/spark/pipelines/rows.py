"""The rows of the broker's log as every pipeline knows them, and where they come from: the log itself, or an archive.

A row is one step in the life of one message in one queue. A message in a queue is named by `sequence`, which no
other message of the broker ever has; one that is moved (dead-lettered, redriven) leaves its queue in a row that names
`target_queue` and `target_sequence`, under which it goes on.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smista.spark.errors import WrongOption
from smista.spark.pipelines import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from smista.spark.pipelines.run import Run

COLUMNS = {
    "shard": "int",
    "position": "bigint",
    "index": "int",
    "at": "timestamp",
    "kind": "string",
    "namespace": "string",
    "queue": "string",
    "sequence": "bigint",
    "message_id": "string",
    "created_at": "timestamp",
    "priority": "int",
    "ready_at": "timestamp",
    "expires_at": "timestamp",
    "deadline_at": "timestamp",
    "delivery_count": "int",
    "consumer": "string",
    "reason": "string",
    "error": "string",
    "target_queue": "string",
    "target_sequence": "bigint",
    "count": "bigint",
    "exchange": "string",
    "routing_key": "string",
    "group": "string",
    "deduplication_id": "string",
    "ttl_ms": "bigint",
    "max_retries": "bigint",
    "content_type": "string",
    "headers": "map<string,string>",
    "properties": "binary",
    "body_bytes": "bigint",
    "body": "binary",
}
"""Name and type of every column."""

_PATTERN = re.compile(r"[*?\[]")

LIFE = [name for name in COLUMNS if name not in ("properties", "headers", "body")]
"""What is needed to follow a message without what is in it."""


def schema(columns: dict[str, str] | None = None) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in (columns or COLUMNS).items())


@dataclass(frozen=True, slots=True)
class Source:
    """Which rows: of the log, or of the archive in a folder; of these queues (names or patterns; none means all);
    written between two instants."""

    archive: str | None = None
    queues: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise WrongOption("--since must be before --until.")

    def check_queues(self, run: Run) -> None:
        """Raises `WrongOption` for a name that is no queue's: of a misspelled one there would be nothing to find.

        The name of a queue that is gone, or yet to come, can be written as a pattern; those are never refused.
        """
        unknown = {name for name in self.queues if not _PATTERN.search(name)}
        if not unknown or (run.namespace is not None and _PATTERN.search(run.namespace)):
            return
        if self.archive is not None:
            place, cure = (
                f"the archive {self.archive}",
                f"`smista pipeline reconcile --archive {self.archive}` lists them",
            )
            unknown -= self._archived(run, unknown)
        else:
            place, cure = "the broker", "`smista queues` lists them"
            with run.client() as client:
                unknown.difference_update(client.queues())
        if unknown:
            name = min(unknown)
            raise WrongOption(f"There is no queue {name!r} in {place}: {cure}. For one that is gone write '{name}*'.")

    def _archived(self, run: Run, names: set[str]) -> set[str]:
        """Those of the names that the archive knows: rows are theirs, or lead there."""
        from smista.spark.pipelines.manifests import Archive

        place = Archive(self.archive or "")
        place.must_exist()
        found = {file.queue for manifest in place.manifests() for file in manifest.files} & names
        if found == names:
            return found
        led_to = place.rows(run.spark).select("target_queue").where(sql.col("target_queue").isin(*names)).distinct()
        return found | {row.target_queue for row in led_to.collect()}

    def rows(self, run: Run, *, columns: list[str] | None = None) -> DataFrame:
        """The rows with these columns, all of them where none are named; of all queues.

        Messages move from queue to queue, and a move is a row of the queue that is left: so a message can be followed
        in the rows of all queues only, and `only` picks those wanted afterwards.
        """
        wanted = list(COLUMNS) if columns is None else columns
        if self.archive is not None:
            from smista.spark.pipelines.manifests import Archive

            archived = Archive(self.archive).rows(run.spark, (), self.since_ms, self.until_ms)
            if run.namespace is not None:
                archived = archived.where(archived.namespace == run.namespace)
            return archived.select(*wanted)
        run.must_reach_broker()
        reader = run.spark.read.format("smista").options(**log_options(run, wanted))
        if self.since_ms is not None:
            reader = reader.option("startingTimestamp", str(self.since_ms))
        if self.until_ms is not None:
            reader = reader.option("endingTimestamp", str(self.until_ms))
        return reader.load().select(*wanted)

    def only(self, frame: DataFrame) -> DataFrame:
        """Of a frame with a column `queue`, the rows of the queues wanted."""
        if not self.queues:
            return frame
        return frame.where(frame.queue.rlike(f"^(?:{'|'.join(map(fnmatch.translate, self.queues))})"))

    def __str__(self) -> str:
        place = "the log" if self.archive is None else f"the archive {self.archive}"
        return f"{place}, {', '.join(self.queues)}" if self.queues else place


def log_options(run: Run, columns: list[str], queues: tuple[str, ...] = ()) -> dict[str, str]:
    """The options with which the data source reads these columns of the log."""
    options = {**run.broker_options, "columns": ",".join(columns), "includeBody": str("body" in columns).lower()}
    if queues:
        options["queue"] = ",".join(queues)
    return options
