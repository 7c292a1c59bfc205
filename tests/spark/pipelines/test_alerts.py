"""What needs attention is raised once, and lies in a queue."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from smista import Client
from smista.spark.errors import WrongOption
from smista.spark.pipelines.alerts import Memory, alerts
from smista.spark.pipelines.archive import write_batch
from smista.spark.pipelines.manifests import Archive, Contents
from smista.spark.pipelines.run import Run
from tests.spark.pipelines.conftest import BEGAN, Log, bodies

MINUTE_S = 60


@pytest.fixture
def troubled(log: Log, tmp_path: Path) -> str:
    """An archive of 70 minutes in which one thing after the other goes wrong, and much does not."""
    # A consumer that works, and one that holds on to what it has.
    for sequence, consumer in ((1, "ann"), (2, "ben"), (3, "ann")):
        log.add("enqueued", sequence, queue="held").add("delivered", sequence, 1, queue="held", consumer=consumer)
    log.add("acknowledged", 1, 2, queue="held").add("acknowledged", 3, 69 * MINUTE_S, queue="held")
    # A queue that grows by two a minute; and one that grows, but by less than matters.
    for minute in range(60, 70):
        for offset, queue in enumerate(("grows", "grows", "creeps")):
            log.add("enqueued", 1000 + 10 * minute + offset, minute * MINUTE_S + 1, queue=queue)
    # Messages that waited a second, and now wait ten; and some that always did.
    for minute in range(10, 70):
        for offset, (queue, wait_s) in enumerate((("waits", 1 if minute < 65 else 10), ("slow", 10))):
            sequence = 5000 + 10 * minute + offset
            log.add("enqueued", sequence, minute * MINUTE_S, queue=queue)
            log.add("delivered", sequence, minute * MINUTE_S + wait_s, queue=queue)
            log.add("acknowledged", sequence, minute * MINUTE_S + wait_s, queue=queue)
    place = Archive(tmp_path / "archive")
    place.opened_for(Contents(queues=[], namespace=None, has_bodies=True))
    write_batch(place, log.frame(), 0)
    return str(place.path)


def test_each_alert_is_raised_once_until_it_may_be_repeated(
    client: Client, queue: str, at_broker: Run, troubled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = round((BEGAN + timedelta(minutes=70)).timestamp() * 1000)
    wanted: dict[str, Any] = {"to": queue, "state": str(tmp_path / "state"), "archive": troubled, "growth": 8}
    dry = alerts(at_broker, **wanted, at=now_ms, dry_run=True)
    assert [(row["alert"], row["queue"], row["consumer"]) for row in dry.rows] == [
        ("stuck_consumer", "held", "ben"),
        ("rising_wait", "waits", ""),
        ("growing_backlog", "grows", ""),
    ]
    publish = Memory._publish
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "_publish", _die)
        with pytest.raises(RuntimeError, match="killed"):
            alerts(at_broker, **wanted, at=now_ms)
    assert bodies(client, queue) == []
    assert publish is Memory._publish
    assert alerts(at_broker, **wanted, at=now_ms).facts["raised"] == 0  # those of the killed run, which it publishes
    found = {each["alert"]: each for each in map(json.loads, bodies(client, queue))}
    assert sorted(found) == ["growing_backlog", "rising_wait", "stuck_consumer"]
    assert (
        found["growing_backlog"]["sentence"]
        == "The backlog of queue grows has grown for 5 minutes, by 10 to 20 messages."
    )
    assert (found["rising_wait"]["value"], found["rising_wait"]["threshold"]) == (10.0, 2.0)
    assert found["stuck_consumer"]["value"] == 70 * MINUTE_S - 1
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "_publish", _die)  # what is known to be published is not published again
        assert alerts(at_broker, **wanted, at=now_ms).facts["raised"] == 0
    later = alerts(at_broker, **wanted, at=now_ms + 1, repeat=0, queue=["held"])
    assert (later.facts["raised"], len(bodies(client, queue))) == (1, 4)


def test_waits_after_an_hour_without_any_are_told_as_that(
    log: Log, at_broker: Run, client: Client, queue: str, tmp_path: Path
) -> None:
    log.add("enqueued", 1).add("delivered", 1, 30)
    place = Archive(tmp_path / "archive")
    place.opened_for(Contents(queues=[], namespace=None, has_bodies=True))
    write_batch(place, log.frame(), 0)
    wanted: dict[str, Any] = {"state": str(tmp_path / "state"), "archive": str(place.path)}
    at_ms = round((BEGAN + timedelta(minutes=1)).timestamp() * 1000)
    [row] = alerts(at_broker, **wanted, to=queue, at=at_ms, dry_run=True).rows
    assert row["sentence"] == "Messages wait 30.0 s in queue orders (95th percentile), after none in the hour before."
    with pytest.raises(WrongOption, match="There is no queue 'nosuch' at the broker; make it first: smista declare"):
        alerts(at_broker, **wanted, to="nosuch", at=at_ms)


def _die(*_: object) -> None:
    raise RuntimeError("killed")


def test_wrong_options_are_answered_before_spark_is_started(tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="--lookback has to be 2h at least"):
        alerts(Run(), to="alerts", state=str(tmp_path), lookback=1_000)
