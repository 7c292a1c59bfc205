"""`dlq list`, `dlq redrive`, `dlq purge`."""

import pytest

from tests.cli.conftest import Smista


@pytest.fixture
def dying(smista: Smista, queue: str) -> str:
    """A queue in which three messages died: of two faults, one of them urgent."""
    for body, priority, error in (("a", "0", "no dough"), ("b", "0", "no oven"), ("c", "5", "no dough")):
        smista("put", queue, body, "-p", priority)
        smista("nack", "--dead-letter", "--error", error, stdin=smista("get", queue, "--json").out.encode())
    return queue


def dead(smista: Smista, queue: str) -> list[str]:
    return [each["message"] for each in smista("dlq", "list", queue, "--json").lines]


def test_list_shows_why_where_and_how_often(smista: Smista, dying: str) -> None:
    heading, *rows = smista("dlq", "list", dying).out.splitlines()
    assert heading.split() == ["id", "reason", "source", "deliveries", "dead", "for", "last", "error", "body"]
    assert len(rows) == 3
    assert rows[0].split()[1:4] == ["rejected", dying, "1"]
    assert rows[0].endswith("no dough    a")


def test_list_of_a_queue_without_dead_letters_is_4(smista: Smista, queue: str) -> None:
    assert smista("dlq", "list", queue).code == 4


def test_list_can_be_narrowed(smista: Smista, dying: str) -> None:
    done = smista("dlq", "list", dying, "--error", "dough", "--limit", "1", "--json")
    assert [each["message"] for each in done.lines] == ["a"]


def test_redrive_sends_all_of_them_back(smista: Smista, dying: str) -> None:
    assert smista("dlq", "redrive", dying).out == "Redrove 3 messages.\n"
    assert smista("stats", dying, "--json").json["ready"] == 3
    assert dead(smista, dying) == []


def test_a_dry_run_only_counts(smista: Smista, dying: str) -> None:
    done = smista("dlq", "redrive", dying, "--dry-run", "--error", "dough", "--json")
    assert done.json == {"queue": dying, "redriven": 2, "dry_run": True}
    assert len(dead(smista, dying)) == 3


def test_redrive_can_be_narrowed_limited_and_sent_elsewhere(smista: Smista, dying: str, name: str) -> None:
    smista("declare", name)
    assert smista("dlq", "redrive", dying, "--priority", "5", "--to", name, "--json").json["redriven"] == 1
    assert smista("dlq", "redrive", dying, "--limit", "1", "--json").json["redriven"] == 1
    assert dead(smista, dying) == ["b"]
    assert smista("get", name, "--body").out == "c\n"


def test_redrive_of_named_messages_leaves_the_others(smista: Smista, dying: str) -> None:
    [_, second, _] = smista("dlq", "list", dying, "--json").lines
    assert smista("dlq", "redrive", dying, second["message_id"], "--json").json["redriven"] == 1
    assert dead(smista, dying) == ["a", "c"]


def test_redrive_keeps_to_a_rate(smista: Smista, dying: str) -> None:
    assert smista("dlq", "redrive", dying, "--rate", "50").out == "Redrove 3 messages.\n"


def test_purge_can_be_narrowed(smista: Smista, dying: str) -> None:
    done = smista("dlq", "purge", dying, "--error", "dough", "--priority", "5", "--yes")
    assert done.out == f"Purged 1 dead letter of queue {dying}.\n"
    assert dead(smista, dying) == ["a", "b"]


def test_bodies_need_not_be_shown(smista: Smista, dying: str) -> None:
    heading, *rows = smista("dlq", "list", dying, "--no-bodies").out.splitlines()
    assert heading.split()[-2:] == ["last", "error"]
    assert [row.split()[-1] for row in rows] == ["dough", "oven", "dough"]
    assert all("message" not in each for each in smista("dlq", "list", dying, "--no-bodies", "--json").lines)


def test_purge_throws_them_away(smista: Smista, dying: str) -> None:
    assert smista("dlq", "purge", dying, "--yes", "--json").json == {"queue": dying, "purged": 3}
    assert dead(smista, dying) == []
