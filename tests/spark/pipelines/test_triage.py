"""Dead letters that are alike are one group."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from smista.spark.errors import WrongOption
from smista.spark.pipelines.archive import write_batch
from smista.spark.pipelines.manifests import Archive, Contents
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.tables import Table
from smista.spark.pipelines.triage import deaths, groups, normalised, shape, still_dead, triage
from tests.spark.pipelines.conftest import Log, found


def test_errors_that_differ_in_numbers_ids_and_quotes_are_one_error(spark: SparkSession) -> None:
    errors = {
        "order 17: no route to 10.0.0.5:80 after 1.5 s": "order <n>: no route to <n> after <n> s",
        "user 01a1deaa-19cf-78bb-a138-000000000001 is gone": "user <id> is gone",
        "KeyError: 'colour'": "KeyError: '<text>'",
        'bad  value "a b"\n  at line 9': 'bad value "<text>" at line <n>',
        "GET https://shop.example/a?b=1 failed": "GET <url> failed",
        "object at 0x7f5f9301ff50 of deadbeef00112233": "object at <hex> of <hex>",
        "": "",
    }
    frame = spark.createDataFrame([(error,) for error in errors], "error_text string")
    assert (
        dict(found(frame.select("error_text", normalised(sql.col("error_text")).alias("is")), "error_text", "is"))
        == errors
    )


def test_the_shape_of_a_body_is_its_keys_and_types(spark: SparkSession) -> None:
    shapes = {
        b'{"id": 1, "amount": "9,99"}': "OBJECT<amount: STRING, id: NUMBER>",
        b'{"amount": 9.99, "id": 12345678901}': "OBJECT<amount: NUMBER, id: NUMBER>",
        b"[1, 2]": "ARRAY<NUMBER>",
        b"{not json": "text",
        b"\xff\xfe\x00": "binary",
        b"": "empty",
    }
    frame = spark.createDataFrame([(body,) for body in shapes], "body binary")
    assert {bytes(row.body): row.shape for row in frame.withColumn("shape", shape(sql.col("body"))).collect()} == shapes


@pytest.fixture
def dying(log: Log) -> Log:
    """Three died of one fault, one of another. Of the three one was redriven and died again, one was redriven and
    parked where it was rejected, and one was acknowledged by somebody who looked at the dead letters."""
    dead = {"reason": "max_retries", "target_queue": "orders_dlq"}
    back = {"queue": "orders_dlq", "reason": "redriven", "target_queue": "orders"}
    for sequence in range(1, 5):
        log.add("enqueued", sequence, body=b'{"n": %d}' % sequence)
        error = "timed out" if sequence == 4 else f"no dough for {sequence}"
        log.add("dead_lettered", sequence, 100 * sequence, error=error, target_sequence=sequence + 10, **dead)
    log.add("moved", 11, 500, target_sequence=21, **back)
    log.add("dead_lettered", 21, 600, error="no dough for 1", target_sequence=31, **dead)
    log.add("moved", 12, 700, target_sequence=22, **back)
    log.add("dead_lettered", 22, 800, reason="rejected", error="parked here")
    return log.add("acknowledged", 13, 900, queue="orders_dlq")


def test_letters_are_grouped_by_queue_reason_error_and_shape(dying: Log) -> None:
    dead_letters = deaths(dying.frame()).localCheckpoint()
    grouped = groups(dead_letters).localCheckpoint()
    columns = ("reason", "error", "deaths", "dead", "messages", "shape")
    assert found(grouped, *columns) == [
        ("max_retries", "no dough for <n>", 4, 1, 3, "OBJECT<n: NUMBER>"),
        ("max_retries", "timed out", 1, 1, 1, "OBJECT<n: NUMBER>"),
        ("rejected", "parked here", 1, 1, 1, "OBJECT<n: NUMBER>"),
    ]
    [worst] = [row for row in grouped.collect() if row.deaths == 4]
    assert (worst.samples[0], worst.last_error, sum(worst.slices)) == ("m1", "no dough for 1", 4)
    assert found(still_dead(dead_letters), "message_id", "queue", "lies_in") == [
        ("m1", "orders", "orders_dlq"),
        ("m2", "orders", "orders"),
        ("m4", "orders", "orders_dlq"),
    ]


def test_a_trend_is_told_against_the_time_that_was_read(log: Log) -> None:
    dead = {"reason": "max_retries", "target_queue": "orders_dlq"}
    deaths_at_s = {
        "over": [0, 10, 20],
        "falling": [500, 550, 600, 900],
        "steady": [600, 700, 990, 995],
        "rising": [1000],
    }
    sequences = iter(range(1, 100))
    for error, instants in deaths_at_s.items():
        for at_s in instants:
            sequence = next(sequences)
            log.add("dead_lettered", sequence, at_s, error=error, target_sequence=100 + sequence, **dead)
    assert dict(found(groups(deaths(log.frame())), "error", "trend")) == {trend: trend for trend in deaths_at_s}


def test_somebody_who_died_just_now_is_no_matter_of_the_past(log: Log) -> None:
    log.add("dead_lettered", 1, 5, error="no dough", reason="rejected")
    assert found(groups(deaths(log.frame())), "trend") == [("rising",)]


def test_a_run_writes_tables_and_a_report_and_the_next_replaces_them(
    spark: SparkSession, run: Run, dying: Log, tmp_path: Path
) -> None:
    place = Archive(tmp_path / "archive")
    place.opened_for(Contents(queues=[], namespace=None, has_bodies=True))
    empty = triage(run, to=str(tmp_path / "out"), archive=str(place.path))
    assert (empty.facts["groups"], empty.facts["deaths"]) == (0, 0)
    write_batch(place, dying.frame(), 0)
    summary = triage(run, to=str(tmp_path / "out"), archive=str(place.path))
    assert (summary.facts["groups"], summary.facts["deaths"], summary.facts["dead"]) == (3, 6, 3)
    assert Table(tmp_path / "out" / "dead_letters").read(spark).count() == 3
    page = (tmp_path / "out" / "report.html").read_text()
    assert "no dough for 1" in page
    assert "<script" not in page
    with pytest.raises(WrongOption, match="There is no queue 'nosuch' in the archive"):
        triage(run, to=str(tmp_path / "out"), archive=str(place.path), queue=["nosuch"])
    # Nothing was done in it, but messages were led there.
    assert triage(run, to=str(tmp_path / "out"), archive=str(place.path), queue=["orders_dlq"]).facts["deaths"] == 0
