"""Claims over a real socket: the contract that a Spark source stands on."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.protocols.http.arrow_reader import rows_of
from tests.protocols.http.caller import Caller, Refusal, new_name, tracebacks
from tests.served import Served
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually


class Spark:
    """A consumer of one queue, in one session."""

    def __init__(self, http: Caller, queue: str, session: str = "one", consumer: str = "spark") -> None:
        self.http = http
        self.queue = queue
        self.session = session
        self.consumer = consumer

    def claim(self, after: int, max_rows: int = 100, **fields: Any) -> dict[str, Any]:
        answer = self.http.rest("POST", "queues", self.queue, "claims", fields=self._fields(after, max_rows, fields))
        assert answer.status == 200, answer.body
        value: dict[str, Any] = answer.value
        return value

    def refused(self, after: int, max_rows: int = 100, **fields: Any) -> Refusal:
        return self.http.rest(
            "POST", "queues", self.queue, "claims", fields=self._fields(after, max_rows, fields)
        ).refusal

    def _fields(self, after: int, max_rows: int, more: dict[str, Any]) -> dict[str, Any]:
        return {"consumer": self.consumer, "session": self.session, "after": after, "max_rows": max_rows, **more}

    def read(self, number: int, **query: Any) -> Any:
        return rows_of(self.http, self.queue, number, self.consumer, session=self.session, **query)

    def bodies(self, number: int, **query: Any) -> list[bytes]:
        found: list[bytes] = self.read(number, **query).column("body").to_pylist()
        return found

    def unread(self, number: object, **query: Any) -> Refusal:
        return self.http.rest("GET", "queues", self.queue, "claims", self.consumer, str(number), **query).refusal

    def post(self, verb: str, **fields: Any) -> Any:
        answer = self._post(verb, fields)
        assert answer.status == 200, answer.body
        return answer.value

    def unposted(self, verb: str, **fields: Any) -> Refusal:
        refusal: Refusal = self._post(verb, fields).refusal
        return refusal

    def _post(self, verb: str, fields: dict[str, Any]) -> Any:
        fields = {"session": self.session, **fields}
        return self.http.rest("POST", "queues", self.queue, "claims", self.consumer, verb, fields=fields)


@pytest.fixture
def spark(http: Caller) -> Spark:
    """A queue with bodies 0 to 9."""
    queue = http.new_queue()
    http.call("queue.publish_batch", queue=queue, bodies=[http.octets(b"%d" % number) for number in range(10)])
    return Spark(http, queue)


NUMBERS = [b"%d" % number for number in range(10)]


def test_a_life_of_claims(spark: Spark) -> None:
    first = spark.claim(0, 4)
    assert (first["number"], first["rows"], first["bytes"]) == (1, 4, 4)
    assert spark.claim(0, 9) == first
    assert spark.bodies(1) == NUMBERS[:4]
    assert spark.bodies(1, **{"from": 1, "to": 3}) == NUMBERS[1:3]
    assert spark.claim(1, 4)["number"] == 2
    assert spark.post("acknowledge", up_to=2) == {"acknowledged": 4, "late": 0}
    assert spark.post("acknowledge", up_to=2) == {"acknowledged": 0, "late": 0}
    assert spark.claim(2)["rows"] == 2
    assert spark.post("release") == {"released": 2}
    again = spark.claim(2)
    assert (again["number"], again["rows"]) == (4, 2)
    spark.post("acknowledge", up_to=4)
    assert spark.claim(4) == {"number": 4, "rows": 0}
    assert spark.http.stats(spark.queue)["depth"] == 0


def test_the_columns_are_those_of_the_contract(http: Caller) -> None:
    exchange, queue = new_name("exchange"), http.new_queue()
    http.call("exchange.declare", exchange=exchange, kind="fanout")
    http.call("exchange.bind", exchange=exchange, queue=queue)
    published = http.call(
        "exchange.publish",
        exchange=exchange,
        routing_key="a.b",
        message={"x": 1},
        headers={"trace": "7", "n": 5, "list": [1]},
        priority=3,
        group="g",
        deduplication_id="d",
    )
    http.publish(queue, "plain")
    spark = Spark(http, queue)
    spark.claim(0)
    found = spark.read(1)
    text, instant = pa.string(), pa.timestamp("us", tz="UTC")
    assert [(field.name, field.type, field.nullable) for field in found.schema] == [
        ("message_id", text, False),
        ("sequence", pa.int64(), False),
        ("body", pa.binary(), False),
        ("created_at", instant, False),
        ("delivered_at", instant, False),
        ("delivery_count", pa.int32(), False),
        ("priority", pa.int32(), False),
        ("exchange", text, True),
        ("routing_key", text, True),
        ("group", text, True),
        ("deduplication_id", text, True),
        ("content_type", text, True),
        ("headers", pa.map_(text, text), True),
        ("queue", text, False),
        ("claim", pa.int64(), False),
        ("row", pa.int32(), False),
    ]
    full, plain = sorted(found.to_pylist(), key=lambda row: -row["priority"])
    assert full["message_id"] == published["routed"][0]["message_id"]
    assert (full["body"], full["priority"], full["delivery_count"]) == (b'{"x":1}', 3, 1)
    assert (full["exchange"], full["routing_key"], full["group"]) == (exchange, "a.b", "g")
    assert (full["deduplication_id"], full["content_type"]) == ("d", "application/json")
    assert dict(full["headers"]) == {"trace": "7", "n": "5", "list": "[1]"}
    assert (full["queue"], full["claim"]) == (queue, 1)
    assert abs(full["created_at"].timestamp() - time.time()) < 60
    assert full["delivered_at"] >= full["created_at"]
    assert (plain["headers"], plain["exchange"], plain["group"]) == (None, None, None)
    assert sorted(row["row"] for row in (full, plain)) == [0, 1]


def test_message_ids_are_those_of_the_other_doors(spark: Spark) -> None:
    spark.claim(0)
    browsed = spark.http.call("queue.browse", queue=spark.queue)["messages"]
    assert spark.read(1).column("message_id").to_pylist() == [message["message_id"] for message in browsed]


def test_an_empty_slice_is_an_empty_stream_with_the_schema(spark: Spark) -> None:
    spark.claim(0)
    empty = spark.read(1, **{"from": 10})
    assert (empty.num_rows, empty.schema) == (0, spark.read(1).schema)


def test_a_head_request_says_whether_there_is_something(spark: Spark) -> None:
    spark.claim(0)
    path = f"/v1/queues/{spark.queue}/claims/spark/1"
    assert spark.http.send("HEAD", path).status == 200
    assert spark.http.send("HEAD", path[:-1] + "2").status == 404
    assert spark.bodies(1) == NUMBERS


def test_who_claims_what_is_shown(spark: Spark) -> None:
    spark.claim(0, 4)
    for path in ((), ("spark",)):
        [consumer] = spark.http.rest("GET", "queues", spark.queue, "claims", *path).value["consumers"]
        assert (consumer["consumer"], consumer["session"], consumer["acknowledged_late"]) == ("spark", "one", 0)
        assert (consumer["acknowledged"], consumer["last"]) == (0, 1)
        [claim] = consumer["claims"]
        assert (claim["number"], claim["after"], claim["rows"], claim["bytes"]) == (1, 0, 4, 4)
        assert consumer["seen_at_ms"] < claim["expires_at_ms"]
    stats = spark.http.stats(spark.queue)
    assert (stats["claims"], stats["claimed"], stats["in_flight"]) == (1, 4, 4)
    metrics = spark.http.send("GET", "/metrics").body.decode()
    assert f'smista_queue_claimed{{namespace="/",queue="{spark.queue}"}} 4' in metrics


def test_an_expired_claim_is_gone_and_told_so(spark: Spark) -> None:
    spark.claim(0, lease_ms=50)
    eventually(lambda: spark.http.stats(spark.queue)["ready"] == 10)
    for refusal in (spark.unread(1), spark.unposted("acknowledge", up_to=1)):
        assert (refusal.status, refusal.code) == (410, "claim_expired")
    assert spark.http.stats(spark.queue)["acknowledged_late_total"] == 10
    again = spark.claim(0)
    assert (again["number"], again["rows"]) == (2, 10)
    assert spark.read(2).column("delivery_count").to_pylist() == [2] * 10


def test_a_heartbeat_keeps_a_claim(spark: Spark) -> None:
    made = spark.claim(0, lease_ms=60_000)
    [claim] = spark.post("heartbeat", lease_ms=600_000)["claims"]
    assert spark.bodies(1) == NUMBERS
    assert claim["rows"] == 10
    assert claim["expires_at_ms"] >= made["expires_at_ms"] + 540_000


def test_a_purge_under_a_claim_is_an_error_not_a_shorter_batch(spark: Spark) -> None:
    spark.claim(0)
    spark.http.call("queue.purge", queue=spark.queue)
    refusal = spark.unread(1)
    assert (refusal.status, refusal.code) == (410, "claim_broken")
    assert "10 of the rows 0 to 10" in refusal.message


def test_another_session_is_fenced(spark: Spark) -> None:
    spark.claim(0, 4)
    other = Spark(spark.http, spark.queue, "two")
    for refusal in (
        other.refused(0),
        other.unread(1, session="two"),
        other.unposted("acknowledge", up_to=1),
        other.unposted("heartbeat"),
        other.unposted("release"),
    ):
        assert (refusal.status, refusal.code) == (409, "consumer_in_use")
        assert "session 'one'" in refusal.message
    assert spark.bodies(1) == NUMBERS[:4]
    spark.post("release")
    assert other.claim(0)["rows"] == 10


def test_the_next_claim_is_waited_for(http: Caller) -> None:
    spark = Spark(http, http.new_queue())
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(spark.claim(0, wait_ms=20_000)))
    waiting.start()
    with http.another() as other:
        eventually(lambda: b"smista_long_polls 1" in other.send("GET", "/metrics").body)
        other.publish(spark.queue, "late")
    waiting.join()
    assert (found[0]["number"], found[0]["rows"]) == (1, 1)
    assert spark.claim(1, wait_ms=30) == {"number": 1, "rows": 0}


@pytest.mark.parametrize(
    ("code", "number", "query"),
    [
        ("claim_not_found", 2, {}),
        ("claim_not_found", 0, {}),
        ("invalid_request", "1x", {}),
        ("path_not_found", "x", {}),
        ("method_not_allowed", "release", {}),
        ("invalid_request", -1, {}),
        ("invalid_request", 1, {"from": -1}),
        ("invalid_request", 1, {"to": "x"}),
        ("invalid_request", 1, {"nonsense": 1}),
        ("invalid_request", 1, {"queue": "twice"}),
        ("namespace_not_found", 1, {"namespace": "nowhere"}),
        ("queue_not_found", 1, {}),
        ("path_not_found", "1/2", {}),
    ],
)
def test_wrong_reads_are_refused(spark: Spark, code: str, number: object, query: dict[str, Any]) -> None:
    spark.claim(0)
    if code == "queue_not_found":
        spark.queue = "nowhere"
    path = f"/v1/queues/{spark.queue}/claims/spark/{number}"
    if query:
        [(name, value)] = query.items()
        path += f"?{name}={value}"
    refusal = spark.http.send("GET", path).refusal
    assert refusal.code in (code, "queue_not_found" if code == "namespace_not_found" else code)


@pytest.mark.parametrize(
    "wrong",
    [
        {"consumer": ""},
        {"session": ""},
        {"session": None},
        {"after": -1},
        {"max_rows": 0},
        {"max_rows": 1_000_001},
        {"max_bytes": 0},
        {"lease_ms": 0},
        {"wait_ms": 20_001},
        {"unknown": 1},
    ],
    ids=str,
)
def test_wrong_claims_are_refused(spark: Spark, wrong: dict[str, Any]) -> None:
    refusal = spark.refused(0, **wrong) if "after" not in wrong and "max_rows" not in wrong else _wrong(spark, wrong)
    assert (refusal.status, refusal.code) == (400, "invalid_request")
    assert next(iter(wrong)) in refusal.message


def _wrong(spark: Spark, wrong: dict[str, Any]) -> Refusal:
    fields = {"consumer": "spark", "session": "one", "after": 0, "max_rows": 1, **wrong}
    return spark.http.rest("POST", "queues", spark.queue, "claims", fields=fields).refusal


def test_a_checkpoint_of_another_queue_or_of_old_is_refused(spark: Spark) -> None:
    refusal = spark.refused(7)
    assert (refusal.status, refusal.code) == (404, "claim_not_found")
    assert "another queue or broker" in refusal.message
    spark.claim(0, 2)
    spark.claim(1, 2)
    refusal = spark.refused(0)
    assert (refusal.status, refusal.code) == (404, "claim_not_found")
    assert "acknowledged" in refusal.message


def test_two_readers_get_their_slices_of_a_large_claim_while_others_are_served(http: Caller) -> None:
    queue = http.new_queue()
    speaking = http.another("msgpack")
    for start in range(0, 20_000, 5_000):
        bodies = [b"%d" % number + b"x" * 1000 for number in range(start, start + 5_000)]
        speaking.call("queue.publish_batch", queue=queue, bodies=bodies, brief=True)
    spark = Spark(http, queue)
    assert spark.claim(0, 20_000)["rows"] == 20_000
    found: dict[int, Any] = {}

    def read(start: int) -> None:
        with http.another() as mine:
            found[start] = rows_of(mine, queue, 1, "spark", **{"from": start, "to": start + 10_000})

    readers = [threading.Thread(target=read, args=(start,)) for start in (0, 10_000)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for start, rows in found.items():
        assert rows.column("row").to_pylist() == list(range(start, start + 10_000))
        assert [int(body.rstrip(b"x")) for body in rows.column("body").to_pylist()] == list(
            range(start, start + 10_000)
        )
    speaking.close()


def test_a_reader_that_goes_away_is_no_trouble(spark: Spark, server: Served) -> None:
    queue, since = spark.http.new_queue(), len(server.lines)
    with spark.http.another("msgpack") as speaking:
        for _ in range(5):
            speaking.call("queue.publish_batch", queue=queue, bodies=[b"x" * 10_000] * 1_000, brief=True)
    other = Spark(spark.http, queue)
    other.claim(0, 5_000)
    connection = http.client.HTTPConnection(*spark.http.address)
    connection.request("GET", f"/v1/queues/{queue}/claims/spark/1")
    with connection.getresponse() as response:
        assert response.read(100)
    connection.close()
    assert other.read(1).num_rows == 5_000
    assert tracebacks(server, since) == ""


@pytest.mark.slow
def test_claims_survive_kill_9(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    with Caller(server.address) as caller:
        caller.call("queue.declare", queue="orders")
        caller.call("queue.publish_batch", queue="orders", bodies=[caller.octets(body) for body in NUMBERS])
        spark = Spark(caller, "orders")
        claim = spark.claim(0, 4)
        before = spark.read(1)
    server.kill()
    with server.restart(), Caller(server.address) as caller:
        spark = Spark(caller, "orders")
        assert spark.claim(0, 9) == claim
        assert spark.read(1).equals(before)
        assert Spark(caller, "orders", "two").refused(0).code == "consumer_in_use"


def test_without_pyarrow_rows_are_refused_with_the_cure(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from smista.errors import ArrowMissing\n"
        "from smista.protocols.http.errors import STATUS\n"
        "from smista.service import arrow\n"
        "try:\n    arrow.load()\nexcept ArrowMissing as error:\n    print(STATUS[error.code], error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.startswith("501 ")
    assert "pip install 'smista[spark]'" in done.stdout
