"""Positions of the log: what can be read, plans within limits, times, what was dropped, restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.http.bulk import log_range, open_log, plan, read_rows
from tests.protocols.http.caller import Answer, Caller
from tests.served import Served
from tests.server_process import ServerProcess
from tests.waiting import eventually

pytestmark = pytest.mark.slow

BODY = "x" * 1000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.fixture
def http(server: Served) -> Iterator[Caller]:
    with Caller(server.address) as caller:
        caller.call("queue.declare", queue="orders")
        yield caller


def publish_blocks(http: Caller, count: int, messages: int = 1) -> None:
    """As many blocks: each publish waits until its own is durable."""
    for _ in range(count):
        http.call("queue.publish_batch", queue="orders", messages=[{"message": BODY}] * messages)


# -- the range --------------------------------------------------------------------------------------------------------


def test_the_range_grows_with_what_is_written(http: Caller) -> None:
    before = log_range(http)
    assert before["first"] == 1
    publish_blocks(http, 3)
    after = log_range(http)
    assert (after["first"], after["next"]) == (1, before["next"] + 3)
    assert after["first_at_ms"] == before["first_at_ms"]
    assert before["next_at_ms"] <= after["next_at_ms"] <= http.call("broker.info")["now_ms"]


def test_what_was_confirmed_is_there_at_once(server: Served, http: Caller) -> None:
    for number in range(1, 20):
        publish_blocks(http, 1)
        assert len(read_rows(server.address)) == number


def test_an_end_beyond_the_log_means_its_end(server: Served, http: Caller) -> None:
    publish_blocks(http, 3)
    end = log_range(http)["next"]
    assert len(read_rows(server.address, start=end - 2, end=end + 1000)) == 2
    assert plan(http, end=1 << 60)["to"] == end


def test_a_time_leads_to_the_first_block_written_since(server: Served, http: Caller) -> None:
    publish_blocks(http, 3)
    time.sleep(0.05)
    middle = log_range(http)
    publish_blocks(http, 3)
    assert log_range(http, at_ms=middle["next_at_ms"] + 1)["position"] == middle["next"]
    assert log_range(http, at_ms=0)["position"] == 1
    end = log_range(http)
    assert log_range(http, at_ms=end["next_at_ms"] + 60_000)["position"] == end["next"]
    since = read_rows(server.address, start=middle["next"])
    assert len(since) == 3
    assert all(row["at"].timestamp() * 1000 > middle["next_at_ms"] for row in since)


def test_both_formats_are_spoken(server: Served, http: Caller) -> None:
    for path in ("/v1/log/range", "/v1/log/plan"):
        packed = http.send("GET", path, accept="application/msgpack")
        assert packed.headers["content-type"] == "application/msgpack"
        assert packed.value == http.send("GET", path).value


def test_what_is_asked_of_the_only_shard_may_name_it(server: ServerProcess, http: Caller) -> None:
    publish_blocks(http, 3)
    assert log_range(http)["shard"] == 0
    assert plan(http, shard=0) == plan(http)
    assert plan(http)["shard"] == 0
    rows = read_rows(server.address, shard=0)
    assert rows == read_rows(server.address)
    assert {row["shard"] for row in rows} == {0}


# -- plans ------------------------------------------------------------------------------------------------------------


def rows_between(server: Served, found: dict[str, Any]) -> int:
    return len(read_rows(server.address, start=found["from"], end=found["to"]))


def test_a_plan_without_limits_is_everything(server: Served, http: Caller) -> None:
    publish_blocks(http, 4, messages=5)
    found = plan(http)
    assert (found["from"], found["to"], found["rows"]) == (1, log_range(http)["next"], 20)
    assert found["bytes"] > 20_000
    assert found["partitions"] == [{name: found[name] for name in ("from", "to", "rows", "bytes")}]


def test_a_plan_ends_before_the_block_that_exceeds_its_rows(server: Served, http: Caller) -> None:
    publish_blocks(http, 4, messages=5)
    found = plan(http, max_rows=12)
    assert found["rows"] == rows_between(server, found) == 10
    assert plan(http, start=found["to"], max_rows=12)["to"] == log_range(http)["next"]


def test_a_plan_ends_before_the_block_that_exceeds_its_bytes(server: Served, http: Caller) -> None:
    publish_blocks(http, 4, messages=5)
    found = plan(http, max_bytes=12_000)
    assert found["rows"] == rows_between(server, found) == 10
    assert 10_000 < found["bytes"] <= 12_000


def test_a_plan_has_one_block_at_least(http: Caller) -> None:
    start = log_range(http)["next"]
    publish_blocks(http, 2, messages=5)
    found = plan(http, start=start, max_rows=1, max_bytes=1)
    assert (found["to"], found["rows"]) == (start + 1, 5)


def test_a_plan_of_nothing_is_empty(http: Caller) -> None:
    end = log_range(http)["next"]
    nothing = {"rows": 0, "bytes": 0, "partitions": []}
    assert plan(http, start=end, min_partitions=3) == {"shard": 0, "from": end, "to": end, **nothing}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_the_parts_of_a_plan_join_and_are_about_equal(http: Caller, count: int) -> None:
    publish_blocks(http, 20)
    start = log_range(http)["next"] - 20
    found = plan(http, start=start, min_partitions=count)
    parts = found["partitions"]
    assert len(parts) == min(count, 20)
    assert [part["from"] for part in parts] == [start, *(part["to"] for part in parts[:-1])]
    assert parts[-1]["to"] == found["to"]
    for name in ("rows", "bytes"):
        assert sum(part[name] for part in parts) == found[name]
    assert max(part["rows"] for part in parts) - min(part["rows"] for part in parts) <= 1


def test_a_plan_counts_what_has_come_since(http: Caller) -> None:
    publish_blocks(http, 3)
    assert plan(http)["rows"] == 3
    publish_blocks(http, 3)
    assert plan(http)["rows"] == 6


# -- retention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["flags", "variables", "file"])
def test_what_is_dropped_is_refused_with_the_first_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with forgetful(tmp_path, place) as server, Caller(server.address) as http:
        http.call("queue.declare", queue="orders")
        use_up(http)
        kept, answers = log_range(http), list[Answer]()
        while not answers or log_range(http) != kept:  # it may still be reclaiming
            kept = log_range(http)
            paths = ("/v1/log?from=1", "/v1/log/plan?from=1", f"/v1/log?from={kept['first'] - 1}")
            answers = [http.send("GET", path) for path in paths]
        assert kept["first"] > 1
        for answer in answers:
            refusal = answer.refusal
            assert (refusal.status, refusal.code) == (410, "log_position_dropped")
            assert f"is {kept['first']}." in refusal.message
            assert "--log-retention-ms" in refusal.message
        assert log_range(http, at_ms=0)["position"] == log_range(http)["first"]
        rows = read_rows(server.address)
        assert rows[0]["position"] >= kept["first"]
        assert {row["queue"] for row in rows} == {"orders"}


def forgetful(tmp_path: Path, place: str = "flags") -> ServerProcess:
    """A server that keeps no more of its log than it needs, told so in one of three ways."""
    settings = {"log_retention_ms": 0, "log_retention_bytes": 0, "log_slack_bytes": 100_000, "block_bytes_max": 10_000}
    if place == "file":
        file = tmp_path / "smista.toml"
        file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        return ServerProcess(tmp_path / "data", "--config", str(file))
    if place == "variables":
        variables = {f"SMISTA_{name.upper()}": str(value) for name, value in settings.items()}
        return ServerProcess(tmp_path / "data", variables=variables)
    flags = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    return ServerProcess(tmp_path / "data", *flags)


def use_up(http: Caller, position: int = 5) -> None:
    """Let so much pass through a queue that the front of the log, beyond a position, is dropped."""
    while log_range(http)["first"] <= position:
        pass_through(http)
    eventually(lambda: http.call("broker.info")["log"]["kept_for"] != "reclaiming")


def pass_through(http: Caller) -> None:
    publish_blocks(http, 5, messages=20)
    http.call("queue.ack", receipts=[each["receipt"] for each in http.receive("orders", 100)])


def test_what_is_retained_is_kept_though_nobody_needs_it(tmp_path: Path) -> None:
    flags = ("--log-slack-bytes", "100000", "--block-bytes-max", "10000")
    with ServerProcess(tmp_path / "data", *flags) as server, Caller(server.address) as http:
        http.call("queue.declare", queue="orders")
        for _ in range(10):
            pass_through(http)
        assert log_range(http)["first"] == 1
        assert len(read_rows(server.address, kind=["enqueued", "acknowledged"])) == 2_000


def test_what_reclaiming_writes_again_is_no_row(tmp_path: Path) -> None:
    with forgetful(tmp_path) as server, Caller(server.address) as http:
        http.call("queue.declare", queue="orders")
        http.call("queue.declare", queue="waiting")
        http.publish("waiting", *range(50))
        use_up(http, position=log_range(http)["next"])
        assert read_rows(server.address, queue="waiting") == []
        kept, counts = log_range(http), None
        while counts is None or log_range(http) != kept:  # it may still be reclaiming
            kept = log_range(http)
            counts = plan(http)["rows"], len(read_rows(server.address))
        assert counts[0] == counts[1]
        http.receive("waiting", 50)
        assert len(read_rows(server.address, queue="waiting", kind="delivered")) == 50


def test_the_name_of_a_deleted_queue_outlives_its_declaration(tmp_path: Path) -> None:
    with forgetful(tmp_path) as server:
        with Caller(server.address) as http:
            http.call("queue.declare", queue="orders")
            http.call("queue.declare", queue="old")
            use_up(http, position=log_range(http)["next"])
            http.publish("old", 1)
            http.call("queue.delete", queue="old")
        # Neither the broker nor any process remembers it after this; only the log does.
        server.stop()
        server.restart()
        assert [row["kind"] for row in read_rows(server.address, queue="old")] == ["enqueued", "deleted"]


# -- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_changes_no_row(server: ServerProcess, http: Caller, is_killed: bool) -> None:
    publish_blocks(http, 5, messages=3)
    http.receive("orders", 5)
    before, rows = log_range(http), read_rows(server.address, bodies="true")
    http.close()
    server.kill() if is_killed else server.stop()
    server.restart()
    after = log_range(http)
    assert (after["log_id"], after["first"]) == (before["log_id"], 1)
    assert after["next"] > before["next"]
    assert read_rows(server.address, end=before["next"], bodies="true") == rows


def test_another_log_has_another_id(server: Served, http: Caller, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "other") as other, Caller(other.address) as caller:
        assert log_range(caller)["log_id"] != log_range(http)["log_id"]


# -- reclaiming under a reader ----------------------------------------------------------------------------------------


def test_a_reader_under_whom_blocks_are_dropped_is_cut_off_and_then_told(tmp_path: Path) -> None:
    with forgetful(tmp_path) as server, Caller(server.address) as http:
        http.call("queue.declare", queue="orders")
        http.call("queue.alter", queue="orders", settings={"max_prefetch": 10_000})
        publish_blocks(http, 60, messages=500)
        start = log_range(http)["first"]
        with open_log(server.address, start=start, bodies="true") as answer:
            assert answer.status == 200
            answer.read(100)
            while received := http.receive("orders", 10_000):
                http.call("queue.ack", receipts=[each["receipt"] for each in received])
            use_up(http, position=start + 50)
            for _ in range(10):  # what was dropped is deleted with later appends
                pass_through(http)
            with pytest.raises(Exception, match=r"IncompleteRead|incomplete"):
                answer.read()
        assert refused(server, start).refusal.code == "log_position_dropped"
        eventually(lambda: "was dropped" in "\n".join(server.lines))
        assert read_rows(server.address, columns="position")[0]["position"] > start


def refused(server: Served, start: int) -> Answer:
    with Caller(server.address) as http:
        return http.send("GET", f"/v1/log?from={start}")
