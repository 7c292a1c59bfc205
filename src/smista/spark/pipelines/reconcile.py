"""Does everything that was published have an end, or is it still there?

    published = acknowledged + expired + removed + purged + dead + live

holds over all queues; in one queue, messages also arrive from others and leave for them. Every message is followed row
by row, so what does not add up is not a difference of two sums but a list of messages, each with what is wrong:

| fault | meaning |
|---|---|
| row twice | the same row of the log came twice: an archive was written twice |
| began twice | the message entered its queue twice under one sequence |
| never began | it was delivered or ended, and nothing says that it had entered |
| ended twice | it was acknowledged, expired, removed or moved more than once |
| seen after its end | it was delivered, or came back, after it had ended |
| purge miscounted | a purge says that it took more or fewer messages than were there |
| live differs | the broker has more or fewer messages in the queue than the log leaves there |

Messages that entered before the first row we have are counted as `earlier` and not as faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from smista.spark.pipelines import functions as sql
from smista.spark.pipelines import lifecycle
from smista.spark.pipelines.command import ArchiveFolder, Queues, Since, Until, main, pipeline, source
from smista.spark.pipelines.rows import LIFE
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary
from smista.spark.pipelines.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHOWN_MAX = 20
FATES = ["acknowledged", "expired", "removed", "purged", "dead", "live"]


@pipeline
def reconcile(
    run: Run,
    *,
    archive: ArchiveFolder = None,
    queue: Queues = None,
    since: Since = None,
    until: Until = None,
    to: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write the whole list of faults there, as Parquet.")
    ] = None,
    is_live: Annotated[
        bool | None,
        typer.Option("--live/--no-live", help="Compare with what the broker has now; if the log itself is read."),
    ] = None,
) -> Summary:
    """Follow every message from its publish to its end, and list what does not add up."""
    rows_from = source(archive, queue, since, until)
    rows_from.check_queues(run)
    compares = is_live if is_live is not None else archive is None and until is None

    def once() -> Summary:
        before = live_now(run) if compares else {}
        rows = rows_from.rows(run, columns=LIFE)
        stays = rows_from.only(followed(rows)).persist()
        try:
            balance = {(row.namespace, row.queue): row.asDict() for row in balances(stays).collect()}
            after = live_now(run) if compares else {}
            still = {name: count for name, count in after.items() if before.get(name) == count}
            found = rows_from.only(faults(rows, stays))
            if compares:
                found = found.unionByName(_differences(run, balance, still))
            if to is not None:
                Table(to).replace(found)
            count = found.count()
            shown = [row.asDict() for row in found.orderBy("queue", "sequence").limit(SHOWN_MAX).collect()]
        finally:
            stays.unpersist()
        return _summary(balance, count, shown, compared=len(still) if compares else None, busy=len(after) - len(still))

    return run.repeat(once)


def followed(rows: DataFrame) -> DataFrame:
    """Every stay, with the `fate` of its message so far: one of `FATES`, or `moved` where it goes on elsewhere."""
    stays = lifecycle.with_purges(lifecycle.stays(rows), lifecycle.purges(rows))
    end = sql.col("end")
    is_dead = sql.col("is_parked") | (sql.col("began_by") == "dead_lettered")
    fate = (
        sql.when(end.isin("dead_lettered", "moved"), "moved")
        .when(end.isin("purged", "deleted"), "purged")
        .when(end.isNotNull(), end)
        .when(sql.coalesce(is_dead, sql.lit(False)), "dead")
        .otherwise("live")
    )
    return stays.withColumn("fate", fate)


def balances(stays: DataFrame) -> DataFrame:
    """For each queue: what came in, and what became of it."""
    fate = sql.col("fate")
    return (
        stays.groupBy("namespace", "queue")
        .agg(
            sql.count_if(sql.col("began_by") == "enqueued").alias("published"),
            sql.count_if(sql.col("began_by") != "enqueued").alias("arrived"),
            sql.count_if("is_earlier").alias("earlier"),
            *(sql.count_if(fate == name).alias(name) for name in FATES),
            sql.count_if(fate == "moved").alias("moved"),
            sql.count_if(sql.col("deliveries") > 1).alias("redelivered"),
        )
        .orderBy("namespace", "queue")
    )


def faults(rows: DataFrame, stays: DataFrame) -> DataFrame:
    """What does not add up: one row for each, with the message where it is one."""
    wrong = sql.filter(
        sql.array(
            _fault("began twice", sql.col("beginnings") > 1),
            _fault("never began", (sql.col("beginnings") == 0) & ~sql.col("is_earlier")),
            _fault("ended twice", sql.col("ends") > 1),
            _fault(
                "seen after its end", sql.col("end_order").isNotNull() & (sql.col("last_order") > sql.col("end_order"))
            ),
        ),
        lambda fault: fault.isNotNull(),
    )
    detail = sql.format_string(
        "%d beginnings, %d ends, last %s", "beginnings", "ends", sql.coalesce("last_event", sql.lit("nothing"))
    )
    of_stays = stays.select(
        "namespace",
        "queue",
        "sequence",
        "message_id",
        sql.explode(wrong).alias("fault"),
        detail.alias("detail"),
        sql.col("first_at").alias("at"),
    )
    return of_stays.unionByName(_rows_twice(rows)).unionByName(_purges_miscounted(rows, stays))


def _fault(name: str, is_so: Column) -> Column:
    return sql.when(is_so, sql.lit(name))


def _rows_twice(rows: DataFrame) -> DataFrame:
    twice = rows.groupBy("shard", "position", "index").agg(
        sql.count(sql.lit(1)).alias("times"),
        sql.first(sql.struct("namespace", "queue", "sequence", "message_id", "kind", "at")).alias("row"),
    )
    return twice.where("times > 1").select(
        "row.namespace",
        "row.queue",
        "row.sequence",
        "row.message_id",
        sql.lit("row twice").alias("fault"),
        sql.format_string("%s, %d times at %d:%d.%d", "row.kind", "times", "shard", "position", "index").alias(
            "detail"
        ),
        "row.at",
    )


def _purges_miscounted(rows: DataFrame, stays: DataFrame) -> DataFrame:
    """A purge may have taken earlier messages, which the rows do not show: then it may count more than were seen."""
    place = lifecycle.PLACE
    taken = stays.where(sql.col("purge_order").isNotNull()).groupBy(*place, "purge_order")
    seen = taken.agg(sql.count(sql.lit(1)).alias("seen"))
    # Where rows begin in the middle of the log, or of a queue's life, there may have been messages before.
    earlier = stays.groupBy(*place).agg((sql.count_if("is_earlier") > 0).alias("has_earlier"))
    first = rows.groupBy("shard").agg((sql.min("position") > 1).alias("is_cut"))
    counted = (
        lifecycle.purges(rows)
        .where(sql.col("purge_count").isNotNull())
        .join(seen, [*place, "purge_order"], "left")
        .join(earlier, place, "left")
        .join(first, "shard")
        .withColumn("seen", sql.coalesce("seen", sql.lit(0)))
    )
    may_be_more = sql.coalesce("has_earlier", sql.lit(True)) | sql.col("is_cut")
    is_wrong = (sql.col("seen") > sql.col("purge_count")) | ((sql.col("seen") < sql.col("purge_count")) & ~may_be_more)
    return counted.where(is_wrong).select(
        "namespace",
        "queue",
        sql.lit(None).cast("bigint").alias("sequence"),
        sql.lit(None).cast("string").alias("message_id"),
        sql.lit("purge miscounted").alias("fault"),
        sql.format_string("it says %d, there were %d", "purge_count", "seen").alias("detail"),
        sql.col("purge_at").alias("at"),
    )


# -- what the broker has ----------------------------------------------------------------------------------------------


def live_now(run: Run) -> dict[tuple[str, str], int]:
    """How many messages each queue has, dead ones among them."""
    with run.client() as client:
        return {(stats.namespace, stats.queue): stats.depth + stats.dead for stats in client.all_stats()}


def _differences(
    run: Run, balance: dict[tuple[str, str], dict[str, int]], live: dict[tuple[str, str], int]
) -> DataFrame:
    """Queues in which the broker has not as many messages as the log leaves there.

    Only queues that did not change meanwhile are compared. Where the log no longer reaches back to a queue's first
    message, the broker may have more.
    """
    wrong = []
    for name, row in balance.items():
        left = row["live"] + row["dead"]
        if name in live and (live[name] < left or (live[name] > left and not row["earlier"])):
            detail = f"the broker has {live[name]}, the log leaves {left}"
            wrong.append((*name, None, None, "live differs", detail, None))
    columns = (
        "namespace string, queue string, sequence bigint, message_id string, fault string, detail string, at timestamp"
    )
    return run.spark.createDataFrame(wrong, columns)


def _summary(
    balance: dict[tuple[str, str], dict[str, int]],
    count: int,
    shown: list[dict[str, object]],
    *,
    compared: int | None,
    busy: int,
) -> Summary:
    names = ["published", *FATES, "earlier", "redelivered"]
    total = {name: sum(row[name] for row in balance.values()) for name in names}
    facts: dict[str, object] = {"pipeline": "reconcile", "queues": len(balance), **total, "faults": count}
    notes = []
    if compared is not None:
        facts["queues_compared"] = compared
        if busy:
            notes.append(f"{busy} queues changed meanwhile and were not compared with the broker.")
    if count > len(shown):
        notes.append(f"{count - len(shown):,} more faults; --to FOLDER writes them all.")
    notes.append("Everything adds up." if not count else "It does not add up.")
    rows = shown or [
        {name: row[name] for name in ("queue", "published", "arrived", *FATES, "moved")} for row in balance.values()
    ]
    return Summary(facts, rows[:SHOWN_MAX], is_good=not count, notes=notes)


if __name__ == "__main__":
    main(reconcile)
