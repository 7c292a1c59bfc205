"""Dead letters in groups: the same queue, reason, error and shape of body. What to look at first, and what to redrive.

An error is *normalised*: whatever differs from message to message (numbers, ids, what stands in quotes, addresses) is
replaced by a mark, so that `order 17: no route to 10.0.0.5` and `order 18: no route to 10.0.0.9` are one error. The
*shape* of a JSON body is its keys with the types of their values; of another body, whether it is text or not.

Writes two tables and a page:

    TO/groups        one row a group: how many died and are still dead, first and last time, samples, trend
    TO/dead_letters  one row a message that is dead now: its id, where it lies, where it died, its group, its headers
    TO/report.html

The time from the first death to the last row that was read is cut into slices. The trend compares the last quarter of
them with the quarter before that: a group of which nobody died in either is over.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smista.spark.pipelines import functions as sql
from smista.spark.pipelines import lifecycle, report
from smista.spark.pipelines.command import ArchiveFolder, Queues, Since, Until, main, pipeline, source
from smista.spark.pipelines.folder import local_path, write_whole
from smista.spark.pipelines.rows import COLUMNS
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary
from smista.spark.pipelines.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GROUP = ["namespace", "queue", "reason", "error", "shape"]
"""What the dead letters of a group have in common; `error` is the normalised one."""
SAMPLES = 5
SHOWN_MAX = 20
REPORTED_MAX = 200
SLICES = 24
"""Into so many parts the time from the first death on is cut."""
ERROR_MAX = 300

_MARKS = [
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<id>"),
    (r"https?://[^\s'\"<>]+", "<url>"),
    (r"'[^']*'", "'<text>'"),
    (r'"[^"]*"', '"<text>"'),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    (r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{12,}\b", "<hex>"),
    (r"\d+([.,:]\d+)*", "<n>"),
    (r"\s+", " "),
]
"""In this order: what is inside another goes with it."""


@pipeline
def triage(
    run: Run,
    *,
    to: Annotated[str, typer.Argument(metavar="FOLDER", help="Where the tables and report.html go.")],
    archive: ArchiveFolder = None,
    queue: Queues = None,
    since: Since = None,
    until: Until = None,
) -> Summary:
    """Group dead letters by reason, error and shape of body, and show what each group is."""
    place = local_path(to)
    rows_from = source(archive, queue, since, until)
    rows_from.check_queues(run)

    def once() -> Summary:
        dead_letters = rows_from.only(deaths(rows_from.rows(run, columns=list(COLUMNS)))).persist()
        try:
            Table(place / "groups").replace(groups(dead_letters))
            Table(place / "dead_letters").replace(still_dead(dead_letters))
        finally:
            dead_letters.unpersist()
        found = Table(place / "groups").read(run.spark)
        page = place / "report.html"
        write_whole(page, _page(found, str(rows_from)).encode())
        return _summary(found, page)

    return run.repeat(once)


# -- dead letters -----------------------------------------------------------------------------------------------------


def deaths(rows: DataFrame) -> DataFrame:
    """Every death: who, where, why, with what body, and whether the message is still dead."""
    died = rows.where(sql.col("kind") == "dead_lettered").select(
        "namespace",
        "queue",
        "sequence",
        sql.col("at").alias("died_at"),
        sql.coalesce("reason", sql.lit("unknown")).alias("reason"),
        sql.col("error").alias("error_text"),
        sql.coalesce("target_queue", "queue").alias("lies_in"),
        sql.coalesce("target_sequence", "sequence").alias("lies_at"),
    )
    published = rows.where(sql.col("kind") == "enqueued").select(
        sql.col("sequence").alias("root"), "message_id", "headers", "content_type", "body"
    )
    lasting = lifecycle.with_purges(lifecycle.stays(rows), lifecycle.purges(rows)).select(
        "namespace", sql.col("queue").alias("lies_in"), sql.col("sequence").alias("lies_at"), sql.col("end")
    )
    return (
        died.join(lifecycle.roots(rows), "sequence", "left")
        .withColumn("root", sql.coalesce("root", "sequence"))
        # A message that was published before the rows begin is a dead letter all the same.
        .join(published, "root", "left")
        .join(lasting, ["namespace", "lies_in", "lies_at"], "left")
        .withColumn("is_dead", sql.col("end").isNull())
        .withColumn("error", normalised(sql.coalesce("error_text", sql.lit(""))))
        .withColumn("shape", shape(sql.col("body")))
        .withColumn("group", sql.substring(sql.sha2(sql.concat_ws("\0", *GROUP), 256), 1, 12))
        .crossJoin(sql.broadcast(rows.agg(sql.max("at").alias("read_until"))))
        .drop("body", "end", "root")
    )


def normalised(error: Column) -> Column:
    """The error without what differs from message to message."""
    text = sql.substring(error, 1, 10 * ERROR_MAX)
    for pattern, mark in _MARKS:
        text = sql.regexp_replace(text, sql.lit(pattern), sql.lit(mark))
    return sql.substring(sql.trim(text), 1, ERROR_MAX)


def shape(body: Column) -> Column:
    """What kind of thing a body is: its JSON type, numbers all alike; else text, binary or empty."""
    text = sql.decode(body, "UTF-8")
    kind = sql.schema_of_variant(sql.try_parse_json(text))
    kind = sql.regexp_replace(kind, r"\b(BIGINT|DOUBLE|FLOAT|DECIMAL\(\d+,\d+\))", "NUMBER")
    return (
        sql.when(body.isNull(), "unknown")
        .when(sql.length(body) == 0, "empty")
        .when(~sql.is_valid_utf8(sql.expr("cast(body as string)")), "binary")
        .when(kind.isNotNull(), kind)
        .otherwise("text")
    )


def still_dead(dead_letters: DataFrame) -> DataFrame:
    """The dead letters that can be redriven."""
    return dead_letters.where("is_dead").select(
        "group", "namespace", "queue", "lies_in", "message_id", "died_at", "reason", "error_text", "headers"
    )


# -- groups -----------------------------------------------------------------------------------------------------------


def groups(dead_letters: DataFrame) -> DataFrame:
    """One row a group, the one with most dead letters first."""
    from pyspark.sql import Window

    newest = sql.row_number().over(Window.partitionBy("group").orderBy(sql.desc("died_at"), "message_id"))
    sample = sql.when(sql.col("place") <= SAMPLES, sql.col("message_id"))
    found = (
        dead_letters.withColumn("place", newest)
        .groupBy("group", *GROUP)
        .agg(
            sql.count(sql.lit(1)).alias("deaths"),
            sql.count_if("is_dead").alias("dead"),
            sql.count_distinct("message_id").alias("messages"),
            sql.min("died_at").alias("first_at"),
            sql.max("died_at").alias("last_at"),
            sql.max_by("error_text", "died_at").alias("last_error"),
            sql.collect_list(sample).alias("samples"),
        )
    )
    return (
        found.join(_slices(dead_letters), "group")
        .withColumn("trend", _trend(sql.col("slices")))
        .orderBy(sql.desc("dead"), sql.desc("deaths"), "group")
    )


def _slices(dead_letters: DataFrame) -> DataFrame:
    """How many died in each slice of the time from the first death of all to the last row that was read."""
    edges = dead_letters.agg(
        sql.min(sql.unix_millis("died_at")).alias("first"), sql.max(sql.unix_millis("read_until")).alias("last")
    )
    # Counted from the end, so that one who died just now is in the last slice however short the time is.
    length = sql.greatest((sql.col("last") - sql.col("first") + 1) / SLICES, sql.lit(1.0))
    place = SLICES - 1 - sql.floor((sql.col("last") - sql.unix_millis("died_at")) / length)
    counts = (
        dead_letters.crossJoin(sql.broadcast(edges))
        .groupBy("group", place.alias("place"))
        .agg(sql.count(sql.lit(1)).alias("deaths"))
        .groupBy("group")
        .agg(sql.map_from_entries(sql.collect_list(sql.struct("place", "deaths"))).alias("by_place"))
    )
    slices = [sql.coalesce(sql.element_at("by_place", sql.lit(at).cast("bigint")), sql.lit(0)) for at in range(SLICES)]
    return counts.select("group", sql.array(*slices).alias("slices"))


def _trend(slices: Column) -> Column:
    def total(start: int) -> Column:
        quarter = sql.slice(slices, start, SLICES // 4)
        return sql.aggregate(quarter, sql.lit(0).cast("bigint"), lambda so_far, one: so_far + one)

    last, before = total(SLICES - SLICES // 4 + 1), total(SLICES // 2 + 1)
    return (
        sql.when((last == 0) & (before == 0), "over")
        .when(last > before * 1.5, "rising")
        .when(last * 1.5 < before, "falling")
        .otherwise("steady")
    )


# -- the summary and the page -----------------------------------------------------------------------------------------


def _summary(found: DataFrame, page: Path) -> Summary:
    [sums] = found.agg(sql.sum("deaths").alias("deaths"), sql.sum("dead").alias("dead")).collect()
    shown = ["group", "queue", "dead", "deaths", "trend", "reason", "error", "shape"]
    rows = found.orderBy(sql.desc("dead"), sql.desc("deaths"), "group").select(*shown).limit(SHOWN_MAX).collect()
    facts: dict[str, object] = {
        "pipeline": "triage",
        "groups": found.count(),
        "deaths": sums["deaths"] or 0,
        "dead": sums["dead"] or 0,
        "report": str(page),
    }
    return Summary(facts, [row.asDict() for row in rows])


def _page(found: DataFrame, place: str) -> str:
    rows = found.orderBy(sql.desc("dead"), sql.desc("deaths"), "group").limit(REPORTED_MAX).collect()
    return page_of([row.asDict() for row in rows], group_count=found.count(), place=place)


def page_of(rows: list[dict[str, Any]], *, group_count: int, place: str) -> str:
    """The page of these groups. What may be long, errors, bodies and ids, stands below the row it belongs to."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    headings = ["group", "queue", "dead", "deaths", "trend", "when", "reason", "first", "last"]
    table = report.table(headings, [_line(row) for row in rows], [_below(row) for row in rows])
    facts = {
        "groups": group_count,
        "dead": sum(row["dead"] for row in rows),
        "deaths": sum(row["deaths"] for row in rows),
    }
    subtitle = (
        f"From {place}; times in UTC. Redrive a group with: smista pipeline redrive FOLDER --group GROUP. Made {made}."
    )
    return report.page("Smista dead letters", subtitle, [report.facts(facts), report.section("Groups", table)])


def _line(row: dict[str, Any]) -> list[object]:
    return [
        report.code(row["group"]),
        row["queue"],
        row["dead"],
        row["deaths"],
        row["trend"],
        report.sparkline(row["slices"]),
        row["reason"],
        row["first_at"],
        row["last_at"],
    ]


def _below(row: dict[str, Any]) -> dict[str, object]:
    return {
        "error": report.code(row["last_error"] or row["error"]),
        "body": report.code(row["shape"]),
        "ids": report.code(" ".join(row["samples"])),
    }


if __name__ == "__main__":
    main(triage)
