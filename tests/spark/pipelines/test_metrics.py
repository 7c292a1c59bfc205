"""Rates, times and backlogs by window, and the page that shows them."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from smista.spark.errors import WrongOption
from smista.spark.pipelines import lifecycle, report
from smista.spark.pipelines.archive import write_batch
from smista.spark.pipelines.manifests import Archive, Contents
from smista.spark.pipelines.metrics import metrics, windows, with_times
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.tables import Table
from tests.spark.pipelines.conftest import BEGAN, Log, found

SLA_MS = 5_000


Counted = dict[str, dict[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def counted(spark: SparkSession) -> Counted:
    """By queue, and by minutes since the beginning: several stories in one log, since Spark takes as long for one."""
    log = Log(spark)
    for sequence in range(1, 5):
        log.add("enqueued", sequence, 10 * sequence)
        log.add("delivered", sequence, 10 * sequence + sequence)
    log.add("acknowledged", 1, 13).add("acknowledged", 2, 62).add("returned", 3, 63, reason="nacked").add(
        "expired", 4, 65
    )
    log.add("delivered", 3, 64)
    log.add("enqueued", 11, 0, "delayed", ready_at=BEGAN + timedelta(seconds=30)).add("delivered", 11, 31, "delayed")
    log.add("enqueued", 21, 0, "dying").add("enqueued", 22, 0, "dying")
    log.add("dead_lettered", 21, 61, "dying", reason="rejected", target_queue="dying_dlq", target_sequence=23)
    log.add("dead_lettered", 22, 61, "dying", reason="rejected")
    log.add("enqueued", 31, 0, "aging").add("enqueued", 32, 70, "aging").add("acknowledged", 31, 190, "aging")
    log.add("acknowledged", 32, 310, "aging").add("enqueued", 33, 400, "aging")
    log.add("enqueued", 41, 300, "tardy").add("enqueued", 42, 10, "tardy").add("enqueued", 43, 290, "tardy")
    frame = log.frame()
    stays = lifecycle.with_purges(lifecycle.stays(frame), lifecycle.purges(frame))
    found: Counted = {}
    for row in windows(with_times(lifecycle.events(frame)), stays, 60, SLA_MS).collect():
        at = row.at - BEGAN.astimezone().replace(tzinfo=None)
        found.setdefault(row.queue, {})[round(at.total_seconds() / 60)] = row.asDict()
    return found


def test_rates_and_times_are_those_of_the_window_in_which_something_happened(counted: Counted) -> None:
    first, second = counted["orders"][0], counted["orders"][1]
    assert (first["published"], first["delivered"], first["acknowledged"]) == (4, 4, 1)
    assert (first["in_per_s"], first["out_per_s"]) == (pytest.approx(4 / 60), pytest.approx(1 / 60))
    assert (first["wait_p50_ms"], first["wait_p99_ms"], first["work_p50_ms"]) == (2_000, 4_000, 2_000)
    assert (first["sla_share"], second["sla_share"]) == (1.0, 0.0)  # 3 s; 42 s
    assert (first["retry_rate"], first["dead_letter_rate"], second["retry_rate"]) == (0.0, 0.0, 1.0)
    assert (first["backlog"], first["oldest_age_s"]) == (3, 40)  # the one of second 20, at second 60
    assert (second["acknowledged"], second["expired"], second["expiry_rate"], second["wait_p50_ms"]) == (
        1,
        1,
        None,
        1_000,
    )
    assert (second["backlog"], second["oldest_age_s"]) == (1, 90)
    assert counted["orders"][6]["oldest_age_s"] == 370  # up to the last row


def test_waiting_counts_from_when_a_message_was_ready(counted: Counted) -> None:
    assert counted["delayed"][0]["wait_p50_ms"] == 1_000


def test_a_dead_letter_leaves_one_backlog_and_enters_another(counted: Counted) -> None:
    assert [counted["dying"][at]["backlog"] for at in (0, 1)] == [2, 0]
    assert (counted["dying_dlq"][1]["arrived"], counted["dying_dlq"][1]["backlog"]) == (1, 1)


def test_the_oldest_is_known_in_every_window_while_something_is_left(counted: Counted) -> None:
    aging = counted["aging"]
    assert {at: row["oldest_age_s"] for at, row in aging.items()} == {0: 60, 1: 120, 2: 180, 3: 170, 4: 230, 5: 0, 6: 0}
    assert [aging[at]["backlog"] for at in sorted(aging)] == [1, 2, 2, 1, 1, 0, 1]


def test_late_rows_are_counted_where_they_belong(counted: Counted) -> None:
    assert (counted["tardy"][0]["published"], counted["tardy"][0]["late"]) == (1, 1)
    assert counted["tardy"][4]["late"] == 0


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_report_stands_alone_and_a_second_run_replaces_it(
    spark: SparkSession, run: Run, log: Log, tmp_path: Path
) -> None:
    place = Archive(tmp_path / "archive")
    place.opened_for(Contents(queues=[], namespace=None, has_bodies=True))
    for sequence in range(1, 8):
        log.add("enqueued", sequence, 40 * sequence, queue="<b>orders" if sequence % 2 else "bills")
    write_batch(place, log.frame(), 0)
    assert metrics(run, to=str(tmp_path / "out"), archive=str(place.path), queue=["bil*"]).facts["queues"] == 1
    write_batch(place, log.add("enqueued", 8, 5, queue="bills").frame().where("sequence = 8"), 1)
    summary = metrics(run, to=str(tmp_path / "out"), archive=str(place.path))
    assert (summary.facts["published"], summary.facts["queues"]) == (8, 2)
    page = (tmp_path / "out" / "report.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert {"svg", "polyline", "table"} <= tags.names
    assert "script" not in tags.names
    assert tags.addresses == []
    assert not re.search(r"url\(|@import|<b>orders", page)
    assert found(Table(tmp_path / "out" / "day").read(spark), "queue", "published") == [("<b>orders", 4), ("bills", 4)]


def test_an_empty_archive_has_an_empty_report(run: Run, tmp_path: Path) -> None:
    Archive(tmp_path).opened_for(Contents(queues=[], namespace=None, has_bodies=True))
    assert metrics(run, to=str(tmp_path / "out"), archive=str(tmp_path)).facts["published"] == 0
    assert "</html>" in (tmp_path / "out" / "report.html").read_text()


def test_wrong_options_are_answered_before_spark_is_started(tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="--since must be before --until"):
        metrics(Run(), to=str(tmp_path), since=2, until=1)


def test_charts_have_round_numbers_and_gaps() -> None:
    assert [report.nice_top(value) for value in (0, 0.03, 1, 9, 41, 100)] == [1, 0.04, 1, 10, 50, 100]
    drawn = report.chart("x", [report.Series("a", [(0, 1.0), (60, None), (120, 2.0), (180, 3.0)])])
    assert (drawn.count("<circle"), drawn.count("<polyline")) == (1, 1)
