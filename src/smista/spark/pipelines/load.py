"""Any table or file into a queue: each row a message.

By default a body is the row as JSON. With `--checkpoint` the files are followed: every file that comes into the folder
is loaded once, whatever was killed when, since Spark remembers which files are a batch and the broker takes a batch
once. Without, all of it is published at once, all or nothing; with `--name` once under that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from smista.spark.errors import WrongOption
from smista.spark.pipelines import functions as sql
from smista.spark.pipelines.command import Through, To, main, pairs, pipeline, target_of
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMATS = ("parquet", "orc", "json", "csv", "text", "table")
COLUMNS = ("id", "priority", "delay_ms", "ttl_ms", "max_retries", "headers", "routing_key", "group", "content_type")
"""What a message may have beside its body: `--set NAME=SQL`."""
TYPES = {
    "priority": "int",
    "delay_ms": "bigint",
    "ttl_ms": "bigint",
    "max_retries": "bigint",
    "headers": "map<string,string>",
}


@pipeline
def load(
    run: Run,
    *,
    place: Annotated[str, typer.Argument(metavar="PATH", help="A file, a folder of files, or a table's name.")],
    to: To = None,
    exchange: Through = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}; by the name's end.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For Spark's reader. Repeatable.")
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only rows of which this is true.")] = None,
    body: Annotated[str | None, typer.Option(metavar="SQL", help="What the body is; the row as JSON.")] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=SQL", help=f"{', '.join(COLUMNS)} of a message. Repeatable."),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Load each file once; remember which, here.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Load once under this name, never twice.")] = None,
) -> Summary:
    """Publish the rows of a table or of files."""
    led_to = target_of(to, exchange)
    if run.interval_ms is not None and checkpoint is None:
        raise WrongOption("To go on and on, --checkpoint FOLDER has to name where to remember what was loaded.")
    if name is not None and checkpoint is not None:
        raise WrongOption("--name is for loading all at once; with --checkpoint each file is loaded once anyway.")
    kind = form or _format_of(place)
    if kind not in FORMATS:
        raise WrongOption(f"--format {kind} is none of {', '.join(FORMATS)}.")
    if kind == "table" and checkpoint is not None:
        raise WrongOption("A table cannot be followed; leave --checkpoint out, or name the folder of its files.")
    settings, extras = pairs(option, "--option"), pairs(given, "--set")
    if unknown := sorted(set(extras) - set(COLUMNS)):
        raise WrongOption(f"A message has no {', '.join(unknown)}; --set knows {', '.join(COLUMNS)}.")
    run.must_find(led_to)
    target = {**run.broker_options, **led_to}
    rows = run.spark.table(place) if kind == "table" else run.spark.read.format(kind).options(**settings).load(place)
    if checkpoint is None:
        return _at_once(messages(rows, where, body, extras), target, name)
    # Given the columns, a stream needs not look at files before there are any.
    stream = run.spark.readStream.format(kind).options(**settings).schema(rows.schema).load(place)
    writer = messages(stream, where, body, extras).writeStream.format("smista").options(**target)
    done = run.follow(writer.option("checkpointLocation", checkpoint))
    return Summary({"pipeline": "load", "rows": done["rows_read"], **_place(target), "seconds": done["seconds"]})


def _format_of(place: str) -> str:
    ending = place.rstrip("/").removesuffix(".gz").rpartition(".")[2].lower()
    found = {"parquet": "parquet", "orc": "orc", "json": "json", "jsonl": "json", "csv": "csv", "txt": "text"}
    if ending not in found:
        raise WrongOption(f"What {place} is does not follow from its name; give --format, one of {', '.join(FORMATS)}.")
    return found[ending]


def messages(rows: DataFrame, where: str | None, body: str | None, extras: dict[str, str]) -> DataFrame:
    """The rows as the sink takes them."""
    chosen = rows if where is None else rows.where(where)
    text = sql.expr(body) if body is not None else sql.to_json(sql.struct("*"))
    columns: list[Column] = [text.alias("body")]
    for name, written in extras.items():
        columns.append(sql.expr(written).cast(TYPES.get(name, "string")).alias(name))
    if body is None and "content_type" not in extras:
        columns.append(sql.lit("application/json").alias("content_type"))
    made = chosen.select(*columns)
    if made.schema["body"].dataType.simpleString() not in ("string", "binary"):
        made = made.withColumn("body", sql.col("body").cast("string"))
    return made


def _at_once(made: DataFrame, target: dict[str, str], name: str | None) -> Summary:
    from pyspark.sql import Observation

    seen = Observation()
    once = {} if name is None else {"jobId": f"load-{name}", "batchId": "0"}
    counted = made.observe(seen, sql.count(sql.lit(1)).alias("rows"))
    counted.write.format("smista").mode("append").options(**target, **once).save()
    return Summary({"pipeline": "load", "rows": seen.get["rows"], **_place(target)})


def _place(target: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in target.items() if name in ("queue", "exchange")}


if __name__ == "__main__":
    main(load)
