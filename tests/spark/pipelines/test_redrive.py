"""Dead letters go back, those that were chosen and no others, and what was asked is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from smista import Client
from smista.spark.errors import WrongOption
from smista.spark.pipelines import redrive as pipeline
from smista.spark.pipelines.redrive import redrive
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.triage import triage
from tests.spark.cluster_job import stumble
from tests.spark.pipelines.conftest import bodies, found


@pytest.fixture
def triaged(client: Client, queue: str, at_broker: Run, tmp_path: Path) -> str:
    """Six dead letters, every second one red, of two faults, the first published first."""
    for number in range(6):
        client.publish(queue, str(number).encode(), headers={"colour": "red" if number % 2 else "blue"})
        [delivery] = client.receive(queue)
        delivery.nack("no oven" if number < 2 else f"no dough for {number}", requeue=False)
    place = tmp_path / "triage"
    assert triage(at_broker, to=str(place), queue=[queue]).facts["dead"] == 6
    return str(place)


def test_what_is_chosen_goes_back_and_is_audited(
    spark: SparkSession, client: Client, queue: str, at_broker: Run, triaged: str
) -> None:
    groups = {row["error"]: row["group"] for row in triage(at_broker, to=triaged, queue=[queue]).rows}
    dry = redrive(at_broker, triaged=triaged, group=[groups["no oven"]], dry_run=True)
    assert (dry.facts["chosen"], dry.facts["dry_run"], bodies(client, queue)) == (2, True, [])

    done = redrive(at_broker, triaged=triaged, group=[groups["no oven"]])
    assert (done.facts["chosen"], done.facts["redriven"], bodies(client, queue)) == (2, 2, ["0", "1"])
    audited = spark.read.parquet(str(done.facts["audit"]))
    assert found(audited, "queue", "lies_in", "asked", "redriven") == [(queue, f"{queue}_dlq", 2, 2)] * 2
    assert audited.where("asked_at is null or message_id is null").isEmpty()

    again = redrive(at_broker, triaged=triaged, group=[groups["no oven"]])
    assert (again.facts["redriven"], again.facts["passed_over"]) == (0, 2)
    capped = redrive(at_broker, triaged=triaged, header=["colour=blue"], cap=2, rate=500.0)
    assert (capped.facts["chosen"], capped.facts["redriven"]) == (2, 1)  # 0, which is back already, and 2
    other = f"{queue}-other"
    client.declare_queue(other)
    assert redrive(at_broker, triaged=triaged, is_all=True, to=other).facts["redriven"] == 3
    assert (bodies(client, queue), bodies(client, other)) == (["0", "1", "2"], ["3", "4", "5"])


def test_a_task_that_is_tried_again_asks_for_nothing_twice(
    spark: SparkSession, client: Client, queue: str, at_broker: Run, triaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(*given: Any) -> DataFrame:
        chosen = pipeline_choose(*given)
        return chosen.mapInArrow(stumble, chosen.schema)  # hands on all rows, and fails then

    pipeline_choose = pipeline.choose
    monkeypatch.setattr(pipeline, "choose", choose)
    done = redrive(at_broker, triaged=triaged, is_all=True, queue=[queue])
    assert (done.facts["chosen"], done.facts["redriven"], done.facts["passed_over"]) == (6, 6, 0)
    assert bodies(client, queue) == list("012345")
    audited = spark.read.parquet(str(done.facts["audit"]))
    assert found(audited, "part", "asked", "redriven") == [(1, 6, 6)] * 6
    assert audited.select("message_id").distinct().count() == 6


def test_what_a_killed_run_had_asked_for_is_in_the_audit(
    spark: SparkSession, client: Client, queue: str, at_broker: Run, triaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "AT_ONCE", 4)
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.Asking, "answered", dies)
        with pytest.raises(RuntimeError, match="killed"):
            redrive(at_broker, triaged=triaged, is_all=True)
    assert bodies(client, queue) == list("0123")
    [folder] = Path(triaged, "audit").iterdir()
    killed = spark.read.parquet(str(folder))
    assert found(killed, "asked", "redriven") == [(4, None)] * 4
    again = redrive(at_broker, triaged=triaged, is_all=True)
    assert (again.facts["redriven"], again.facts["passed_over"]) == (2, 4)
    every = spark.read.option("basePath", str(folder.parent)).parquet(str(folder.parent))
    assert every.select("message_id").distinct().count() == 6


def dies(*_: object) -> None:
    raise RuntimeError("killed")


def test_what_nobody_knows_is_refused_before_anything_is_sent(
    client: Client, queue: str, at_broker: Run, triaged: str
) -> None:
    for options, said in (
        ({"group": ["0123456789ab"]}, "Triage knows no group 0123456789ab"),
        ({"queue": ["nosuch"]}, "There is no queue 'nosuch' in the broker: `smista queues` lists them"),
        ({"is_all": True, "to": "nosuch"}, "There is no queue 'nosuch' at the broker; make it first"),
    ):
        with pytest.raises(WrongOption, match=said):
            redrive(at_broker, triaged=triaged, **options)
    assert (bodies(client, queue), Path(triaged, "audit").exists()) == ([], False)


def test_wrong_options_are_answered_before_spark_is_started(tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="Say which: --group"):
        redrive(Run(), triaged=str(tmp_path))
    with pytest.raises(WrongOption, match="is not NAME=VALUE: --header"):
        redrive(Run(), triaged=str(tmp_path), header=["colour"])
    with pytest.raises(WrongOption, match="There is no table of triage's"):
        redrive(Run(), triaged=str(tmp_path), is_all=True)
