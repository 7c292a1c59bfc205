"""The log into Parquet files, partitioned by queue, date and hour, every row once.

Spark cuts the log into batches and remembers the borders of each before it begins with it. A batch is written into a
folder of its own, which is emptied first, and then its manifest in one step; so a run may be killed anywhere and the
next one goes on, see `manifests`:

    killed ...                                  the next run ...
    while a batch's files are written           empties the batch's folder and writes it again
    before its manifest                         the same
    after its manifest                          finds the manifest and leaves the batch alone
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from smista.spark.errors import WrongOption
from smista.spark.pipelines import functions as sql
from smista.spark.pipelines.command import Queues, main, pipeline
from smista.spark.pipelines.folder import alone_in
from smista.spark.pipelines.manifests import Archive, Contents, Manifest, merged_columns, now_ms
from smista.spark.pipelines.rows import COLUMNS, Source, log_options
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary
from smista.spark.positions import read_place
from smista.spark.session import is_classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_ROWS = 200_000
BATCH_BYTES = 256 << 20


@pipeline
def archive(
    run: Run,
    *,
    to: Annotated[str, typer.Argument(metavar="FOLDER", help="The archive's folder.")],
    queue: Queues = None,
    has_bodies: Annotated[bool, typer.Option("--bodies/--no-bodies", help="Archive bodies too.")] = True,
    start: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="Where a new archive begins: earliest, latest, or positions.")
    ] = "earliest",
    batch_rows: Annotated[int, typer.Option(metavar="COUNT", min=1, help="At most so many rows a batch.")] = BATCH_ROWS,
    batch_bytes: Annotated[
        int, typer.Option(metavar="BYTES", min=1, help="At most about so many bytes of bodies a batch.")
    ] = BATCH_BYTES,
) -> Summary:
    """Copy the log into Parquet files, each row once, and go on from there the next time."""
    read_place(start, "--from")
    queues = tuple(sorted(queue or ()))
    place = Archive(to)
    if not place.exists:
        Source(queues=queues).check_queues(run)
        run.must_reach_broker()
    place.opened_for(Contents(queues=list(queues), namespace=run.namespace, has_bodies=has_bodies))
    columns = [name for name in COLUMNS if has_bodies or name != "body"]
    options = {
        **log_options(run, columns, queues),
        "startingOffsets": _resumed(place, start),
        "maxRowsPerTrigger": str(batch_rows),
        "maxBytesPerTrigger": str(batch_bytes),
    }
    run.must_reach_broker()
    with alone_in(place.path, "archiving"):
        if not is_classic(run.spark):
            raise WrongOption("archive keeps its manifests where its driver runs; give it a --master of its own.")
        stream = run.spark.readStream.format("smista").options(**options).load()
        writer = stream.writeStream.queryName("archive").option("checkpointLocation", str(place.checkpoint))
        before = {manifest.batch for manifest in place.all_manifests()}
        done = run.follow(writer.foreachBatch(lambda frame, number: write_batch(place, frame, number)))
    added = [manifest for manifest in place.all_manifests() if manifest.batch not in before]
    return Summary(
        {
            "pipeline": "archive",
            "archive": str(place.path),
            "batches": len(added),
            "rows": sum(manifest.rows for manifest in added),
            "files": sum(len(manifest.files) for manifest in added),
            "bytes": sum(manifest.bytes for manifest in added),
            "seconds": done["seconds"],
        }
    )


def _resumed(place: Archive, start: str) -> str:
    """Where a stream without a checkpoint begins: behind what is archived already. A shard of which nothing is archived
    begins with the first block that is kept."""
    behind = {shard: position + 1 for shard, position in place.reached().items()}
    return json.dumps(behind) if behind else start


def write_batch(place: Archive, frame: DataFrame, number: int) -> None:
    """Write one batch and its manifest; does nothing where that was done already."""
    from pyspark.sql import Observation

    # Numbers begin again with every checkpoint, so the checkpoint's own id stands before them.
    query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "batch"
    batch = f"{query[:8]}-{number:08}"
    if place.has(batch):
        return
    columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    merged_columns([*place.manifests()[-1:], _described(batch, columns)])  # raises where a type has changed
    seen = Observation()
    counted = frame.observe(
        seen,
        sql.count(sql.lit(1)).alias("rows"),
        sql.min("shard").alias("first_shard"),
        sql.max("shard").alias("last_shard"),
        sql.max("position").alias("last"),
    )
    write(partitioned(counted), place, batch)
    found = seen.get
    if not found["rows"]:
        shutil.rmtree(place.batch_path(batch), ignore_errors=True)
        return
    files = place.files_of(batch)
    last = {found["last_shard"]: found["last"]}
    if found["first_shard"] != found["last_shard"]:
        last = _last_positions(place.frame(frame.sparkSession, files, columns))
    place.add(
        Manifest(
            batch=batch,
            rows=found["rows"],
            reached={**place.reached(), **last},
            columns=columns,
            files=files,
            written_at_ms=now_ms(),
        )
    )


def _last_positions(rows: DataFrame) -> dict[int, int]:
    """Of each shard. While there is only one, what was observed while the rows were written is enough."""
    return {row.shard: row.last for row in rows.groupBy("shard").agg(sql.max("position").alias("last")).collect()}


def partitioned(rows: DataFrame) -> DataFrame:
    """With the date and hour, in UTC, at which each happened."""
    return rows.withColumn("date", sql.to_date("at")).withColumn("hour", sql.hour("at"))


def write(rows: DataFrame, place: Archive, batch: str) -> None:
    """The rows as the files of a batch, which no manifest lists yet."""
    writer = rows.write.mode("overwrite").partitionBy("queue", "date", "hour").option("compression", "zstd")
    writer.parquet(str(place.batch_path(batch)))


def _described(batch: str, columns: dict[str, str]) -> Manifest:
    return Manifest(batch=batch, rows=0, reached={}, columns=columns, files=[], written_at_ms=0)


if __name__ == "__main__":
    main(archive)
