"""`queues`, `declare`, `alter`, `settings`, `stats`, `pause`, `resume`, `purge`, `delete`, `info`."""

import msgspec
import pytest

from smista.cli import settings
from smista.cli.generated import meanings_of
from smista.cli.log_space import why_kept
from smista.client import LogSpace
from smista.core.settings import QueueSettings
from smista.engine import KeptFor
from tests.cli.conftest import Smista


def test_queues_are_listed_as_a_table(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    done = smista("queues", queue)
    heading, row = done.out.splitlines()
    assert heading.split()[:2] == ["queue", "ready"]
    assert row.split()[:3] == [queue, "2", "0"]
    assert (done.code, done.err) == (0, "")


def test_queues_as_json_are_one_object_per_line(smista: Smista, queue: str) -> None:
    smista("declare", queue + "-other")
    done = smista("queues", queue, "--json")
    assert [each["queue"] for each in done.lines] == [queue, queue + "-other"]
    assert done.lines[0]["ready"] == 0


def test_no_queue_at_all_is_reported_and_is_no_error(smista: Smista, name: str) -> None:
    done = smista("queues", name)
    assert (done.code, done.out, done.err) == (0, "", "There is no such queue.\n")


def test_declare_tells_whether_the_queue_is_new(smista: Smista, name: str) -> None:
    first, second = smista("declare", name), smista("declare", name, "--json")
    assert first.out == f"Queue {name} is declared.\n"
    assert second.json == {"queue": name, "created": False}


def test_declare_with_other_settings_is_refused_with_the_brokers_sentence(smista: Smista, queue: str) -> None:
    done = smista("declare", queue, "--max-retries", "9")
    assert done.code == 1
    assert "max_retries: present 3, asked for 9" in done.err
    assert "[queue_differs]" in done.err


def test_declare_may_take_a_queue_as_it_is(smista: Smista, queue: str) -> None:
    done = smista("declare", queue, "--max-retries", "9", "--if-exists", "keep")
    assert (done.code, done.out) == (0, f"Queue {queue} existed already.\n")


def test_declare_takes_every_kind_of_setting(smista: Smista, name: str) -> None:
    smista(
        *("declare", name, "--lease", "1m", "--max-retries", "none", "--retry-jitter", "0.5", "--dead-letter", "park"),
        *("--ordered", "--rate-limit", "10", "--message-ttl", "1h", "--dedup-window", "0", "--expires", "none"),
    )
    found = smista("settings", name, "--json").json
    assert (found["lease_ms"], found["max_retries"], found["retry_jitter"]) == (60_000, None, 0.5)
    assert (found["dead_letter"], found["ordered"], found["rate_limit"]) == ("park", True, 10.0)
    assert (found["message_ttl_ms"], found["dedup_window_ms"], found["expires_ms"]) == (3_600_000, 0, None)


@pytest.mark.parametrize(
    "wrong", [("--lease", "soon"), ("--max-depth", "many"), ("--dead-letter", "burn"), ("--retry-jitter", "x")]
)
def test_a_setting_that_cannot_be_read_is_wrong_usage(smista: Smista, name: str, wrong: tuple[str, str]) -> None:
    done = smista("declare", name, *wrong)
    assert done.code == 2
    assert f"{wrong[0]}: {wrong[1]!r} is not" in done.err


def test_every_setting_of_one_value_is_an_option_and_has_a_meaning() -> None:
    fields = {field.name for field in msgspec.structs.fields(QueueSettings)}
    assert fields - set(settings.option_kinds()) <= {"annotations"}
    assert set(meanings_of(QueueSettings)) == fields


def test_alter_changes_what_is_named_and_leaves_the_rest(smista: Smista, queue: str) -> None:
    done = smista("alter", queue, "--lease", "2m", "--ordered", "--no-durable")
    assert (done.code, "durable" in done.err) == (1, True)
    done = smista("alter", queue, "--lease", "2m", "--ordered", "--no-dedup-by-body", "--rate-limit", "none")
    assert done.out == f"Queue {queue} now has --lease 2m, --no-dedup-by-body, --rate-limit none, --ordered.\n"
    found = smista("settings", queue, "--json").json
    assert (found["lease_ms"], found["ordered"], found["retry_base_ms"]) == (120_000, True, 10)


def test_a_queue_is_made_fair_or_ordered_but_not_both(smista: Smista, name: str) -> None:
    assert smista("declare", name, "--fair").code == 0
    refused = smista("alter", name, "--ordered")
    assert (refused.code, "ordered or fair" in refused.err) == (1, True)
    assert smista("alter", name, "--ordered", "--no-fair").code == 0
    found = smista("settings", name, "--json").json
    assert (found["ordered"], found["fair"]) == (True, False)


def test_alter_without_a_setting_is_wrong_usage(smista: Smista, queue: str) -> None:
    assert smista("alter", queue).code == 2


def test_settings_are_shown_under_the_names_of_their_options(smista: Smista, queue: str) -> None:
    shown = dict(line.split(maxsplit=1) for line in smista("settings", queue).out.splitlines())
    assert (shown["lease"], shown["retry-base"], shown["max-depth"], shown["durable"]) == (
        "30s",
        "10ms",
        "none",
        "true",
    )


def test_stats_show_counts_and_totals(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    assert smista("stats", queue, "--json").json["published_total"] == 2
    assert "published total" in smista("stats", queue).out


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(smista: Smista, queue: str) -> None:
    smista("put", queue, "a")
    assert smista("pause", queue, "--json").json == {"queue": queue, "is_paused": True}
    assert smista("get", queue).code == 4
    assert "paused" in smista("queues", queue).out
    assert smista("resume", queue).out == f"Queue {queue} is resumed.\n"
    assert smista("get", queue).code == 0


def test_purge_removes_the_messages_and_says_how_many(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    smista("put", queue, "c", "--delay", "1h")
    assert smista("purge", queue, "--ready-only").out == f"Purged 2 messages from queue {queue}.\n"
    assert smista("purge", queue, "--json").json == {"queue": queue, "purged": 1}


def test_delete_takes_the_messages_along(smista: Smista, queue: str) -> None:
    smista("put", queue, "a")
    refused = smista("delete", queue, "--if-empty")
    assert (refused.code, "[queue_not_empty]" in refused.err) == (1, True)
    assert smista("delete", queue, "--yes").out == f"Deleted queue {queue} and 1 message.\n"
    gone = smista("stats", queue)
    assert (gone.code, "[queue_not_found]" in gone.err) == (1, True)


def test_info_tells_what_the_broker_is_and_holds(smista: Smista, queue: str) -> None:
    assert smista("info", "--json").json["queues"] >= 1
    assert smista("info").out.splitlines()[1].split()[0] == "version"


def test_info_tells_how_many_connections_there_may_be(smista: Smista) -> None:
    found = smista("info", "--json").json["connections"]
    assert 1 <= found["open"] <= found["connections_max"] == 10_000
    assert found["possible"] > 0
    shown = smista("info").out
    assert "10,000 for each protocol (connections_max)" in shown
    assert f"{found['possible']:,} in all (limit of open files)" in shown


def test_info_says_why_the_log_is_not_smaller(smista: Smista, queue: str) -> None:
    smista("put", queue, "a")
    log = smista("info", "--json").json["log"]
    assert log["kept_for"] in ("need", "retention", "last_block")
    assert 0 < log["needed_bytes"] <= log["bytes"]
    assert " of it are needed: messages," in smista("info").out.splitlines()[-1]


KEPT = {
    "need": "2.0 KiB of it are needed: messages, claims, declarations, deduplication ids. The rest is removed when it "
    "is more than 8.0 MiB.",
    "retention": "Its oldest part, 5m old, is kept for readers of the log: until it is 1h old (log_retention_ms), or "
    "the log is larger than 256.0 MiB (log_retention_bytes). 2.0 KiB of it are needed: messages, claims, declarations, "
    "deduplication ids.",
    "damage": "Its oldest block cannot be read, and has the only copy of some messages' bodies; the server's log names "
    "it. The block is removed after those messages, which are dead, have been deleted.",
    "reclaiming": "Space is being reclaimed. 2.0 KiB of it are needed: messages, claims, declarations, deduplication "
    "ids.",
    "a reason of later": "The broker gives as the reason: a reason of later.",
}


@pytest.mark.parametrize("reason", KEPT)
def test_why_the_log_is_not_smaller_is_a_sentence(reason: str) -> None:
    space = LogSpace(
        bytes=3_000,
        needed_bytes=2_048,
        spare_bytes=8 << 20,
        kept_for=reason,
        oldest_at_ms=1_000_000,
        retention_ms=3_600_000,
        retention_bytes=256 << 20,
    )
    assert why_kept(space, now_ms=1_300_000) == KEPT[reason]
    assert {each.value for each in KeptFor} - {"last_block"} < KEPT.keys()


def test_a_namespace_keeps_its_queues_apart(smista: Smista, name: str) -> None:
    smista("declare", name, "--namespace", name)
    assert smista("--namespace", name, "queues", "--json").lines[0]["namespace"] == name
    assert smista("stats", name).code == 1
