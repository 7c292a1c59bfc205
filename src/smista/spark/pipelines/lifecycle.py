"""What happened to each message, put together from the rows of the log.

A *stay* is the time a message spends in one queue, named by its shard, namespace, queue and sequence. It begins when
the message is published there or moved there, and ends when it is acknowledged, expires, is removed, purged, deleted
with its queue, or moved on:

    enqueued ────────▶ stay ────────▶ acknowledged | expired | removed | purged | deleted
                         │
                         └ dead_lettered, moved ──▶ a stay in the target queue

A row that moves a message stands for two events: the end of one stay and the beginning of another. A dead letter
that is parked stays where it is: `dead_lettered` without a target ends nothing. One that moves to a queue that is not
durable has a target sequence and no target queue; there the log loses sight of it. A purge is one row with a count;
whom it took follows from who was there below its `target_sequence`.

Rows of a stay whose beginning is not among them are recognised by their sequence, which only grows: below the
first beginning of its queue, the stay began before the rows do (`is_earlier`); above it, something is missing.

Positions and sequences have an order within a shard only. A queue lies in one shard, but one that is declared again
under the name of a deleted one may lie in another: so whatever compares them keeps shards apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smista.spark.pipelines import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE = ["shard", "namespace", "queue"]
STAY = [*PLACE, "sequence"]
ARRIVED = "arrived"
"""The event that a move is for the queue it leads to."""
BEGINNINGS = ("enqueued", ARRIVED)
WAITING = ("enqueued", ARRIVED, "returned", "rescheduled", "ready")
"""After these a message is ready, or will be at `ready_at`."""
WHOLE_QUEUE = ("purged", "deleted")
DOUBLINGS_MAX = 20
FAILED = ("nacked", "timed_out", "vanished")
"""Reasons of `returned` that are failures; `released` is none."""


def events(rows: DataFrame) -> DataFrame:
    """The rows with each move twice: as what it is, and as an arrival in the target queue."""
    here = sql.struct("queue", "sequence", sql.col("kind").alias("event"), sql.lit(None).cast("string").alias("via"))
    there = sql.struct(
        sql.col("target_queue").alias("queue"),
        sql.col("target_sequence").alias("sequence"),
        sql.lit(ARRIVED).alias("event"),
        sql.col("kind").alias("via"),
    )
    steps = sql.when(is_move(), sql.array(here, there)).otherwise(sql.array(here))
    rest = [name for name in rows.columns if name not in ("queue", "sequence", "kind")]
    return (
        rows.where(~sql.col("kind").isin(*WHOLE_QUEUE))
        .select(*rest, sql.explode(steps).alias("step"))
        .select(*rest, "step.queue", "step.sequence", "step.event", "step.via")
    )


def is_move() -> Column:
    """The message goes on in another queue of the log."""
    return sql.col("kind").isin("dead_lettered", "moved") & sql.col("target_queue").isNotNull()


def stays(rows: DataFrame) -> DataFrame:
    """One row for each stay: how it began and ended, how often it was delivered and came back.

    `end` is null while it lasts. Purges and deletions are not in it yet, see `with_purges`.
    """
    event, order = sql.col("event"), sql.struct("position", "index")
    begins = event.isin(*BEGINNINGS)
    goes_on = event.isin("dead_lettered", "moved") & sql.col("target_sequence").isNotNull()
    ends = event.isin("acknowledged", "expired", "removed") | goes_on
    parks = (event == "dead_lettered") & sql.col("target_sequence").isNull()
    waits = event.isin(*WAITING)
    found = (
        events(rows)
        .groupBy(*STAY)
        .agg(
            sql.max(sql.when(event == "enqueued", sql.col("message_id"))).alias("message_id"),
            sql.count_if(begins).alias("beginnings"),
            sql.min(sql.when(begins, sql.col("at"))).alias("began_at"),
            sql.min(sql.when(begins, sql.coalesce("via", "event"))).alias("began_by"),
            sql.min(sql.when(begins, sql.coalesce("ready_at", "at"))).alias("ready_at"),
            sql.count_if(ends).alias("ends"),
            sql.max(sql.when(ends, sql.col("at"))).alias("ended_at"),
            sql.max_by(event, sql.when(ends, order)).alias("end"),
            sql.max_by("reason", sql.when(ends, order)).alias("end_reason"),
            sql.max(sql.when(ends, order)).alias("end_order"),
            (sql.count_if(parks) > 0).alias("is_parked"),
            sql.max(sql.when(parks, sql.col("at"))).alias("parked_at"),
            sql.count_if(event == "delivered").alias("deliveries"),
            sql.count_if((event == "returned") & sql.col("reason").isin(*FAILED)).alias("failures"),
            sql.max_by("consumer", sql.when(event == "delivered", order)).alias("consumer"),
            sql.max(sql.when(event == "delivered", sql.col("at"))).alias("delivered_at"),
            sql.max_by(sql.coalesce("ready_at", "at"), sql.when(waits, order)).alias("due_at"),
            sql.min("at").alias("first_at"),
            sql.max("at").alias("last_at"),
            sql.max(order).alias("last_order"),
            sql.max_by(event, order).alias("last_event"),
        )
    )
    return _with_earlier(found)


def _with_earlier(found: DataFrame) -> DataFrame:
    """With `is_earlier`: the stay began before the first row we have of its queue."""
    first = found.groupBy(*PLACE).agg(
        sql.min(sql.when(sql.col("beginnings") > 0, sql.col("sequence"))).alias("first_sequence")
    )
    unknown = (sql.col("beginnings") == 0) & (
        sql.col("first_sequence").isNull() | (sql.col("sequence") < sql.col("first_sequence"))
    )
    return found.join(sql.broadcast(first), PLACE).withColumn("is_earlier", unknown).drop("first_sequence")


def purges(rows: DataFrame) -> DataFrame:
    """What emptied whole queues: when, below which sequence, whether of ready messages only, how many it counted."""
    return rows.where(sql.col("kind").isin(*WHOLE_QUEUE)).select(
        *PLACE,
        sql.struct("position", "index").alias("purge_order"),
        sql.col("at").alias("purge_at"),
        sql.coalesce("target_sequence", sql.lit((1 << 63) - 1)).alias("cut"),
        sql.col("kind").alias("purge_kind"),
        (sql.coalesce("reason", sql.lit("all")) == "ready").alias("is_of_ready"),
        sql.col("count").alias("purge_count"),
    )


def with_purges(found: DataFrame, emptied: DataFrame) -> DataFrame:
    """The stays, those that last ended by the purge or deletion that reached them; `purge_order` says by which."""
    is_ready = sql.col("last_event").isin(*WAITING) & ~sql.col("is_parked") & (sql.col("due_at") <= sql.col("purge_at"))
    reached = (
        found.where(sql.col("end").isNull())
        .join(sql.broadcast(emptied), PLACE)
        .where(
            (sql.col("sequence") < sql.col("cut"))
            & (sql.col("last_order") < sql.col("purge_order"))
            & (~sql.col("is_of_ready") | is_ready)
        )
    )
    taken = reached.groupBy(*STAY).agg(
        sql.min_by("purge_kind", "purge_order").alias("purge_kind"),
        sql.min_by("purge_at", "purge_order").alias("purge_at"),
        sql.min("purge_order").alias("purge_order"),
    )
    return (
        found.join(taken, STAY, "left")
        .withColumn("end", sql.coalesce("end", "purge_kind"))
        .withColumn("ended_at", sql.coalesce("ended_at", "purge_at"))
        .drop("purge_kind", "purge_at")
    )


def roots(rows: DataFrame) -> DataFrame:
    """For every sequence that a move gave: `root`, the one under which the message was published.

    Follows the moves by doubling: after n steps, chains of 2^n moves are resolved. No sequence is used twice in a
    broker, so it alone is enough.
    """
    moves = rows.where(is_move())
    chain = moves.select(sql.col("target_sequence").alias("sequence"), sql.col("sequence").alias("root"))
    chain = chain.distinct().localCheckpoint()
    for _ in range(DOUBLINGS_MAX):
        above = chain.select(sql.col("sequence").alias("root"), sql.col("root").alias("above"))
        followed = chain.join(above, "root", "left")
        if followed.where(sql.col("above").isNotNull()).isEmpty():
            break
        chain = followed.select("sequence", sql.coalesce("above", "root").alias("root")).localCheckpoint()
    return chain
