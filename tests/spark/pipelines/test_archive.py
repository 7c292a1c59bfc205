"""The archive: every row once, whatever was killed when; readers see whole batches and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from smista import Client
from smista.spark.errors import WrongOption
from smista.spark.pipelines import archive as pipeline
from smista.spark.pipelines.archive import archive, write_batch
from smista.spark.pipelines.errors import ArchiveDamaged, ArchiveDiffers, PipelineFailed
from smista.spark.pipelines.folder import alone_in, local_path
from smista.spark.pipelines.manifests import Archive, Contents
from smista.spark.pipelines.reconcile import reconcile
from smista.spark.pipelines.rows import COLUMNS, schema
from smista.spark.pipelines.run import Run, failures_explained
from tests.server_process import ServerProcess
from tests.spark.pipelines.conftest import BEGAN, Log, found
from tests.waiting import SPARK_PATIENCE_S, eventually

ALL = Contents(queues=[], namespace=None, has_bodies=True)


@pytest.fixture
def place(tmp_path: Path) -> Archive:
    place = Archive(tmp_path / "archive")
    place.opened_for(ALL)
    return place


def positions(frame: DataFrame) -> list[Any]:
    return [position for (position,) in found(frame, "position")]


def test_a_batch_comes_back_as_it_was(spark: SparkSession, place: Archive, log: Log) -> None:
    log.add("enqueued", 1, queue="007", headers={"colour": "red"}, body=b"\0\xff").add(
        "acknowledged", 1, 3_600, queue="a/b=c"
    )
    write_batch(place, log.frame(), 0)
    rows = place.rows(spark)
    assert rows.columns == list(COLUMNS)
    assert found(rows, *COLUMNS) == sorted((tuple(_naive(cell) for cell in row) for row in log.rows), key=str)
    [manifest] = place.manifests()
    assert (manifest.rows, manifest.reached) == (2, {0: 2})
    assert [(file.queue, str(file.day), file.hour_at_ms) for file in manifest.files] == [
        ("007", "2026-01-31", round(BEGAN.timestamp() * 1000)),
        ("a/b=c", "2026-01-31", round(BEGAN.timestamp() * 1000) + 3_600_000),
    ]


def _naive(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return bytearray(cell)
    return cell.astimezone().replace(tzinfo=None) if isinstance(cell, datetime) else cell


def test_readers_open_only_files_of_the_queues_and_hours_they_ask_for(
    spark: SparkSession, place: Archive, log: Log
) -> None:
    log.add("enqueued", 1).add("enqueued", 2, 7_200).add("enqueued", 3, queue="bills")
    write_batch(place, log.frame(), 0)
    for file in place.manifests()[0].files:
        if file.queue == "bills" or file.hour_at_ms > BEGAN.timestamp() * 1000:
            (place.data / file.path).write_bytes(b"x" * file.bytes)
    until_ms = round(BEGAN.timestamp() * 1000) + 60_000
    assert positions(place.rows(spark, ["ord*"], until_ms=until_ms)) == [1]


def test_a_run_that_is_killed_between_batch_and_manifest_writes_the_batch_again(
    spark: SparkSession, place: Archive, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving = tmp_path / "arriving"
    log.add("enqueued", 1).add("acknowledged", 1)
    log.frame().coalesce(1).write.parquet(str(arriving))
    run = Run(spark=spark, on_progress=lambda line: None)

    @failures_explained()
    def follow() -> dict[str, Any]:
        stream = spark.readStream.schema(schema()).parquet(str(arriving))
        writer = stream.writeStream.option("checkpointLocation", str(place.checkpoint))
        return run.follow(writer.foreachBatch(lambda frame, number: write_batch(place, frame, number)))

    def die(*_: object) -> None:
        raise RuntimeError("killed before the manifest")

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "add", die)
        with pytest.raises(PipelineFailed, match="killed before the manifest"):
            follow()
    assert list(place.data.rglob("*.parquet"))
    assert positions(place.rows(spark)) == []

    follow()
    assert positions(place.rows(spark)) == [1, 2]
    _forget_the_last_commit(place)
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "write", die)  # the batch is there, so it is not touched
        follow()
    Log.__init__(log, spark)
    log.add("enqueued", 9, position=9).frame().coalesce(1).write.mode("append").parquet(str(arriving))
    assert follow()["rows_read"] == 1
    assert positions(place.rows(spark)) == [1, 2, 9]
    assert follow() == {"batches": 0, "rows_read": 0, "seconds": pytest.approx(0, abs=30)}


def _forget_the_last_commit(place: Archive) -> None:
    last = max(path for path in (place.checkpoint / "commits").iterdir() if path.name.isdecimal())
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_data_without_a_manifest_is_not_there_and_an_empty_batch_leaves_nothing(
    spark: SparkSession, place: Archive, log: Log
) -> None:
    write_batch(place, log.frame(), 0)
    assert (place.manifests(), list(place.data.glob("*"))) == ([], [])
    half = place.batch_path("batch-00000001") / "queue=orders" / "date=2026-01-31" / "hour=12"
    half.mkdir(parents=True)
    (half / "part-0.zstd.parquet").write_bytes(b"PAR1 and no end")
    assert positions(place.rows(spark)) == []
    write_batch(place, log.add("enqueued", 1).frame(), 1)
    assert positions(place.rows(spark)) == [1]


def test_a_broker_that_knows_more_columns_extends_the_archive(spark: SparkSession, place: Archive, log: Log) -> None:
    from pyspark.sql import functions

    write_batch(place, log.add("enqueued", 1).frame(), 0)
    write_batch(place, log.add("acknowledged", 1).frame().where("position = 2").withColumn("zone", functions.lit(7)), 1)
    write_batch(place, log.add("acknowledged", 2).frame().where("position = 3").drop("properties"), 2)
    assert found(place.rows(spark), "position", "zone", "properties") == [
        (1, None, None),
        (2, 7, None),
        (3, None, None),
    ]


def test_an_archive_goes_on_in_each_shard(spark: SparkSession, place: Archive, log: Log) -> None:
    write_batch(place, log.add("enqueued", 1, shard=0, position=5).add("enqueued", 2, shard=1, position=9).frame(), 0)
    Log.__init__(log, spark)
    write_batch(place, log.add("enqueued", 3, shard=1, position=10).frame(), 1)
    assert [manifest.reached for manifest in place.manifests()] == [{0: 5, 1: 9}, {0: 5, 1: 10}]
    assert pipeline._resumed(place, "latest") == '{"0": 6, "1": 11}'


def test_a_new_archive_begins_where_it_is_told(place: Archive) -> None:
    assert pipeline._resumed(place, "latest") == "latest"


def test_a_column_that_changes_its_type_is_refused_before_anything_is_written(
    spark: SparkSession, place: Archive, log: Log
) -> None:
    write_batch(place, log.add("enqueued", 1).frame(), 0)
    changed = log.frame().selectExpr("* except (priority)", "'high' as priority")
    with pytest.raises(ArchiveDiffers, match=r"Column priority is string in batch batch-00000001.*int elsewhere"):
        write_batch(place, changed, 1)
    assert len(list(place.data.glob("batch=*"))) == 1


Damage = Callable[[Archive], object]


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        (lambda place: next(place.data.rglob("*.parquet")).unlink(), ArchiveDamaged, "is not there"),
        (lambda place: next(place.data.rglob("*.parquet")).write_bytes(b""), ArchiveDamaged, "has 0 bytes"),
        (lambda place: next(place.manifests_path.glob("*")).write_text("{"), ArchiveDamaged, "cannot be read"),
        (lambda place: _newer(place), ArchiveDiffers, "newer version"),
    ],
    ids=["missing", "cut", "manifest", "newer"],
)
def test_damage_is_told_with_the_file_that_has_it(
    spark: SparkSession, place: Archive, log: Log, damage: Damage, error: type[Exception], said: str
) -> None:
    write_batch(place, log.add("enqueued", 1).frame(), 0)
    damage(place)
    with pytest.raises(error, match=said) as raised:
        place.rows(spark)
    assert str(place.path) in str(raised.value)


def _newer(place: Archive) -> None:
    path = next(place.manifests_path.glob("*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))


def test_an_archive_is_of_the_same_queues_for_ever(run: Run, place: Archive) -> None:
    with pytest.raises(ArchiveDiffers, match="is an archive of all queues, and not of orders"):
        archive(run, to=str(place.path), queue=["orders"])
    with pytest.raises(ArchiveDiffers, match="without bodies"):
        archive(run, to=str(place.path), has_bodies=False)


def test_wrong_options_are_answered_before_spark_is_started(broker: ServerProcess, tmp_path: Path) -> None:
    run = Run(endpoint=broker.url)
    with pytest.raises(WrongOption, match="--from is 'soon'; it is earliest, latest, a position"):
        archive(run, to=str(tmp_path), start="soon")
    with pytest.raises(WrongOption, match="not on a mounted file system"):
        archive(run, to="s3://bucket/archive")
    with alone_in(tmp_path, "this"), pytest.raises(Exception, match="Another run is at work"):
        archive(run, to=str(tmp_path))
    with pytest.raises(WrongOption, match="There is no archive in"):
        Archive(tmp_path / "nowhere").must_exist()
    assert local_path("file:///a%20b") == Path("/a b")


def test_a_run_that_goes_on_archives_what_comes_until_it_is_told_to_stop(
    spark: SparkSession, client: Client, queue: str, broker: ServerProcess, tmp_path: Path
) -> None:
    lines: list[str] = []
    run = Run(spark=spark, endpoint=broker.url, interval_ms=100, on_progress=lines.append)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(archive, run, to=str(tmp_path), queue=[queue], has_bodies=False)
        try:
            client.publish(queue, b"x")
            wait_until(lambda: len(Archive(tmp_path).manifests()) == 1, running)
            client.publish(queue, b"x")
            wait_until(lambda: len(Archive(tmp_path).manifests()) == 2, running)
            # Spark reports a batch a little after it was written.
            wait_until(lambda: len(lines) == 2, running)
        finally:
            run.stop()
        summary = running.result(SPARK_PATIENCE_S)
    assert (summary.facts["batches"], summary.facts["rows"]) == (2, 2)
    assert [line.partition(" rows")[0] for line in lines] == ["batch 0: 1", "batch 1: 1"]
    assert found(Archive(tmp_path).rows(spark), "kind", "body") == [("enqueued", None)] * 2


def wait_until(is_so: Callable[[], bool], running: Future[Any] | None = None) -> None:
    eventually(
        is_so,
        every_s=0.1,
        patience_s=SPARK_PATIENCE_S,
        as_long_as=None if running is None else lambda: not running.done(),
        show=lambda: running.result() if running is not None and running.done() else "",
    )


@pytest.mark.timeout(1_200)
def test_kill_9_in_the_middle_loses_nothing_and_doubles_nothing(
    at_broker: Run, client: Client, queue: str, broker: ServerProcess, tmp_path: Path
) -> None:
    # A block each, so that there are many batches: more than are archived before it is killed on any machine.
    for start in range(0, 3_000, 100):
        client.put_many(queue, (str(number).encode() for number in range(start, start + 100)))
    place = Archive(tmp_path / "archive")
    command = [sys.executable, pipeline.__file__, str(place.path), "--queue", queue, "--endpoint", broker.url]
    limits = ["--batch-rows", "100", "--master", "local[2]", "--conf", "spark.smista.niceness=0"]
    with subprocess.Popen([*command, *limits], stderr=subprocess.DEVNULL) as killed:
        wait_until(lambda: len(place.all_manifests()) >= 2 or killed.poll() is not None)
        assert killed.poll() is None, killed.returncode
        killed.kill()
    assert len(place.all_manifests()) < 30
    archive(at_broker, to=str(place.path), queue=[queue], batch_rows=100)
    rows = place.rows(at_broker.spark)
    assert rows.count() == 3_000
    assert sorted(int(bytes(row.body)) for row in rows.select("body").collect()) == list(range(3_000))
    shutil.rmtree(place.checkpoint)
    client.publish(queue, b"3000")
    assert archive(at_broker, to=str(place.path), queue=[queue]).facts["rows"] == 1  # goes on behind what is there
    assert reconcile(at_broker, archive=str(place.path)).is_good
