"""Fewer files with the same rows, nothing too old, and readers that never notice."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from smista.spark.errors import WrongOption
from smista.spark.pipelines.archive import write_batch
from smista.spark.pipelines.compact import compact
from smista.spark.pipelines.manifests import Archive, Contents
from smista.spark.pipelines.run import Run
from tests.spark.pipelines.conftest import BEGAN, Log, found

ERA_MS = 100 * 365 * 86_400_000


@pytest.fixture
def place(tmp_path: Path, log: Log) -> Archive:
    """Three batches of the same hour, in the third a queue of its own too."""
    place = Archive(tmp_path / "archive")
    place.opened_for(Contents(queues=[], namespace=None, has_bodies=True))
    for number in range(3):
        log.add("enqueued", number + 1, number)
        if number == 2:
            log.add("enqueued", 4, queue="bills")
        write_batch(place, log.frame().where(f"position > {number}"), number)
    return place


def rows(place: Archive, spark: SparkSession) -> list[tuple[object, ...]]:
    return found(place.rows(spark), "position", "queue", "body")


def test_small_files_become_one_and_readers_of_old_ones_are_left_in_peace(
    spark: SparkSession, run: Run, place: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(place, spark)
    reading = place.rows(spark)  # planned with the old files
    with monkeypatch.context() as patched:
        patched.setattr(Archive, "add", _die)
        with pytest.raises(RuntimeError, match="killed"):
            compact(run, archive=str(place.path), keep=ERA_MS)
    assert rows(place, spark) == before

    done = compact(run, archive=str(place.path), keep=ERA_MS)
    assert (done.facts["batches_merged"], done.facts["batches"], done.facts["files"]) == (3, 1, 2)
    assert rows(place, spark) == before
    assert found(reading, "position") == [(position,) for position, _, _ in before]
    again = compact(run, archive=str(place.path), keep=ERA_MS, grace=0)
    assert (again.facts["batches_merged"], again.facts["batches"]) == (0, 1)
    assert again.facts["folders_removed"] == 4  # three batches, and what the killed run had written
    assert (len(place.all_manifests()), len(list(place.data.iterdir()))) == (1, 1)
    assert rows(place, spark) == before
    [manifest] = place.manifests()
    assert manifest.reached == {0: 4}


def test_a_batch_that_spark_repeats_when_it_was_compacted_twice_is_not_written_again(
    spark: SparkSession, run: Run, place: Archive, log: Log
) -> None:
    compact(run, archive=str(place.path), keep=ERA_MS, grace=0)
    large = min(file.bytes for manifest in place.manifests() for file in manifest.files)
    for number in (3, 4):
        log.add("acknowledged", 4, number, queue="bills")
        write_batch(place, log.frame().where(f"position > {number + 1}"), number)
    compact(run, archive=str(place.path), keep=ERA_MS, grace=0, file_bytes=2 * large)  # these two
    for _ in range(2):  # with the others; the second time, what the first has replaced is removed
        compact(run, archive=str(place.path), keep=ERA_MS, grace=0)
    [manifest] = place.all_manifests()
    assert "batch-00000004" not in manifest.replaces
    before = rows(place, spark)
    write_batch(place, log.frame().where("position > 5"), 4)  # its run was killed before Spark knew that it was done
    assert [position for position, _, _ in rows(place, spark)] == [1, 2, 3, 4, 5, 6]
    assert rows(place, spark) == before


def _die(*_: object) -> None:
    raise RuntimeError("killed")


def test_what_is_too_old_is_forgotten_by_queue(spark: SparkSession, run: Run, place: Archive) -> None:
    old_ms = round((datetime.now(UTC) - BEGAN).total_seconds() * 1000)
    with pytest.raises(WrongOption, match="There is no queue 'bils' in the archive"):
        compact(run, archive=str(place.path), keep=old_ms // 2, keep_queue=["bils=36500d"])
    assert len(rows(place, spark)) == 4
    kept = compact(run, archive=str(place.path), keep=old_ms // 2, keep_queue=["bill*=36500d"], file_bytes=1)
    assert kept.facts["files_forgotten"] == 3
    assert [queue for _, queue, _ in rows(place, spark)] == ["bills"]
    assert len(list(place.data.rglob("*.parquet"))) == 4  # somebody may be reading them
    time.sleep(0.01)
    compact(run, archive=str(place.path), keep=ERA_MS, grace=0)
    compact(run, archive=str(place.path), keep=ERA_MS, grace=0)
    assert len(list(place.data.rglob("*.parquet"))) == 1
    assert [queue for _, queue, _ in rows(place, spark)] == ["bills"]


def test_wrong_options_are_answered_before_spark_is_started(tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="There is no archive in"):
        compact(Run(), archive=str(tmp_path))
    with pytest.raises(WrongOption, match="--keep-queue bills: 'soon' is not a duration"):
        compact(Run(), archive=str(tmp_path), keep_queue=["bills=soon"])
