"""Dead letters go back, those that were chosen and no others, and what was asked is written down."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from smista import Client
from smista.spark.errors import WrongOption
from smista.spark.pipelines.redrive import redrive
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.triage import triage
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


def test_wrong_options_are_answered_before_spark_is_started(tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="Say which: --group"):
        redrive(Run(), triaged=str(tmp_path))
    with pytest.raises(WrongOption, match="is not NAME=VALUE: --header"):
        redrive(Run(), triaged=str(tmp_path), header=["colour"])
    with pytest.raises(WrongOption, match="There is no table of triage's"):
        redrive(Run(), triaged=str(tmp_path), is_all=True)
