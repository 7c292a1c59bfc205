"""Staged publishes over a real socket: stage, commit, repeat, discard, and everything that can be wrong with them."""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.protocols.http.arrow_reader import STREAM, rows_of, stream, table
from tests.protocols.http.caller import Answer, Caller, Refusal, new_name, tracebacks
from tests.served import Served
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import eventually

_jobs = itertools.count(1)


class Job:
    """A job that stages and commits batches."""

    def __init__(self, http: Caller, name: str | None = None) -> None:
        self.http = http
        self.name = name or f"job-{next(_jobs)}"

    def put(
        self, data: bytes, batch: object = 1, partition: object = 0, attempt: object = 0, kind: str = STREAM
    ) -> Answer:
        path = f"/v1/staged/{self.name}/{batch}/{partition}/{attempt}"
        return self.http.send("PUT", path, data, content_type=kind)

    def stage(self, *batches: Any, batch: object = 1, partition: int = 0, attempt: int = 0) -> dict[str, int]:
        answer = self.put(stream(*batches), batch, partition, attempt)
        assert answer.status == 200, answer.body
        value: dict[str, int] = answer.value
        return value

    def commit(self, *parts: tuple[int, int], batch: object = 1, **fields: Any) -> dict[str, Any]:
        answer = self._commit(parts, batch, fields)
        assert answer.status == 200, answer.body
        value: dict[str, Any] = answer.value
        return value

    def uncommitted(self, *parts: tuple[int, int], batch: object = 1, **fields: Any) -> Refusal:
        return self._commit(parts, batch, fields).refusal

    def _commit(self, parts: tuple[tuple[int, int], ...], batch: object, fields: dict[str, Any]) -> Answer:
        fields = {"parts": [list(part) for part in parts], **fields}
        return self.http.rest("POST", "staged", self.name, str(batch), "commit", fields=fields)


def bodies(*values: bytes) -> Any:
    return pa.record_batch({"body": pa.array(values, pa.binary())})


def numbers(start: int, end: int) -> Any:
    return bodies(*[b"%d" % number for number in range(start, end)])


@pytest.fixture
def job(http: Caller) -> Job:
    return Job(http)


def found(http: Caller, queue: str) -> list[Any]:
    return [message["message"] for message in http.call("queue.browse", queue=queue, limit=10_000)["messages"]]


DONE = {"duplicates": 0, "unrouted": 0}


def test_what_is_staged_is_seen_when_it_is_committed_and_once(job: Job) -> None:
    queue = job.http.new_queue()
    assert job.stage(numbers(0, 3), numbers(3, 5)) == {"rows": 5, "bytes": 5}
    assert job.stage(numbers(5, 8), partition=1) == {"rows": 3, "bytes": 3}
    job.stage(bodies(b"an attempt that failed"), partition=1, attempt=1)
    assert job.http.stats(queue)["depth"] == 0
    assert job.commit((0, 0), (1, 0), queue=queue) == {"published": 8, "repeated": False, **DONE}
    for parts in ([(0, 0), (1, 0)], [(0, 5)], []):
        assert job.commit(*parts, queue=queue) == {"published": 8, "repeated": True, **DONE}
    assert found(job.http, queue) == list("01234567")


def test_a_batch_that_is_replayed_by_other_attempts_publishes_nothing(job: Job) -> None:
    queue = job.http.new_queue()
    job.stage(numbers(0, 3))
    job.commit((0, 0), queue=queue)
    job.stage(numbers(0, 3), attempt=9)
    assert job.commit((0, 9), queue=queue)["repeated"]
    assert found(job.http, queue) == list("012")
    assert job.http.rest("DELETE", "staged", job.name, "1").value == {"discarded": 0}


def test_all_that_can_be_said_of_a_message(job: Job) -> None:
    exchange, queue = new_name("exchange"), job.http.new_queue()
    job.http.call("exchange.declare", exchange=exchange, kind="topic")
    job.http.call("exchange.bind", exchange=exchange, queue=queue, key="a.*")
    batch = pa.record_batch(
        {
            "value": ["full", "plain", "nowhere"],
            "id": ["d", None, None],
            "priority": pa.array([7, None, 0], pa.int16()),
            "delay_ms": pa.array([0, None, 0], pa.int64()),
            "ttl_ms": pa.array([3_600_000, None, 0], pa.int64()),
            "headers": pa.array([[("x", "1")], None, []], pa.map_(pa.string(), pa.string())),
            "routing_key": ["a.b", "a.c", "b"],
            "group": ["g", None, None],
            "content_type": ["text/plain", None, None],
        }
    )
    job.stage(batch)
    answer = job.commit((0, 0), exchange=exchange)
    assert answer == {"published": 2, "repeated": False, "duplicates": 0, "unrouted": 1}
    messages = {one["message"]: one for one in job.http.call("queue.browse", queue=queue)["messages"]}
    full, plain = messages["full"], messages["plain"]
    assert (full["priority"], full["headers"], full["content_type"]) == (7, {"x": "1"}, "text/plain")
    assert (full["exchange"], full["routing_key"], full["group"]) == (exchange, "a.b", "g")
    assert (full["deduplication_id"], full["ttl_ms"]) == ("d", 3_600_000)
    assert (plain["priority"], plain["headers"], plain["routing_key"]) == (0, {}, "a.c")


def test_properties_that_the_log_shows_come_back_as_they_were(tmp_path: Path) -> None:
    said = {
        "headers": {"number": 7, "list": [1, "a"]},
        "content_type": "text/plain",
        "correlation_id": "c-1",
        "reply_to": "answers",
        "timestamp_ms": 1_234,
        "ttl_ms": 3_600_000,
        "max_retries": 9,
    }
    with ServerThread(tmp_path / "data") as server, Caller(server.address) as http:
        job, source, target = Job(http), http.new_queue(), http.new_queue()
        http.call("exchange.declare", exchange="by-number", kind="headers")
        http.call("exchange.bind", exchange="by-number", queue=target, arguments={"x-match": "all", "number": 7})
        http.call("queue.publish", queue=source, message="again", **said)
        log = table(http.rest("GET", "log", queue=source, kind="enqueued", bodies="true"))
        job.stage(*log.select(["body", "properties", "ttl_ms", "max_retries"]).to_batches())
        assert job.commit((0, 0), exchange="by-number")["published"] == 1
        [found] = http.call("queue.browse", queue=target)["messages"]
        assert {name: found[name] for name in said} == said


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_streams_are_bounded_by_what_they_hold(tmp_path: Path, compression: str) -> None:
    with (
        ServerThread(tmp_path / "data", staged_bytes_max=1_000_000) as server,
        Caller(server.address) as http,
    ):
        job, queue = Job(http), http.new_queue()
        few = stream(bodies(b"x" * 400_000), bodies(b"x" * 400_000), compression=compression)
        assert (len(few) < 20_000, job.put(few).value) == (True, {"rows": 2, "bytes": 800_000})
        many = stream(*[bodies(b"x" * 400_000)] * 3, compression=compression)
        for large in (many, stream(bodies(b"x" * 1_000_000), compression=compression)):
            refusal = job.put(large, attempt=1).refusal
            assert (refusal.status, refusal.code) == (413, "request_too_large")
            assert "over 1000000 bytes when it is decompressed" in refusal.message
            assert "staged_bytes_max" in refusal.message
        assert job.uncommitted((0, 1), queue=queue).code == "stage_not_found"
        assert job.commit((0, 0), queue=queue)["published"] == 2


def test_a_length_that_a_compressed_buffer_lies_about_takes_no_memory(job: Job) -> None:
    good = stream(bodies(b"x" * 100_000), compression="zstd")
    frame = b"\x28\xb5\x2f\xfd"  # how what zstd has made begins
    length = struct.pack("<q", 100_000) + frame
    assert good.count(length) == 1
    for lie, expected in ((1 << 50, (413, "request_too_large")), (5, (400, "invalid_request"))):
        refusal = job.put(good.replace(length, struct.pack("<q", lie) + frame)).refusal
        assert (refusal.status, refusal.code) == expected


def test_delays_are_kept(job: Job) -> None:
    queue = job.http.new_queue()
    job.stage(pa.record_batch({"body": [b"later"], "delay_ms": [3_600_000]}))
    job.commit((0, 0), queue=queue)
    assert job.http.stats(queue)["scheduled"] == 1


def test_what_is_claimed_can_be_staged_again(job: Job) -> None:
    """From queue to queue without touching a body."""
    source, target = job.http.new_queue(), job.http.new_queue()
    job.http.publish(source, 1, 2, 3)
    job.http.call("claim.make", queue=source, consumer="c", session="s", after=0, max_rows=10)
    rows = rows_of(job.http, source, 1, "c").select(["body", "headers", "content_type"])
    job.stage(*rows.to_batches())
    job.commit((0, 0), queue=target)
    assert found(job.http, target) == [1, 2, 3]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_bodies_of_any_kind(job: Job, kind: Any) -> None:
    queue = job.http.new_queue()
    job.stage(pa.record_batch({"body": pa.array(["ä", ""], kind)}))
    job.commit((0, 0), queue=queue)
    assert found(job.http, queue) == ["ä", ""]


def test_many_rows_in_many_slices(job: Job) -> None:
    queue = job.http.new_queue()
    job.stage(*[numbers(start, start + 1_700) for start in range(0, 5_100, 1_700)])
    assert job.commit((0, 0), queue=queue)["published"] == 5_100
    assert found(job.http, queue) == [str(number) for number in range(5_100)]


def test_an_empty_batch_and_empty_partitions(job: Job) -> None:
    queue = job.http.new_queue()
    assert job.commit(queue=queue) == {"published": 0, "repeated": False, **DONE}
    assert job.commit(queue=queue)["repeated"]
    assert job.stage(numbers(0, 0), batch=2) == {"rows": 0, "bytes": 0}
    job.stage(numbers(0, 2), batch=2, partition=1)
    assert job.commit((0, 0), (1, 0), batch=2, queue=queue)["published"] == 2


def test_what_is_discarded_cannot_be_committed(job: Job) -> None:
    queue = job.http.new_queue()
    job.stage(numbers(0, 2))
    job.stage(numbers(2, 4), partition=1)
    assert job.http.rest("DELETE", "staged", job.name, "1").value == {"discarded": 2}
    assert job.http.rest("DELETE", "staged", job.name, "1").value == {"discarded": 0}
    refusal = job.uncommitted((0, 0), queue=queue)
    assert (refusal.status, refusal.code) == (404, "stage_not_found")
    assert "Partition 0, attempt 0" in refusal.message
    job.stage(numbers(0, 2))
    assert job.commit((0, 0), queue=queue)["published"] == 2


# -- refused ----------------------------------------------------------------------------------------------------------

HEADERS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"body": [b"x"], "colour": ["red"]}, "columns that are not known: colour. The columns known are body, value"),
        ({"priority": [1]}, "a column `body` or a column `value`"),
        ({"body": [b"x"], "value": [b"y"]}, "one of them"),
        ({"body": [1]}, "Column 'body' is of type int64; give binary or string"),
        ({"body": [b"x"], "id": [1]}, "Column 'id' is of type int64; give string"),
        ({"body": [b"x"], "priority": ["1"]}, "Column 'priority' is of type string; give a whole number"),
        ({"body": [b"x"], "headers": ["x"]}, "Column 'headers' is of type string; give a map of string to string"),
        ({"body": [b"x", None]}, "Row 1: `body` is null"),
        ({"body": [b"x"] * 3, "priority": [0, 256, 1]}, "Row 1: `priority` is not from 0 to 255"),
        ({"body": [b"x"], "priority": pa.array([1 << 63], pa.uint64())}, "`priority` is not from 0 to 255"),
        ({"body": [b"x"], "delay_ms": [-1]}, "Row 0: `delay_ms` is not from 0 to"),
        ({"body": [b"x"], "ttl_ms": [1 << 60]}, "Row 0: `ttl_ms` is not from 0 to"),
        ({"body": [b"x"], "id": [""]}, "Row 0: `id` has not 1 to 1024 characters"),
        ({"body": [b"x"], "group": ["g" * 1025]}, "Row 0: `group` has not 1 to 1024 characters"),
        ({"body": [b"x"], "properties": [b"\x01"], "content_type": ["a"]}, "`properties` say also what headers and"),
        ({"body": [b"x"], "properties": ["text"]}, "Column 'properties' is of type string; give binary"),
        ({"body": [b"x"], "properties": [b"\x63nobody's"]}, "`properties` are not those of a message"),
        ({"body": [b"x"], "properties": [b"\x01nonsense"]}, "`properties` are not those of a message"),
        ({"body": [b"x"], "properties": [b"\x02nonsense"]}, "`properties` are not those of a message"),
        # An SQS attribute that is a number, which SQS could not show.
        ({"body": [b"x"], "properties": [b"\x03\x91\x81\xa1a\x92\xa1S\x01"]}, "`properties` are not those of"),
        ({"body": [b"x"], "properties": [b"\x01" * 70_000]}, "Row 0: `properties` take more than 65536 bytes"),
        ({"body": [b"x"], "max_retries": [-1]}, "Row 0: `max_retries` is not from 0 to"),
        (
            {"body": [b"x"] * 2, "headers": pa.array([[], [("h", "x" * 70_000)]], HEADERS)},
            "Row 1: `headers` take more than 65536 bytes",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_rows_that_cannot_be_published_are_not_staged(job: Job, wrong: dict[str, Any], says: str) -> None:
    refusal = job.put(stream(pa.record_batch(wrong))).refusal
    assert (refusal.status, refusal.code) == (400, "invalid_request")
    assert says in refusal.message
    assert job.uncommitted((0, 0), queue=job.http.new_queue()).code == "stage_not_found"


def test_bytes_that_are_no_arrow_are_refused(job: Job, server: Served) -> None:
    good, since = stream(numbers(0, 1000)), len(server.lines)
    for bad in (
        b"",
        b"{}",
        os.urandom(1000),
        good[:-8],
        good[: len(good) // 2],
        good[:100] + os.urandom(50) + good[150:],
        b"\xff\xff\xff\xff\0\0\0\0",
    ):
        refusal = job.put(bad).refusal
        assert (refusal.status, refusal.code) == (400, "invalid_request"), bad[:20]
        assert "not a stream of Arrow" in refusal.message
    assert tracebacks(server, since) == ""


def test_buffers_that_lie_about_their_offsets_are_refused(job: Job) -> None:
    good = stream(bodies(b"abcde", b"fghi"))
    offsets = struct.pack("<3i", 0, 5, 9)
    assert good.count(offsets) == 1
    refusal = job.put(good.replace(offsets, struct.pack("<3i", 0, 0x0FFFFFFF, 9))).refusal
    assert (refusal.status, refusal.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("invalid_request", {"batch": "a%2Fb"}),
        ("invalid_request", {"batch": "ä"}),
        ("invalid_request", {"batch": "x" * 101}),
        ("invalid_request", {"partition": "x"}),
        ("invalid_request", {"attempt": -1}),
        ("unsupported_media_type", {"kind": "application/json"}),
    ],
)
def test_wrong_names_are_refused(job: Job, code: str, place: dict[str, Any]) -> None:
    place = {name: str(value).replace("ä", "%C3%A4") for name, value in place.items()}
    assert job.put(stream(numbers(0, 1)), **place).refusal.code == code


def test_names_cannot_leave_the_folder(http: Caller) -> None:
    for name in ("..", ".", "..%2F..", "%2Ftmp"):
        assert Job(http, name).put(stream(numbers(0, 1))).refusal.code == "invalid_request"
        assert Job(http).put(stream(numbers(0, 1)), batch=name).refusal.code == "invalid_request"


def test_a_commit_that_cannot_be_is_refused_as_a_whole(job: Job) -> None:
    small = job.http.new_queue(max_depth=3, max_priority=5, body_bytes_max=10)
    job.stage(numbers(0, 4), batch=1)
    job.stage(bodies(b"x" * 11), batch=2)
    job.stage(pa.record_batch({"body": [b"x"], "priority": [6]}), batch=3)
    for batch, code in ((1, "queue_full"), (2, "message_too_large"), (3, "invalid_priority")):
        assert job.uncommitted((0, 0), batch=batch, queue=small).code == code
    assert job.uncommitted((0, 0), queue="nowhere").code == "queue_not_found"
    assert job.uncommitted((0, 0), exchange="nowhere").code == "exchange_not_found"
    assert job.uncommitted((0, 0), (0, 0), queue=small).code == "invalid_request"
    assert job.uncommitted((0, 0)).code == "invalid_request"
    assert job.uncommitted((0, 0), queue=small, exchange="").code == "invalid_request"
    assert job.uncommitted((0, 0), (7, 0), queue=job.http.new_queue()).code == "stage_not_found"
    assert job.http.stats(small)["depth"] == 0
    # What was refused is still staged.
    job.http.call("queue.alter", queue=small, settings={"max_depth": 4})
    assert job.commit((0, 0), queue=small)["published"] == 4


def test_a_queue_behind_an_exchange_that_cannot_take_its_rows_refuses_all(job: Job) -> None:
    exchange, small, large = new_name("exchange"), job.http.new_queue(max_depth=3), job.http.new_queue()
    job.http.call("exchange.declare", exchange=exchange, kind="fanout")
    for queue in (small, large):
        job.http.call("exchange.bind", exchange=exchange, queue=queue)
    job.stage(numbers(0, 4))
    assert job.uncommitted((0, 0), exchange=exchange).code == "queue_full"
    assert (job.http.stats(small)["depth"], job.http.stats(large)["depth"]) == (0, 0)


# -- a server of its own ----------------------------------------------------------------------------------------------


def staged_files(data: Path) -> list[Path]:
    # `os.walk` minds no directory that is swept away meanwhile.
    return [Path(folder, name) for folder, _, names in os.walk(data / "staged") for name in names]


@pytest.mark.slow
def test_what_is_staged_survives_kill_9_and_so_does_what_was_committed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = ServerProcess(data).start()
    with Caller(server.address) as http:
        job = Job(http, "job")
        http.call("queue.declare", queue="orders")
        job.stage(numbers(0, 3))
        job.stage(numbers(3, 6), batch=2)
        job.commit((0, 0), queue="orders")
    server.kill()
    with server.restart(), Caller(server.address) as http:
        job = Job(http, "job")
        assert job.commit((0, 0), queue="orders") == {"published": 3, "repeated": True, **DONE}
        assert job.commit((0, 0), batch=2, queue="orders") == {"published": 3, "repeated": False, **DONE}
        assert found(http, "orders") == list("012345")
        assert staged_files(data) == []


@pytest.mark.slow
def test_what_nobody_commits_is_swept_away(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Caller(server.address) as http:
        Job(http).stage(numbers(0, 3))
        assert staged_files(tmp_path / "data")
    with ServerProcess(tmp_path / "data", "--staged-expires-ms", "200"):
        eventually(lambda: not staged_files(tmp_path / "data"))
    with ServerProcess(tmp_path / "data", "--staged-expires-ms", "200") as server, Caller(server.address) as http:
        Job(http).stage(numbers(0, 3))
        eventually(lambda: not staged_files(tmp_path / "data"))


def test_a_file_that_is_damaged_is_not_published(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerThread(data) as server, Caller(server.address) as http:
        http.call("queue.declare", queue="orders")
        job = Job(http)
        job.stage(bodies(b"x" * 1000))
        [file] = staged_files(data)
        written = bytearray(file.read_bytes())
        written[written.index(b"x" * 1000) + 500] ^= 1
        file.write_bytes(written)
        refusal = job.uncommitted((0, 0), queue="orders")
        assert (refusal.status, refusal.code) == (409, "stage_damaged")
        assert http.stats("orders")["depth"] == 0


def test_a_stream_over_the_limit_is_refused_and_others_may_be_larger_than_requests(tmp_path: Path) -> None:
    limits = {"staged_bytes_max": 3_000_000, "request_bytes_max": 100_000}
    with ServerThread(tmp_path / "data", **limits) as server, Caller(server.address) as http:
        http.call("queue.declare", queue="orders")
        job = Job(http)
        assert job.stage(*[bodies(*[b"x" * 1000] * 100)] * 20)["rows"] == 2000
        refusal = job.put(stream(bodies(b"x" * 3_000_001)), attempt=1).refusal
        assert (refusal.status, refusal.code) == (413, "request_too_large")
        assert "staged_bytes_max" in refusal.message
        with Caller(server.address) as other:
            assert Job(other, job.name).commit((0, 0), queue="orders")["published"] == 2000
    assert staged_files(tmp_path / "data") == []
