"""Rates, times and backlogs of every queue by minute, hour and day, as tables and as a page with plots.

| column | meaning |
|---|---|
| `published`, `arrived` | messages that entered: by a publish; moved here from another queue |
| `delivered`, `acknowledged`, `returned`, `expired`, `dead_lettered`, `removed` | what happened |
| `in_per_s`, `out_per_s` | entered, and acknowledged, per second |
| `wait_p50_ms`, ... | from being ready to being delivered, each delivery |
| `work_p50_ms`, ... | from the last delivery to its acknowledgement |
| `retry_rate` | failed deliveries by deliveries |
| `expiry_rate`, `dead_letter_rate` | by messages that entered |
| `sla_share` | of the acknowledged ones, the share that was done within `--sla` of being ready first |
| `backlog`, `oldest_age_s` | at the end of the window: messages neither done nor dead; age of the oldest |
| `late` | rows that were written more than a minute after others that are younger |

Windows are by the time at which something happened, not by when it was read, and every run counts all that the log or
the archive holds: what arrives late is counted where it belongs by the next run. Percentiles are exact to 1 in 10,000.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smista.command_line import duration
from smista.spark.pipelines import functions as sql
from smista.spark.pipelines import lifecycle, report
from smista.spark.pipelines.command import ArchiveFolder, Queues, Since, Until, main, pipeline, source
from smista.spark.pipelines.folder import local_path, write_whole
from smista.spark.pipelines.lifecycle import ARRIVED, PLACE, STAY
from smista.spark.pipelines.rows import LIFE, Source
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary
from smista.spark.pipelines.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GRAINS = {"minute": 60, "hour": 3_600, "day": 86_400}
"""Seconds of each window."""
COUNTED = ["delivered", "acknowledged", "returned", "expired", "dead_lettered", "removed"]
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ACCURACY = 10_000
LATE_S = 60
QUEUE = ["namespace", "queue"]
QUEUES_SHOWN = 12
POINTS_MAX = 400


@pipeline
def metrics(
    run: Run,
    *,
    to: Annotated[str, typer.Argument(metavar="FOLDER", help="Where the tables and report.html go.")],
    archive: ArchiveFolder = None,
    queue: Queues = None,
    since: Since = None,
    until: Until = None,
    sla: Annotated[int, duration("--sla", help="Within which a message should be done.", shown="1m")] = 60_000,
) -> Summary:
    """Count rates, waiting and processing times, failures and backlogs of every queue, and draw them."""
    place = local_path(to)
    rows_from = source(archive, queue, since, until)
    rows_from.check_queues(run)

    def once() -> Summary:
        rows = rows_from.rows(run, columns=LIFE)
        steps = with_times(rows_from.only(lifecycle.events(rows))).persist()
        stays = rows_from.only(lifecycle.with_purges(lifecycle.stays(rows), lifecycle.purges(rows))).persist()
        try:
            for grain, length_s in GRAINS.items():
                Table(place / grain).replace(windows(steps, stays, length_s, sla))
                run.on_progress(f"{grain}s are done")
        finally:
            steps.unpersist()
            stays.unpersist()
        page = place / "report.html"
        shown = Report(run, place, sla)
        write_whole(page, shown.page(rows_from).encode())
        return Summary({"pipeline": "metrics", "report": str(page), **shown.totals()})

    return run.repeat(once)


# -- steps ------------------------------------------------------------------------------------------------------------


def with_times(events: DataFrame) -> DataFrame:
    """The events with `wait_ms` of deliveries, `work_ms` and `total_ms` of acknowledgements, and `is_late`."""
    from pyspark.sql import Window

    life = Window.partitionBy(*STAY).orderBy("position", "index")
    before = life.rowsBetween(Window.unboundedPreceding, -1)
    event, at = sql.col("event"), sql.col("at")
    due = sql.when(event.isin(*lifecycle.WAITING), sql.coalesce("ready_at", "at"))
    begins = sql.when(event.isin(*lifecycle.BEGINNINGS), sql.coalesce("ready_at", "at"))
    delivered = sql.when(event == "delivered", at)
    arriving = Window.partitionBy(*PLACE).orderBy("position", "index")
    newest = sql.max("at").over(arriving.rowsBetween(Window.unboundedPreceding, -1))
    return (
        events.withColumn("due_at", sql.last(due, ignorenulls=True).over(before))
        .withColumn("held_at", sql.last(delivered, ignorenulls=True).over(before))
        .withColumn("first_due_at", sql.first(begins, ignorenulls=True).over(before))
        .withColumn("is_late", sql.coalesce(_ms(newest) - _ms(at) > LATE_S * 1000, sql.lit(False)))
        .withColumn("wait_ms", sql.when(event == "delivered", _until_then("due_at")))
        .withColumn("work_ms", sql.when(event == "acknowledged", _until_then("held_at")))
        .withColumn("total_ms", sql.when(event == "acknowledged", _until_then("first_due_at")))
        .select(*QUEUE, "at", "event", "reason", "wait_ms", "work_ms", "total_ms", "is_late")
    )


def _until_then(since: str) -> Column:
    # The broker's clock may be set back; nothing takes less than no time.
    return sql.greatest(_ms(sql.col("at")) - _ms(sql.col(since)), sql.lit(0))


def _ms(instant: Column) -> Column:
    return sql.unix_millis(instant)


# -- windows ----------------------------------------------------------------------------------------------------------


def windows(steps: DataFrame, stays: DataFrame, length_s: int, sla_ms: int) -> DataFrame:
    """One row for each queue and window in which something happened or was left."""
    joined = rates(steps, length_s, sla_ms).join(backlogs(stays, length_s), [*QUEUE, "window"], "full")
    return (
        joined.withColumn("at", sql.timestamp_seconds(sql.col("window") * length_s))
        .fillna(0, ["published", "arrived", *COUNTED, "in_per_s", "out_per_s", "late", "backlog", "oldest_age_s"])
        .drop("window")
        .orderBy(*QUEUE, "at")
    )


def _window(instant: str, length_s: int) -> Column:
    return sql.floor(_ms(sql.col(instant)) / (length_s * 1000))


def rates(steps: DataFrame, length_s: int, sla_ms: int) -> DataFrame:
    event = sql.col("event")
    entered = event.isin(*lifecycle.BEGINNINGS)
    failed = (event == "returned") & sql.col("reason").isin(*lifecycle.FAILED)
    in_time = sql.count_if(sql.col("total_ms") <= sla_ms) / sql.nullif(sql.count("total_ms"), sql.lit(0))
    quantiles = sql.array(*map(sql.lit, PERCENTILES.values()))
    grouped = steps.groupBy(*QUEUE, _window("at", length_s).alias("window")).agg(
        sql.count_if(event == "enqueued").alias("published"),
        sql.count_if(event == ARRIVED).alias("arrived"),
        *(sql.count_if(event == name).alias(name) for name in COUNTED),
        (sql.count_if(entered) / length_s).alias("in_per_s"),
        (sql.count_if(event == "acknowledged") / length_s).alias("out_per_s"),
        sql.percentile_approx("wait_ms", quantiles, ACCURACY).alias("wait"),
        sql.percentile_approx("work_ms", quantiles, ACCURACY).alias("work"),
        _share(failed, event == "delivered").alias("retry_rate"),
        _share(event == "expired", entered).alias("expiry_rate"),
        _share(event == "dead_lettered", entered).alias("dead_letter_rate"),
        in_time.alias("sla_share"),
        sql.count_if("is_late").alias("late"),
    )
    for measure in ("wait", "work"):
        for place, name in enumerate(PERCENTILES):
            grouped = grouped.withColumn(f"{measure}_{name}_ms", sql.get(measure, sql.lit(place)))
    return grouped.drop("wait", "work")


def _share(part: Column, whole: Column) -> Column:
    """Null where there is nothing to have a share of."""
    return sql.count_if(part) / sql.nullif(sql.count_if(whole), sql.lit(0))


def backlogs(stays: DataFrame, length_s: int) -> DataFrame:
    """How many messages are there at the end of each window, and how old the oldest of them is."""
    from pyspark.sql import Window

    there = _presences(stays, length_s)
    left = sql.when(sql.col("until").isNotNull(), sql.array(_change("since", 1), _change("until", -1)))
    changes = there.select(*QUEUE, sql.explode(sql.coalesce(left, sql.array(_change("since", 1)))).alias("change"))
    changes = changes.groupBy(*QUEUE, sql.col("change.window").alias("window")).agg(sql.sum("change.by").alias("by"))
    oldest = oldest_ages(there, length_s)
    so_far = Window.partitionBy(*QUEUE).orderBy("window").rowsBetween(Window.unboundedPreceding, 0)
    return (
        changes.join(oldest, [*QUEUE, "window"], "full")
        .withColumn("backlog", sql.sum(sql.coalesce("by", sql.lit(0))).over(so_far))
        .select(*QUEUE, "window", "backlog", "oldest_age_s")
    )


def _presences(stays: DataFrame, length_s: int) -> DataFrame:
    """From the window `since` on, and up to the end of the one before `until`, a message is in its queue's backlog.

    Those whose beginning is not known are there from the first row on. `horizon` is the window after the last.
    """
    edges = stays.agg(sql.min("first_at").alias("first_row_at"), sql.max(sql.col("last_at")).alias("last_row_at"))
    return (
        stays.crossJoin(sql.broadcast(edges))
        .withColumn("began_at", sql.coalesce("began_at", "first_row_at"))
        .withColumn("done_at", sql.coalesce("ended_at", "parked_at"))
        .select(
            *QUEUE,
            "began_at",
            _window("began_at", length_s).alias("since"),
            _window("done_at", length_s).alias("until"),
            (_window("last_row_at", length_s) + 1).alias("horizon"),
            "last_row_at",
        )
    )


def _change(window: str, by: int) -> Column:
    return sql.struct(sql.col(window).alias("window"), sql.lit(by).alias("by"))


def oldest_ages(there: DataFrame, length_s: int) -> DataFrame:
    """For each window at whose end something is left: the age of the oldest.

    Of messages that come and go in the same windows only the oldest matters, and it matters only from when all that
    began before it are gone. So each is the oldest in a run of windows of its own, and the runs do not overlap: there
    are never more rows than windows, however long the backlog.
    """
    from pyspark.sql import Window

    distinct = there.groupBy(*QUEUE, "since", sql.coalesce("until", "horizon").alias("until")).agg(
        sql.min("began_at").alias("began_at"), sql.max("last_row_at").alias("last_row_at")
    )
    earlier = Window.partitionBy(*QUEUE).orderBy("began_at", "until").rowsBetween(Window.unboundedPreceding, -1)
    begins = sql.greatest("since", sql.coalesce(sql.max("until").over(earlier), sql.col("since")))
    alone = distinct.withColumn("begins", begins).where(sql.col("begins") < sql.col("until"))
    ends_ms = sql.least((sql.col("window") + 1) * length_s * 1000, _ms(sql.col("last_row_at")))
    return alone.select(
        *QUEUE,
        "began_at",
        "last_row_at",
        sql.explode(sql.sequence("begins", sql.col("until") - 1)).alias("window"),
    ).select(
        *QUEUE,
        "window",
        (sql.greatest(ends_ms - _ms(sql.col("began_at")), sql.lit(0)) / 1000).alias("oldest_age_s"),
    )


# -- the report -------------------------------------------------------------------------------------------------------


class Report:
    """The tables of a folder, as far as a page shows them: the busiest queues, at most some hundred windows of each."""

    def __init__(self, run: Run, place: Any, sla_ms: int) -> None:
        self._tables = {grain: Table(place / grain).read(run.spark) for grain in GRAINS}
        self._sla_ms = sla_ms
        counts = [sql.sum(name).alias(name) for name in ("published", "arrived", *COUNTED, "late")]
        busiest = (
            self._tables["day"]
            .groupBy(*QUEUE)
            .agg(*counts, sql.max("at").alias("last_at"), sql.max_by("backlog", "at").alias("backlog"))
        )
        self._count = busiest.count()
        ranked = busiest.orderBy(sql.desc(sql.col("published") + sql.col("arrived")), *QUEUE)
        self._queues = [row.asDict() for row in ranked.limit(QUEUES_SHOWN).collect()]
        self._all = busiest.agg(*(sql.sum(name).alias(name) for name in ("published", *COUNTED, "late", "backlog")))

    def totals(self) -> dict[str, Any]:
        [sums] = self._all.collect()
        return {"queues": self._count, **{name: count or 0 for name, count in sums.asDict().items()}}

    def page(self, rows_from: Source) -> str:
        grain = self._grain()
        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        sla = f"done in time means within {self._sla_ms / 1000:g} s"
        subtitle = f"From {rows_from}, by {grain}; times in UTC; {sla}. Made {made}."
        parts = [report.facts({name.replace("_", " "): value for name, value in self.totals().items()})]
        parts += [self._section(queue, grain) for queue in self._queues]
        if self._count > len(self._queues):
            parts.append(f'<p class="note">{self._count - len(self._queues)} more queues are in the tables.</p>')
        parts.append(report.section("By day", self._days()))
        return report.page("Smista metrics", subtitle, parts)

    def _grain(self) -> str:
        """The finest in which all of it can be drawn."""
        [edges] = self._tables["minute"].agg(sql.min("at").alias("first"), sql.max("at").alias("last")).collect()
        if edges["first"] is None:
            return "minute"
        span_s = (edges["last"] - edges["first"]).total_seconds()
        return next((grain for grain, length_s in GRAINS.items() if span_s / length_s <= POINTS_MAX), "day")

    def _section(self, queue: dict[str, Any], grain: str) -> str:
        table = self._tables[grain]
        mine = table.where((table.namespace == queue["namespace"]) & (table.queue == queue["queue"]))
        newest = mine.orderBy(sql.desc("at")).limit(POINTS_MAX).orderBy("at")
        rows = [row.asDict() for row in newest.withColumn("at", sql.unix_timestamp("at")).collect()]
        name = queue["queue"] if queue["namespace"] == "/" else f"{queue['namespace']} {queue['queue']}"
        facts = {
            "published": queue["published"],
            "arrived": queue["arrived"],
            "acknowledged": queue["acknowledged"],
            "came back": queue["returned"],
            "dead letters": queue["dead_lettered"],
            "backlog": queue["backlog"],
        }
        return report.section(name, report.facts(facts), report.charts(*_charts(rows, GRAINS[grain])))

    def _days(self) -> str:
        names = [
            *QUEUE,
            "published",
            "acknowledged",
            "returned",
            "expired",
            "dead_lettered",
            "wait_p95_ms",
            "work_p95_ms",
        ]
        names += ["sla_share", "backlog"]
        days = self._tables["day"].orderBy(sql.desc("at"), *QUEUE).limit(POINTS_MAX)
        rows = days.select(sql.date_format("at", "yyyy-MM-dd").alias("day"), *names).collect()
        return report.table(["day", *(name.replace("_", " ") for name in names)], [list(row) for row in rows])


def _charts(rows: list[dict[str, Any]], length_s: int) -> list[str]:
    def series(name: str, column: str, factor: float = 1.0) -> report.Series:
        points = [(row["at"], None if row[column] is None else row[column] * factor) for row in rows]
        return report.Series(name, _with_gaps(points, length_s, 0.0 if column in ZERO_BETWEEN else None))

    def drawn(title: str, *lines: report.Series, unit: str = "", is_stacked: bool = False) -> str:
        return report.chart(title, lines, unit=unit, is_stacked=is_stacked, width_s=length_s)

    return [
        drawn("Messages per second", series("in", "in_per_s"), series("out", "out_per_s"), unit="/s"),
        drawn("Backlog", series("messages", "backlog")),
        drawn("Waiting time", *(series(name, f"wait_{name}_ms", 0.001) for name in PERCENTILES), unit=" s"),
        drawn("Processing time", *(series(name, f"work_{name}_ms", 0.001) for name in PERCENTILES), unit=" s"),
        drawn("Done in time", series("in time", "sla_share", 100.0), unit=" %"),
        drawn("Age of the oldest message", series("oldest", "oldest_age_s"), unit=" s"),
        drawn(
            "Failures",
            series("came back", "returned"),
            series("expired", "expired"),
            series("dead letters", "dead_lettered"),
            is_stacked=True,
        ),
    ]


ZERO_BETWEEN = ("in_per_s", "out_per_s", "backlog", "oldest_age_s")
"""Columns that are 0 where there is no row; the others are not known there."""


def _with_gaps(
    points: list[tuple[float, float | None]], length_s: int, between: float | None
) -> list[tuple[float, float | None]]:
    """With a point where windows are left out, so that no line is drawn across."""
    filled: list[tuple[float, float | None]] = []
    for at, value in points:
        if filled and at - filled[-1][0] > length_s:
            filled.append((filled[-1][0] + length_s, between))
            filled.append((at - length_s, between))
        filled.append((at, value))
    return filled


if __name__ == "__main__":
    main(metrics)
