"""Everything published has one end, or is still there; what has not is listed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from smista import Client
from smista.spark.pipelines import reconcile as pipeline
from smista.spark.pipelines.reconcile import balances, faults, followed, reconcile
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.tables import Table
from tests.spark.pipelines.conftest import BEGAN, Log, found


def balance(frame: DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return found(balances(followed(frame)), *columns)


def wrong(frame: DataFrame) -> list[tuple[object, ...]]:
    return found(faults(frame, followed(frame)), "fault", "sequence")


def test_a_message_that_was_acknowledged_adds_up(log: Log) -> None:
    log.add("enqueued", 1).add("delivered", 1, 1).add("acknowledged", 1, 2).add("enqueued", 2, 3)
    assert balance(log.frame(), "published", "acknowledged", "live") == [(2, 1, 1)]
    assert wrong(log.frame()) == []


def test_every_way_to_go_is_counted(log: Log) -> None:
    for sequence in range(1, 7):
        log.add("enqueued", sequence)
    log.add("acknowledged", 1).add("expired", 2, reason="expired").add("removed", 3, reason="overflow")
    log.add("dead_lettered", 4, reason="max_retries", target_queue="orders_dlq", target_sequence=7)
    log.add("dead_lettered", 5, reason="rejected")
    log.add("purged", None, reason="ready", target_sequence=8, count=1)
    columns = ("queue", "published", "arrived", "acknowledged", "expired", "removed", "purged", "dead", "live", "moved")
    assert balance(log.frame(), *columns) == [
        ("orders", 6, 0, 1, 1, 1, 1, 1, 0, 1),
        ("orders_dlq", 0, 1, 0, 0, 0, 0, 1, 0, 0),
    ]
    assert wrong(log.frame()) == []


def test_a_message_that_is_redriven_and_dies_again_is_one_message(log: Log) -> None:
    log.add("enqueued", 1)
    log.add("dead_lettered", 1, reason="rejected", target_queue="orders_dlq", target_sequence=2)
    log.add("moved", 2, queue="orders_dlq", reason="redriven", target_queue="orders", target_sequence=3)
    log.add("delivered", 3).add("acknowledged", 3)
    assert balance(log.frame(), "queue", "published", "acknowledged", "dead", "live") == [
        ("orders", 1, 1, 0, 0),
        ("orders_dlq", 0, 0, 0, 0),
    ]


def test_a_queue_that_comes_again_in_another_shard_is_another(log: Log) -> None:
    """Its positions begin at 1 there, and its sequences lie far above."""
    there = 1 << 46
    log.add("enqueued", 1).add("acknowledged", 1).add("enqueued", 2).add("deleted", None, position=900)
    log.add("enqueued", there + 1, shard=1, position=1).add("enqueued", there + 2, shard=1, position=2)
    log.add("acknowledged", there + 1, shard=1, position=3)
    assert balance(log.frame(), "published", "acknowledged", "purged", "live", "earlier") == [(4, 2, 1, 1, 0)]
    assert wrong(log.frame()) == []


def test_a_queue_that_was_deleted_took_its_messages_along(log: Log) -> None:
    log.add("enqueued", 1).add("deleted", None).add("enqueued", 2)
    assert balance(log.frame(), "published", "purged", "live") == [(2, 1, 1)]


def test_a_purge_of_ready_messages_leaves_those_in_flight_and_those_for_later(log: Log) -> None:
    log.add("enqueued", 1).add("delivered", 1).add("enqueued", 2).add("enqueued", 3, ready_at=None)
    log.add("enqueued", 4, ready_at=BEGAN.replace(year=2027))
    log.add("purged", None, 1, reason="ready", target_sequence=5, count=2)
    log.add("acknowledged", 1, 2)
    assert balance(log.frame(), "purged", "acknowledged", "live") == [(2, 1, 1)]
    assert wrong(log.frame()) == []


def test_each_fault_is_found_and_named(log: Log) -> None:
    log.add("enqueued", 1).add("enqueued", 1)
    log.add("enqueued", 2).add("acknowledged", 2).add("acknowledged", 2)
    log.add("acknowledged", 3)
    log.add("enqueued", 4).add("acknowledged", 4).add("delivered", 4)
    assert wrong(log.frame()) == [("began twice", 1), ("ended twice", 2), ("never began", 3), ("seen after its end", 4)]


def test_a_row_that_was_archived_twice_is_found(log: Log) -> None:
    log.add("enqueued", 1).add("delivered", 1)
    log.rows.append(log.rows[-1])
    assert wrong(log.frame()) == [("row twice", 1)]


def test_a_purge_that_took_another_number_is_found(log: Log) -> None:
    log.add("enqueued", 1).add("purged", None, reason="all", target_sequence=2, count=3)
    assert wrong(log.frame()) == [("purge miscounted", None)]


def test_what_began_before_the_first_row_is_no_fault(log: Log) -> None:
    log.add("acknowledged", 5).add("enqueued", 8).add("delivered", 6).add(
        "purged", None, reason="all", target_sequence=9, count=4
    )
    assert balance(log.frame(), "published", "earlier") == [(1, 2)]
    assert wrong(log.frame()) == []


def test_no_rows_at_all_add_up(log: Log) -> None:
    assert balance(log.frame(), "queue") == []
    assert wrong(log.frame()) == []


def test_the_log_of_a_broker_adds_up_with_what_the_broker_has(
    client: Client, queue: str, at_broker: Run, tmp_path: Path
) -> None:
    client.put_many(queue, (str(number).encode() for number in range(20)))
    client.publish(queue, b"later", delay_ms=3_600_000)
    client.publish(queue, b"short", ttl_ms=1)
    while f"{queue}_dlq" not in client.queues():  # which is made for the first dead letter
        time.sleep(0.01)
    for place, delivery in enumerate(client.receive(queue, 12)):
        if place < 5:
            delivery.ack()
        elif place < 8:
            delivery.nack("no", requeue=False)
        elif place < 10:
            delivery.release()
    client.redrive(queue, limit=1)
    other = f"{queue}-other"
    client.declare_queue(other)
    client.put_many(other, [b"a", b"b"])
    client.purge(other)
    client.publish(other, b"c")

    done = reconcile(at_broker, queue=[f"{queue}*"], to=str(tmp_path / "faults"))
    assert done.is_good, done.text()
    rows = {row["queue"]: row for row in done.rows}
    mine, dead, purged = rows[queue], rows[f"{queue}_dlq"], rows[other]
    assert (mine["published"], mine["acknowledged"], mine["arrived"], mine["moved"]) == (22, 5, 1, 4)
    # Two of the three that were rejected, since one was redriven; and the one whose time ran out.
    assert (dead["dead"], purged["purged"], purged["live"]) == (3, 2, 1)
    assert Table(tmp_path / "faults").read(at_broker.spark).isEmpty()
    assert int(str(done.facts["queues_compared"])) >= 3


def test_a_broker_that_has_less_than_the_log_leaves_is_found_out(
    client: Client, queue: str, at_broker: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.publish(queue, b"lost")
    has = pipeline.live_now(at_broker)
    monkeypatch.setattr(pipeline, "live_now", lambda run: {**has, ("/", queue): 0})
    done = reconcile(at_broker, queue=[queue])
    assert not done.is_good
    assert [(row["fault"], row["detail"]) for row in done.rows] == [
        ("live differs", "the broker has 0, the log leaves 1")
    ]
