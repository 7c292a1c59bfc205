"""`dlq list`, `dlq redrive`, `dlq purge`."""

import pytest

from smista import Client
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
    done = smista("dlq", "redrive", dying, "--rate", "50")
    assert done.out == "Redrove 3 messages.\n"
    [redrive] = smista("dlq", "redrives", dying, "--json").lines
    assert f"smista dlq cancel {dying} {redrive['job']}" in done.err


def test_redrives_with_a_rate_are_listed(smista: Smista, dying: str) -> None:
    assert smista("dlq", "redrives", dying).err.startswith(f"Queue {dying} has no redrives")
    assert smista("dlq", "redrive", dying, "--rate", "50", "--error", "oven").out == "Redrove 1 message.\n"
    [redrive] = smista("dlq", "redrives", dying, "--json").lines
    assert (redrive["state"], redrive["redriven"], redrive["per_second"]) == ("completed", 1, 50)
    heading, shown = smista("dlq", "redrives", dying).out.splitlines()
    assert heading.split() == ["job", "queue", "state", "redriven", "of", "rate", "to", "age", "error"]
    assert shown.split()[:5] == [redrive["job"], dying, "completed", "1", "3"]
    assert redrive in smista("dlq", "redrives", "--json").lines
    assert "[redrive_ended]" in smista("dlq", "cancel", dying, redrive["job"]).err


def test_one_that_fails_says_why(smista: Smista, dying: str) -> None:
    smista("alter", dying, "--max-depth", "1")
    done = smista("dlq", "redrive", dying, "--rate", "50")
    assert done.code == 1
    assert "1 messages had been moved" in done.err


def test_a_redrive_with_a_rate_is_cancelled(smista: Smista, dying: str, url: str) -> None:
    with Client(url) as client:
        job = client.start_redrive(dying, per_second=0.001).job
    assert smista("dlq", "cancel", dying, job, "--json").json["redriven"] <= 1
    assert [each["state"] for each in smista("dlq", "redrives", dying, "--json").lines] == ["cancelled"]


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


def test_what_is_listed_is_shown_and_deleted_by_the_same_name(smista: Smista, dying: str) -> None:
    first, second, _ = (each["message_id"] for each in smista("dlq", "list", dying, "--json").lines)
    assert smista("browse", dying, "--id", first, "--json").json["message"] == "a"
    assert smista("delete-message", dying, first).code == 0
    assert smista("dlq", "purge", dying, second, "--yes").out == f"Purged 1 dead letter of queue {dying}.\n"
    assert dead(smista, dying) == ["c"]


def test_the_queues_that_were_searched_are_named(smista: Smista, dying: str) -> None:
    assert smista("dlq", "list", dying).err == f"Searched {dying} and {dying}_dlq.\n"
    done = smista("dlq", "redrive", dying, "--error", "nothing like it")
    assert done.err == f"Searched {dying} and {dying}_dlq; use --kept-in to search another queue.\n"
    assert smista("dlq", "list", dying, "--json").err == ""


def test_those_in_a_former_target_are_found_by_its_name(smista: Smista, dying: str, name: str) -> None:
    smista("declare", name)
    smista("alter", dying, "--dead-letter-queue", name)
    smista("put", dying, "d")
    smista("nack", "--dead-letter", stdin=smista("get", dying, "--json").out.encode())
    smista("declare", f"{name}-2")
    smista("alter", dying, "--dead-letter-queue", f"{name}-2")
    assert dead(smista, dying) == ["a", "b", "c"]
    done = smista("dlq", "list", dying, "--error", "nothing like it")
    assert done.code == 4
    assert f"Searched {dying}, {name}-2 and {dying}_dlq; use --kept-in to search another queue." in done.err
    [kept] = smista("dlq", "list", dying, "--kept-in", name, "--json").lines
    assert (kept["message"], kept["queue"]) == ("d", name)
    assert smista("dlq", "redrive", dying, "--kept-in", name).out == "Redrove 1 message.\n"
    assert smista("dlq", "purge", dying, "--kept-in", name, "--yes").out == f"Purged 0 dead letters of queue {dying}.\n"
