"""What needs somebody's attention, as messages in a queue.

| alert | raised when |
|---|---|
| `stuck_consumer` | a consumer holds messages, and has settled none for `--stuck-after` |
| `growing_backlog` | each of the last `--windows` minutes left more in the queue, `--growth` or more in all |
| `rising_wait` | the 95th percentile of waiting times in the last `--windows` minutes is over `--wait`, and over |
| | `--factor` times that of the hour before |

A message is a JSON object: `alert`, `namespace`, `queue`, `consumer`, `since`, `value`, `threshold`, `raised_at`, and
`sentence`, which describes it. The same alert for the same queue and consumer is raised once in `--repeat`; what was
raised is kept in a table in `--state`, written before it is published, under a number that the broker takes once.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smista.command_line import duration, past_ms, switch
from smista.spark.errors import WrongOption
from smista.spark.pipelines import functions as sql
from smista.spark.pipelines import lifecycle
from smista.spark.pipelines.command import ArchiveFolder, Queues, main, pipeline
from smista.spark.pipelines.folder import alone_in, local_path, write_whole
from smista.spark.pipelines.metrics import QUEUE, backlogs, with_times
from smista.spark.pipelines.rows import LIFE, Source
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary
from smista.spark.pipelines.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_S = 60
HOUR_S = 3_600
RAISED = ["alert", "namespace", "queue", "consumer", "since", "value", "threshold", "sentence"]
SHOWN_MAX = 20
SAME = ["alert", "namespace", "queue", "consumer"]


@pipeline
def alerts(
    run: Run,
    *,
    to: Annotated[str, typer.Option(metavar="QUEUE", help="Publish alerts into this queue.")],
    state: Annotated[str, typer.Option(metavar="FOLDER", help="Where it is kept what was raised.")],
    archive: ArchiveFolder = None,
    queue: Queues = None,
    stuck_after: Annotated[int, duration("--stuck-after", help="Held so long, none settled.", shown="5m")] = 300_000,
    windows: Annotated[int, typer.Option(metavar="COUNT", min=2, help="So many minutes in a row.")] = 5,
    growth: Annotated[int, typer.Option(metavar="COUNT", min=1, help="A backlog grew by so many.")] = 100,
    wait: Annotated[int, duration("--wait", help="Shorter waits are never an alert.", shown="1s")] = 1_000,
    factor: Annotated[
        float, typer.Option(metavar="NUMBER", min=1, help="So many times the wait of the hour before.")
    ] = 2.0,
    repeat: Annotated[int, duration("--repeat", help="Raise the same again after so long.", shown="1h")] = 3_600_000,
    lookback: Annotated[int, duration("--lookback", help="Look at so much of the past.", shown="1d")] = 86_400_000,
    at: Annotated[
        int | None, typer.Option("--at", parser=past_ms, metavar="INSTANT", help="As if it were then, not now.")
    ] = None,
    dry_run: Annotated[bool, switch("--dry-run", help="Print what is found, and publish nothing.")] = False,
) -> Summary:
    """Look for stuck consumers, growing backlogs and rising waiting times, and publish what is found."""
    if lookback < 2 * HOUR_S * 1000:
        raise WrongOption("--lookback has to be 2h at least: waits are compared with the hour before.")
    memory = Memory(local_path(state))
    Source(archive, tuple(queue or ())).check_queues(run)
    if not dry_run:
        run.must_find({"queue": to})

    def once() -> Summary:
        now = datetime.now(UTC) if at is None else datetime.fromtimestamp(at / 1000, UTC)
        began_ms = round((now - timedelta(milliseconds=lookback)).timestamp() * 1000)
        rows_from = Source(archive, tuple(queue or ()), began_ms, None if at is None else at)
        rows = rows_from.rows(run, columns=LIFE).where(sql.col("queue") != to)
        stays = rows_from.only(lifecycle.with_purges(lifecycle.stays(rows), lifecycle.purges(rows))).persist()
        try:
            found = (
                stuck_consumers(stays, now, stuck_after)
                .unionByName(growing_backlogs(stays, now, windows, growth))
                .unionByName(
                    rising_waits(with_times(rows_from.only(lifecycle.events(rows))), now, windows, wait, factor)
                )
            )
            return memory.raise_new(run, found, now, to, repeat, dry_run=dry_run)
        finally:
            stays.unpersist()

    with alone_in(memory.path, "looking for alerts"):
        return run.repeat(once)


# -- what is looked for -----------------------------------------------------------------------------------------------


def stuck_consumers(stays: DataFrame, now: datetime, after_ms: int) -> DataFrame:
    """Consumers that hold messages and have settled none for so long."""
    is_held = sql.col("end").isNull() & sql.col("last_event").isin("delivered", "extended")
    by_consumer = stays.where(sql.col("delivered_at").isNotNull()).groupBy(
        *QUEUE, sql.coalesce("consumer", sql.lit("")).alias("consumer")
    )
    settled = sql.when(~is_held, sql.col("last_at"))
    found = by_consumer.agg(
        sql.count_if(is_held).alias("held"),
        # Silent since it last settled something; if it never did, since it got the first that it still has.
        sql.greatest(sql.max(settled), sql.min(sql.when(is_held, sql.col("delivered_at")))).alias("since"),
    ).where("held > 0")
    silent_ms = _ms(now) - sql.unix_millis("since")
    return found.where(silent_ms >= after_ms).select(
        sql.lit("stuck_consumer").alias("alert"),
        *QUEUE,
        "consumer",
        "since",
        (silent_ms / 1000).alias("value"),
        sql.lit(after_ms / 1000).alias("threshold"),
        sql.format_string(
            "Consumer '%s' of queue %s holds %d messages and has settled none for %.0f s.",
            "consumer",
            "queue",
            "held",
            silent_ms / 1000,
        ).alias("sentence"),
    )


def growing_backlogs(stays: DataFrame, now: datetime, windows: int, growth: int) -> DataFrame:
    """Queues in which there was more at the end of each of the last minutes than of the one before."""
    from pyspark.sql import Window

    last = round(now.timestamp()) // MINUTE_S - 1  # the last minute that is over
    before = Window.partitionBy(*QUEUE).orderBy("window")
    # Minutes without a row are those in which nothing was there; or nothing happened, and then it did not grow.
    recent = (
        backlogs(stays, MINUTE_S)
        .where((sql.col("window") <= last) & (sql.col("window") >= last - windows))
        .withColumn("grew_by", sql.col("backlog") - sql.lag("backlog", 1, 0).over(before))
    )
    counted = sql.col("window") > last - windows
    found = recent.groupBy(*QUEUE).agg(
        sql.count_if(counted & (sql.col("grew_by") > 0)).alias("minutes"),
        sql.sum(sql.when(counted, sql.col("grew_by"))).alias("value"),
        sql.max_by("backlog", "window").alias("backlog"),
    )
    return found.where((sql.col("minutes") >= windows) & (sql.col("value") >= growth)).select(
        sql.lit("growing_backlog").alias("alert"),
        *QUEUE,
        sql.lit("").alias("consumer"),
        sql.timestamp_seconds(sql.lit((last - windows + 1) * MINUTE_S)).alias("since"),
        sql.col("value").cast("double").alias("value"),
        sql.lit(float(growth)).alias("threshold"),
        sql.format_string(
            f"The backlog of queue %s has grown for {windows} minutes, by %d to %d messages.",
            "queue",
            "value",
            "backlog",
        ).alias("sentence"),
    )


def rising_waits(steps: DataFrame, now: datetime, windows: int, least_ms: int, factor: float) -> DataFrame:
    """Queues that messages wait in for longer than they did in the hour before."""
    edge_ms = _now_ms(now) - windows * MINUTE_S * 1000
    at_ms = sql.unix_millis("at")
    is_recent = at_ms >= edge_ms
    is_before = (at_ms < edge_ms) & (at_ms >= edge_ms - HOUR_S * 1000)

    def p95(of: Column) -> Column:
        return sql.percentile_approx(sql.when(of, sql.col("wait_ms")), sql.lit(0.95), sql.lit(1000))

    found = steps.groupBy(*QUEUE).agg(p95(is_recent).alias("recent"), p95(is_before).alias("before"))
    limit = sql.greatest(sql.col("before") * factor, sql.lit(float(least_ms)))
    return found.where(sql.col("recent") > limit).select(
        sql.lit("rising_wait").alias("alert"),
        *QUEUE,
        sql.lit("").alias("consumer"),
        sql.timestamp_millis(sql.lit(edge_ms)).alias("since"),
        (sql.col("recent") / 1000).alias("value"),
        (limit / 1000).alias("threshold"),
        sql.format_string(
            "Messages wait %.1f s in queue %s (95th percentile), after %s in the hour before.",
            sql.col("recent") / 1000,
            "queue",
            sql.when(sql.col("before").isNull(), "none").otherwise(
                sql.format_string("%.1f s", sql.col("before") / 1000)
            ),
        ).alias("sentence"),
    )


def _now_ms(now: datetime) -> int:
    return round(now.timestamp() * 1000)


def _ms(now: datetime) -> Column:
    return sql.lit(_now_ms(now))


# -- what was raised already ------------------------------------------------------------------------------------------


class Memory:
    """What was raised: a table, and beside it the batch that may not be published yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raised = Table(path / "raised")
        self._job = path / "job.json"
        self._last = path / "published.json"

    def raise_new(
        self, run: Run, found: DataFrame, now: datetime, to: str, repeat_ms: int, *, dry_run: bool
    ) -> Summary:
        """Publish what is found and was not raised lately."""
        at_ms = _now_ms(now)
        number = 1
        known = self._raised.read(run.spark) if self._raised.exists else None
        if known is not None:
            [last] = known.agg(sql.max("number").alias("number")).collect()
            number = (last["number"] or 0) + 1
            if not dry_run and self._published() < number - 1:
                self._publish(run, to, number - 1)  # which a killed run has not done, or not noted
            lately = known.where(sql.unix_millis("raised_at") > at_ms - repeat_ms).select(*SAME)
            found = found.join(lately, SAME, "left_anti")
        stamped = found.select(*RAISED).withColumn("raised_at", sql.timestamp_millis(sql.lit(at_ms)))
        new = stamped.withColumn("number", sql.lit(number)).localCheckpoint()
        count = new.count()
        if count and not dry_run:
            if known is not None:
                # The last batch stays, whatever its age: numbers go on from it.
                is_needed = (sql.unix_millis("raised_at") > at_ms - repeat_ms) | (sql.col("number") == number - 1)
                self._raised.replace(known.where(is_needed).unionByName(new))
            else:
                self._raised.replace(new)
            self._publish(run, to, number)
        shown = new.select("alert", "queue", "consumer", "sentence").orderBy("sentence").limit(SHOWN_MAX)
        rows = [row.asDict() for row in shown.collect()]
        for row in rows:
            run.on_progress(row["sentence"])
        return Summary({"pipeline": "alerts", "raised": count, "queue": to, "dry_run": dry_run}, rows)

    def _publish(self, run: Run, to: str, number: int) -> None:
        raised = self._raised.read(run.spark).where(sql.col("number") == number)
        body = sql.to_json(sql.struct(*RAISED, "raised_at"))
        identity = sql.sha2(sql.concat_ws("\0", *SAME, sql.col("raised_at").cast("string")), 256)
        messages = raised.select(
            body.alias("body"), identity.alias("id"), sql.lit("application/json").alias("content_type")
        )
        options = {**run.broker_options, "queue": to, "jobId": self._name(), "batchId": str(number)}
        messages.write.format("smista").mode("append").options(**options).save()
        # The broker takes a number once, but forgets in time which it has taken.
        write_whole(self._last, json.dumps({"number": number}).encode())

    def _published(self) -> int:
        """The number of the last batch that is known to be published."""
        if not self._last.exists():
            return 0
        number: int = json.loads(self._last.read_text())["number"]
        return number

    def _name(self) -> str:
        """Under which the broker knows this memory's batches."""
        if not self._job.exists():
            write_whole(self._job, json.dumps({"job": f"alerts-{uuid.uuid4().hex}"}).encode())
        name: str = json.loads(self._job.read_text())["job"]
        return name


if __name__ == "__main__":
    main(alerts)
