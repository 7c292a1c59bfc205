"""Archived messages are published again, each once under a replay's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smista import Client
from smista.spark.errors import WrongOption
from smista.spark.pipelines import folder
from smista.spark.pipelines import replay as pipeline
from smista.spark.pipelines.archive import archive
from smista.spark.pipelines.errors import PipelineFailed
from smista.spark.pipelines.replay import Ledger, replay
from smista.spark.pipelines.run import Run
from tests.spark.pipelines.conftest import bodies


@pytest.fixture
def archived(client: Client, queue: str, at_broker: Run, tmp_path: Path) -> str:
    for number in range(4):
        client.publish(queue, {"n": number}, headers={"colour": "red"}, priority=number % 2)
    archive(at_broker, to=str(tmp_path / "archive"), queue=[queue])
    client.purge(queue)
    return str(tmp_path / "archive")


def test_a_message_is_replayed_once_under_a_name(
    client: Client, queue: str, at_broker: Run, archived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, Any] = {"archive": archived, "name": "again", "to": queue, "where": "json:n::int >= 2"}
    assert replay(at_broker, **wanted, dry_run=True).facts["would_publish"] == 2
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "write_whole", dies_at(".done.json", folder.write_whole))
        with pytest.raises(RuntimeError, match="killed"):
            replay(at_broker, **wanted)
    assert bodies(client, queue) == ['{"n":3}', '{"n":2}']  # published, and nobody wrote that down; 3 is urgent
    [urgent, _] = client.peek(queue, 2)
    assert (urgent.headers, urgent.content_type) == ({"colour": "red"}, "application/json")

    replay(at_broker, **wanted)
    assert replay(at_broker, **wanted).facts["published"] == 0
    assert len(bodies(client, queue)) == 2

    more = replay(at_broker, **{**wanted, "where": None}, rate=2.0)
    assert more.facts["published"] == 2  # the others
    stats = client.stats(queue)
    assert (stats.ready, stats.scheduled) == (3, 1)  # the second of them half a second later
    with pytest.raises(WrongOption, match="give the new one another --name"):
        replay(at_broker, **{**wanted, "to": "elsewhere"})
    with pytest.raises(PipelineFailed, match="UNRESOLVED_COLUMN"):
        replay(at_broker, **{**wanted, "where": "nonsense = 1"})
    assert Ledger(Path(archived) / "replays" / "again").unpublished() == []


def dies_at(ending: str, write: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    def written(path: Path, content: bytes) -> None:
        if path.name.endswith(ending):
            raise RuntimeError("killed")
        write(path, content)

    return written


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Say where to"),
        ({"to": "a", "exchange": "b"}, "Say where to"),
        ({"to": "a", "rate": 1.0, "speed": 2.0}, "two ways to pace"),
        ({"to": "a", "name": "a/b"}, "is no name for a replay"),
        ({"to": "a"}, "There is no archive in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_answered_before_spark_is_started(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongOption, match=said):
        replay(Run(), archive=str(tmp_path), **{"name": "x", **options})
