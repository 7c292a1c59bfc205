"""`get`, `ack`, `nack`, `release`, `extend`."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Smista, plain_environment


def state(smista: Smista, queue: str) -> dict[str, int]:
    stats = smista("stats", queue, "--json").json
    return {name: stats[name] for name in ("ready", "in_flight", "scheduled") if stats[name]}


def test_get_prints_a_message_with_its_receipt_and_leases_it(smista: Smista, queue: str) -> None:
    smista("put", queue, "two pizzas", "-H", "colour=red")
    done = smista("get", queue)
    assert "  receipt  " in done.out
    assert "  header   colour=red\n" in done.out
    assert done.out.endswith("  body     two pizzas\n")
    assert state(smista, queue) == {"in_flight": 1}


def test_get_from_an_empty_queue_is_4(smista: Smista, queue: str) -> None:
    done = smista("get", queue)
    assert (done.code, done.out) == (4, "")
    assert smista("get", queue, "--json").err == ""


def test_get_waits_as_long_as_asked(smista: Smista, queue: str) -> None:
    smista("put", queue, "x", "--delay", "300ms")
    assert smista("get", queue, "--wait", "20s", "--body").out == "x\n"
    started_s = time.monotonic()
    assert smista("get", queue, "--wait", "300ms").code == 4
    assert time.monotonic() - started_s >= 0.3


def test_get_takes_as_many_as_asked_for_also_beyond_what_a_queue_hands_out_at_once(smista: Smista, name: str) -> None:
    smista("declare", name, "--max-prefetch", "2", "--prefetch", "1")
    smista("put", name, "a", "b", "c", "d", "e")
    assert smista("get", name, "-n", "4", "--body").out == "a\nb\nc\nd\n"


def test_get_with_ack_leaves_nothing(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    assert smista("get", queue, "-n", "5", "--ack", "--body").out == "a\nb\n"
    assert state(smista, queue) == {}


def test_get_may_hold_a_message_for_a_time_of_its_own(smista: Smista, queue: str) -> None:
    smista("put", queue, "a")
    [delivery] = smista("get", queue, "--lease", "1h", "--json").lines
    assert delivery["lease_until_ms"] - delivery["delivered_at_ms"] == 3_600_000


def test_what_was_got_is_acknowledged_by_its_receipt(smista: Smista, queue: str) -> None:
    smista("put", queue, "a")
    [delivery] = smista("get", queue, "--json").lines
    assert smista("ack", delivery["receipt"]).out == "Acknowledged 1 message.\n"
    assert state(smista, queue) == {}


def test_ack_reads_what_get_printed(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    got = smista("get", queue, "-n", "2", "--json").out
    assert smista("ack", "--json", stdin=got.encode()).json == {"done": 2, "failed": 0}


def test_ack_reads_bare_receipts_too(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    receipts = [each["receipt"] for each in smista("get", queue, "-n", "2", "--json").lines]
    assert smista("ack", stdin="\n".join(receipts).encode()).out == "Acknowledged 2 messages.\n"


def test_a_receipt_that_is_none_is_reported_and_the_others_go_on(smista: Smista, queue: str) -> None:
    smista("put", queue, "a")
    [delivery] = smista("get", queue, "--json").lines
    done = smista("ack", "rubbish", delivery["receipt"], "--json")
    assert (done.code, done.json) == (1, {"done": 1, "failed": 1})
    assert done.err.startswith("Error: rubbish: ")
    assert "[invalid_receipt]" in done.err


def test_a_line_without_a_receipt_is_wrong_usage(smista: Smista) -> None:
    assert smista("ack", stdin=b'{"message_id": "x"}\n').code == 2


def test_nack_retries_or_sets_aside(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    first, second = (each["receipt"] for each in smista("get", queue, "-n", "2", "--json").lines)
    assert smista("nack", first, "--delay", "1h").out == "Nacked 1 message, 1 requeued.\n"
    done = smista("nack", second, "--dead-letter", "--error", "no dough", "--json")
    assert done.json == {"done": 1, "failed": 0, "dead_lettered": 1}
    assert state(smista, queue) == {"scheduled": 1}


def test_release_gives_a_message_back_uncounted(smista: Smista, queue: str) -> None:
    smista("put", queue, "a")
    [delivery] = smista("get", queue, "--json").lines
    assert smista("release", delivery["receipt"]).code == 0
    assert state(smista, queue) == {"ready": 1}


def test_extend_holds_a_message_for_longer(smista: Smista, queue: str) -> None:
    smista("put", queue, "a")
    [delivery] = smista("get", queue, "--json").lines
    assert smista("extend", delivery["receipt"], "--lease", "2h").out == "Extended 1 message.\n"
    [message] = smista("browse", queue, "--json").lines
    assert message["lease_until_ms"] > delivery["lease_until_ms"] + 3_600_000


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "extend"])
def test_messages_may_be_named_by_their_ids(smista: Smista, queue: str, verb: str) -> None:
    smista("put", queue, "a")
    [delivery] = smista("get", queue, "--json").lines
    assert smista(verb, "--queue", queue, delivery["message_id"], "--json").json["done"] == 1
    assert smista(verb, "--queue", queue, "rubbish").code == 1


@pytest.mark.parametrize("flags", [[], ["--body"], ["--json"]])
@pytest.mark.parametrize("output", ["nobody reads it", "the disk is full"])
def test_what_could_not_be_written_is_given_back(
    smista: Smista, url: str, queue: str, tmp_path: Path, flags: list[str], output: str
) -> None:
    smista("put", queue, "a", "b", "c")
    if output == "nobody reads it":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open("/dev/full", os.O_WRONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "smista", "get", queue, "-n", "3", "--ack", *flags],
            env={**plain_environment(), "SMISTA_URL": url},
            cwd=tmp_path,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=180,
        )
    finally:
        os.close(writing)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    stats = smista("stats", queue, "--json").json
    assert (stats["ready"], stats["in_flight"], stats["acknowledged_total"]) == (3, 0, 0)


@pytest.mark.parametrize("flags", [[], ["--body"], ["--json"]])
def test_without_a_standard_output_nothing_is_taken(
    smista: Smista, url: str, queue: str, tmp_path: Path, flags: list[str]
) -> None:
    smista("put", queue, "a")
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, "-m", "smista", "get", queue, "--ack", *flags],
        env={**plain_environment(), "SMISTA_URL": url},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: Standard output is closed")
    assert "Traceback" not in done.stderr
    stats = smista("stats", queue, "--json").json
    assert (stats["ready"], stats["released_total"], stats["acknowledged_total"]) == (1, 0, 0)


def test_a_paused_queue_says_so(smista: Smista, queue: str) -> None:
    smista("put", queue, "x")
    smista("pause", queue)
    done = smista("get", queue)
    assert done.code == 4
    assert f"Queue {queue} is paused and delivers nothing; resume it with `smista resume {queue}`." in done.err
    for more in (("--json",), ("--body",), ("--json", "--wait", "10ms")):
        done = smista("get", queue, *more)
        assert (done.code, done.out) == (4, "")
        assert "is paused" in done.err
    smista("resume", queue)
    assert smista("get", queue).code == 0


def test_messages_are_deleted_by_their_ids(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b", "c")
    first, second, third = (each["message_id"] for each in smista("browse", queue, "--json").lines)
    done = smista("delete-message", queue, first, third, "--json")
    assert (done.code, done.json["deleted"]) == (0, 2)
    assert [each["message_id"] for each in smista("browse", queue, "--json").lines] == [second]
    done = smista("delete-message", queue, first)
    assert done.code == 1
    assert "[message_not_found]" in done.err
