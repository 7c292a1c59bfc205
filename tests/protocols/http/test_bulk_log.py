"""`GET /v1/log`: every kind of row with every column, and what can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import aio_pika
import pyarrow as pa
import pytest

from smista.bulk.columns import ALWAYS_THERE, COLUMNS, KINDS
from tests.protocols.http.bulk import Row, log_range, plan, read_rows, read_table
from tests.protocols.http.caller import Caller, Refusal, new_name
from tests.served import Served
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:aio_pika")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("bulk") / "data") as server:
        yield server


@pytest.fixture
def http(server: Served) -> Iterator[Caller]:
    with Caller(server.address) as caller:
        yield caller


class Log:
    """The rows of one queue."""

    def __init__(self, http: Caller, queue: str) -> None:
        self.http = http
        self.queue = queue

    def rows(self, **query: object) -> list[Row]:
        return read_rows(self.http.address, queue=self.queue, **{"bodies": "true", **query})

    def kinds(self) -> list[str]:
        return [row["kind"] for row in self.rows()]

    def last(self, kind: str) -> Row:
        """The last row of a kind, without what every row has."""
        row = self.rows(kind=kind)[-1]
        assert (row.pop("kind"), row.pop("namespace"), row.pop("queue")) == (kind, "/", self.queue)
        assert (row.pop("shard"), row.pop("position") > 0) == (0, True)
        assert row.pop("index") >= 0
        assert abs(row.pop("at") - datetime.now(UTC)) < timedelta(minutes=1)
        return row

    def wait_for(self, kind: str) -> Row:
        eventually(lambda: kind in self.kinds())
        return self.last(kind)


@pytest.fixture
def log(http: Caller) -> Log:
    return Log(http, http.new_queue())


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


# -- entering ---------------------------------------------------------------------------------------------------------


def test_a_publish_is_an_enqueued_row_with_all_that_was_said(http: Caller, log: Log) -> None:
    [message_id] = http.publish(
        log.queue,
        {"dish": "pizza"},
        priority=7,
        ttl_ms=60_000,
        delay_ms=30_000,
        group="table 4",
        deduplication_id="order 1",
        max_retries=2,
        headers={"text": "a", "number": 1, "list": [1, "é"], "truth": True},
    )
    [seen] = http.call("queue.browse", queue=log.queue)["messages"]
    row = log.last("enqueued")
    assert row.pop("properties")[0] == 1
    assert row.pop("sequence") > 0
    assert row == {
        "message_id": message_id,
        "created_at": instant(seen["created_at_ms"]),
        "priority": 7,
        "ready_at": instant(seen["ready_at_ms"]),
        "expires_at": instant(seen["expires_at_ms"]),
        "group": "table 4",
        "deduplication_id": "order 1",
        "ttl_ms": 60_000,
        "max_retries": 2,
        "content_type": "application/json",
        "headers": [("text", "a"), ("number", "1"), ("list", '[1,"é"]'), ("truth", "true")],
        "body_bytes": 16,
        "body": b'{"dish":"pizza"}',
    }


def test_a_plain_publish_has_what_every_message_has(http: Caller, log: Log) -> None:
    http.call("queue.publish", queue=log.queue, body="cmF3")
    row = log.last("enqueued")
    assert row.keys() == {"sequence", "message_id", "created_at", "priority", "ready_at", "body_bytes", "body"}
    assert row["ready_at"] == row["created_at"]
    assert (row["body"], row["body_bytes"], row["priority"]) == (b"raw", 3, 0)


@pytest.mark.parametrize("sizes", [[0] * 40, [5] * 40, list(range(40))], ids=["empty", "even", "uneven"])
def test_a_batch_is_a_row_per_message(http: Caller, log: Log, sizes: list[int]) -> None:
    bodies = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
    messages = [
        {"body": http.octets(body), "priority": number, "headers": {"n": number // 20}}
        for number, body in enumerate(bodies)
    ]
    answer = http.call("queue.publish_batch", queue=log.queue, messages=messages)
    rows = log.rows()
    assert [row["body"] for row in rows] == bodies
    assert [row["priority"] for row in rows] == list(range(40))
    assert [row["headers"] for row in rows] == [[("n", str(number // 20))] for number in range(40)]
    assert [row["message_id"] for row in rows] == [result["message_id"] for result in answer["results"]]
    assert len({row["position"] for row in rows}) == 1
    assert [row["index"] for row in rows] == list(range(40))


@pytest.mark.parametrize("times", [{"delay_ms": 50_000}, {"ttl_ms": 50_000}, {"delay_ms": 10_000, "ttl_ms": 50_000}])
def test_a_batch_with_times_of_its_own_keeps_them(http: Caller, log: Log, times: dict[str, int]) -> None:
    http.call("queue.publish_batch", queue=log.queue, messages=[{"message": 1, **times}] * 30)
    seen = http.call("queue.browse", queue=log.queue, limit=100)["messages"]
    for row, message in zip(log.rows(), seen, strict=True):
        assert row["ready_at"] == instant(message["ready_at_ms"])
        assert row.get("expires_at") == (instant(message["expires_at_ms"]) if "ttl_ms" in times else None)


def test_a_message_for_several_queues_is_a_row_in_each(http: Caller, log: Log) -> None:
    other, exchange = Log(http, http.new_queue(message_ttl_ms=60_000)), new_name("exchange")
    http.call("exchange.declare", exchange=exchange, kind="fanout")
    for queue in (log.queue, other.queue):
        http.call("exchange.bind", exchange=exchange, queue=queue)
    routed = http.call("exchange.publish", exchange=exchange, routing_key="key", message="for all")["routed"]
    ids = {each["queue"]: each["message_id"] for each in routed}
    for each in (log, other):
        row = each.last("enqueued")
        assert (row["exchange"], row["routing_key"], row["body"]) == (exchange, "key", b'"for all"')
        assert row["message_id"] == ids[each.queue]
        assert ("expires_at" in row) == (each is other)


def test_properties_of_other_doors_are_read(server: Served, http: Caller, log: Log) -> None:
    async def publish() -> None:
        async with await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{server.amqp_port}/") as connection:
            channel = await connection.channel()
            message = aio_pika.Message(b"x", headers={"shop": "north", "n": 3}, content_type="text/plain")
            await channel.default_exchange.publish(message, log.queue)

    asyncio.run(publish())
    row = log.last("enqueued")
    assert (row["content_type"], dict(row["headers"])) == ("text/plain", {"shop": "north", "n": "3"})
    assert row["properties"][0] == 2


# -- deliveries -------------------------------------------------------------------------------------------------------


def test_a_delivery_has_its_consumer_and_the_end_of_its_lease(http: Caller, log: Log) -> None:
    http.publish(log.queue, 1, 2)
    received = http.receive(log.queue, 2, consumer="worker", lease_ms=5_000)
    rows = log.rows(kind="delivered")
    assert [row["consumer"] for row in rows] == ["worker"] * 2
    assert [row["deadline_at"] for row in rows] == [instant(each["lease_until_ms"]) for each in received]
    assert [row["sequence"] for row in rows] == [row["sequence"] for row in log.rows(kind="enqueued")]
    assert [row["delivery_count"] for row in rows] == [1, 1]


def test_a_delivery_that_is_not_the_first_is_not_numbered(http: Caller, log: Log) -> None:
    http.publish(log.queue, 1)
    for _ in range(2):
        [received] = http.receive(log.queue)
        http.call("queue.release", receipt=received["receipt"])
    assert [row.get("delivery_count") for row in log.rows(kind="delivered")] == [1, None]


def test_an_extended_lease_has_another_end(http: Caller, log: Log) -> None:
    http.publish(log.queue, 1)
    [received] = http.receive(log.queue)
    http.call("queue.extend", receipt=received["receipt"], lease_ms=600_000)
    assert log.last("extended").pop("deadline_at") > datetime.now(UTC) + timedelta(minutes=9)


def test_a_nack_returns_a_message_with_its_error(http: Caller, log: Log) -> None:
    http.publish(log.queue, 1)
    [received] = http.receive(log.queue)
    http.call("queue.nack", receipt=received["receipt"], error="no oven: ☹", delay_ms=3_600_000)
    row = log.last("returned")
    assert (row["reason"], row["error"]) == ("nacked", "no oven: ☹")
    assert row["ready_at"] > datetime.now(UTC) + timedelta(minutes=50)


def test_a_release_and_a_lease_that_ran_out_return_a_message_too(http: Caller, log: Log) -> None:
    http.publish(log.queue, 1)
    [received] = http.receive(log.queue)
    http.call("queue.release", receipt=received["receipt"])
    assert log.last("returned")["reason"] == "released"
    http.receive(log.queue, lease_ms=1)
    eventually(lambda: len(log.rows(kind="returned")) == 2)
    row = log.last("returned")
    assert (row["reason"], "error" in row) == ("timed_out", False)


def test_an_ack_ends_it(http: Caller, log: Log) -> None:
    http.publish(log.queue, 1, 2, 3)
    receipts = [each["receipt"] for each in http.receive(log.queue, 3)]
    http.call("queue.ack", receipts=receipts)
    rows = log.rows(kind="acknowledged")
    assert [row["sequence"] for row in rows] == [row["sequence"] for row in log.rows(kind="enqueued")]
    assert rows[0].keys() == {"shard", "position", "index", "at", "kind", "namespace", "queue", "sequence"}


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_scheduled_message_is_rescheduled_and_becomes_ready(http: Caller, log: Log) -> None:
    [message_id] = http.publish(log.queue, 1, delay_ms=60_000)
    answer = http.call("scheduled.change", queue=log.queue, message_id=message_id, delay_ms=10)
    assert answer["success"]
    assert log.last("rescheduled").keys() == {"sequence", "ready_at"}
    assert log.wait_for("ready") == {"sequence": log.last("rescheduled")["sequence"]}


def test_a_cancelled_message_is_removed(http: Caller, log: Log) -> None:
    [message_id] = http.publish(log.queue, 1, delay_ms=60_000)
    http.call("scheduled.cancel", queue=log.queue, message_id=message_id)
    assert log.last("removed") == {"sequence": log.last("enqueued")["sequence"], "reason": "cancelled"}


def test_a_message_that_outlived_its_time_is_expired(http: Caller) -> None:
    log = Log(http, http.new_queue(dead_letter="park"))
    http.publish(log.queue, 1, ttl_ms=1)
    assert log.wait_for("expired") == {"sequence": log.last("enqueued")["sequence"], "reason": "expired"}


def test_a_message_that_made_room_is_removed(http: Caller) -> None:
    log = Log(http, http.new_queue(max_depth=1, overflow="drop-oldest"))
    http.publish(log.queue, 1, 2)
    assert log.last("removed")["reason"] == "overflow"


# -- dead letters -----------------------------------------------------------------------------------------------------


def fail(http: Caller, queue: str) -> None:
    [received] = http.receive(queue)
    http.call("queue.nack", receipt=received["receipt"], requeue=False, error="burnt")


def test_a_dead_letter_moves_and_comes_back(http: Caller, log: Log) -> None:
    http.publish(log.queue, 1)
    fail(http, log.queue)
    dead = log.last("dead_lettered")
    target = Log(http, dead["target_queue"])
    assert target.queue == f"{log.queue}_dlq"
    assert (dead["reason"], dead["error"]) == ("rejected", "burnt")
    http.call("dlq.retry", queue=log.queue)
    moved = target.last("moved")
    assert (moved["sequence"], moved["target_queue"]) == (dead["target_sequence"], log.queue)
    [received] = http.receive(log.queue)
    http.call("queue.ack", receipt=received["receipt"])
    assert log.last("acknowledged")["sequence"] == moved["target_sequence"]


def test_a_parked_dead_letter_stays_where_it_is(http: Caller) -> None:
    log = Log(http, http.new_queue(dead_letter="park"))
    http.publish(log.queue, 1)
    fail(http, log.queue)
    row = log.last("dead_lettered")
    assert row == {"sequence": log.last("enqueued")["sequence"], "reason": "rejected", "error": "burnt"}


def test_a_dead_letter_exchange_gives_its_address_and_copies_are_enqueued(http: Caller) -> None:
    exchange = new_name("exchange")
    http.call("exchange.declare", exchange=exchange, kind="fanout")
    targets = {name: Log(http, name) for name in (http.new_queue(), http.new_queue())}
    for name in targets:
        http.call("exchange.bind", exchange=exchange, queue=name)
    log = Log(http, http.new_queue(dead_letter_exchange=exchange, dead_letter_routing_key="failed"))
    http.publish(log.queue, "x", headers={"a": "b"})
    fail(http, log.queue)
    row = log.last("dead_lettered")
    assert (row["exchange"], row["routing_key"]) == (exchange, "failed")
    [copied] = [each for name, each in targets.items() if name != row["target_queue"]]
    copy = copied.last("enqueued")
    [seen] = http.call("queue.browse", queue=copied.queue)["messages"]
    assert (copy["message_id"], copy["created_at"]) == (seen["message_id"], instant(seen["created_at_ms"]))
    assert (copy["exchange"], copy["routing_key"], copy["body"]) == (exchange, "failed", b'"x"')
    assert dict(copy["headers"]) == {"a": "b"}
    assert copied.kinds() == ["enqueued"]
    assert targets[row["target_queue"]].kinds() == []


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ready_only", [True, False])
def test_a_purge_is_one_row_that_says_how_many(http: Caller, log: Log, ready_only: bool) -> None:
    http.publish(log.queue, 1, 2, 3)
    http.call("queue.purge", queue=log.queue, ready_only=ready_only)
    row = log.last("purged")
    newest = log.rows(kind="enqueued")[-1]["sequence"]
    assert row.pop("target_sequence") > newest
    assert row == {"count": 3, "reason": "ready" if ready_only else "all"}


def test_a_deleted_queue_keeps_its_name_in_the_log(http: Caller, log: Log) -> None:
    http.publish(log.queue, 1)
    http.call("queue.delete", queue=log.queue)
    assert log.kinds() == ["enqueued", "deleted"]
    assert log.last("deleted") == {}
    http.call("queue.declare", queue=log.queue)
    http.publish(log.queue, 2)
    assert [row.get("body") for row in log.rows()] == [b"1", None, b"2"]


def test_a_queue_that_is_not_durable_leaves_no_rows(http: Caller) -> None:
    log = Log(http, http.new_queue(durable=False))
    http.publish(log.queue, 1)
    assert log.rows() == []


# -- asking -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def story(server: Served) -> Iterator[Log]:
    """A queue in whose rows are several kinds."""
    with Caller(server.address) as http:
        log = Log(http, new_name("story"))
        http.call("queue.declare", queue=log.queue)
        http.publish(log.queue, *range(10))
        http.call("queue.ack", receipts=[each["receipt"] for each in http.receive(log.queue, 5)])
        http.call("queue.purge", queue=log.queue)
        yield log


def test_the_schema_is_what_the_page_says(story: Log) -> None:
    schema = read_table(story.http.address, queue=story.queue).schema
    assert schema.names == list(COLUMNS)
    assert [field.name for field in schema if not field.nullable] == list(ALWAYS_THERE)
    kinds = {"int64": pa.int64(), "int32": pa.int32(), "string": pa.string(), "binary": pa.binary()}
    kinds |= {"instant": pa.timestamp("us", tz="UTC"), "map": pa.map_(pa.string(), pa.string())}
    assert schema.types == [kinds[kind] for kind in COLUMNS.values()]


def test_bodies_come_only_when_asked_for(story: Log) -> None:
    without = read_table(story.http.address, queue=story.queue)
    assert without["body"].null_count == len(without)
    assert without["body_bytes"].null_count < len(without)
    assert [row["body"] for row in story.rows(kind="enqueued")] == [b"%d" % number for number in range(10)]


def test_columns_can_be_chosen(story: Log) -> None:
    table = read_table(story.http.address, queue=story.queue, columns="queue, sequence,kind")
    assert table.schema.names == ["kind", "queue", "sequence"]
    assert table.to_pylist() == [
        {name: row.get(name) for name in ("kind", "queue", "sequence")} for row in story.rows()
    ]


@pytest.mark.parametrize("column", COLUMNS)
def test_each_column_alone_is_as_among_all(story: Log, column: str) -> None:
    whole = read_table(story.http.address, queue=story.queue, bodies="true")
    alone = read_table(story.http.address, queue=story.queue, bodies="true", columns=column)
    assert alone.column_names == [column]
    assert alone[column].to_pylist() == whole[column].to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_alone_is_as_among_all(story: Log, kind: str) -> None:
    whole = read_rows(story.http.address, queue=story.queue)
    assert read_rows(story.http.address, queue=story.queue, kind=kind) == [row for row in whole if row["kind"] == kind]


def test_kinds_and_queues_may_be_several_and_patterns(server: Served, http: Caller, story: Log) -> None:
    other = new_name("story")
    http.call("queue.declare", queue=other)
    http.publish(other, 1)
    both = read_rows(server.address, queue=[story.queue, other], kind=["enqueued", "purged"])
    assert {(row["queue"], row["kind"]) for row in both} == {
        (story.queue, "enqueued"),
        (story.queue, "purged"),
        (other, "enqueued"),
    }
    assert read_rows(server.address, queue="story-*", kind=["enqueued", "purged"]) == both
    assert read_rows(server.address, queue="no such queue") == []


def test_other_namespaces_have_to_be_named(server: Served, http: Caller, log: Log) -> None:
    namespace = new_name("namespace")
    http.call("queue.declare", queue=log.queue, namespace=namespace)
    http.call("queue.publish", queue=log.queue, namespace=namespace, message=1)
    assert log.rows() == []
    assert [row["namespace"] for row in log.rows(namespace=namespace)] == [namespace]
    assert [row["namespace"] for row in log.rows(namespace="*")] == [namespace]


def test_rows_keep_their_place_whatever_was_asked_for(server: Served, story: Log) -> None:
    everything = read_rows(server.address, namespace="*")
    places = [(row["position"], row["index"]) for row in everything]
    assert places == sorted(set(places))
    for position in {place[0] for place in places}:
        assert [index for at, index in places if at == position] == list(range(len(places)))[
            : sum(at == position for at, _ in places)
        ]
    by_place = dict(zip(places, everything, strict=True))
    for row in read_rows(server.address, queue=story.queue, kind=["acknowledged", "purged"]):
        assert by_place[row["position"], row["index"]] == row


def test_the_parts_of_a_plan_together_are_the_whole(server: Served, http: Caller, story: Log) -> None:
    parts = plan(http, min_partitions=4)["partitions"]
    assert len(parts) == 4
    rows = []
    for part in parts:
        found = read_rows(server.address, start=part["from"], end=part["to"], namespace="*")
        assert len(found) == part["rows"]
        rows += found
    assert rows == read_rows(server.address, end=parts[-1]["to"], namespace="*")


def test_an_empty_range_has_a_schema_and_no_rows(server: Served, http: Caller) -> None:
    end = log_range(http)["next"]
    table = read_table(server.address, start=end, end=end + 100)
    assert (len(table), table.schema.names) == (0, list(COLUMNS))


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "code", "said"),
    [
        ("colour=red", "invalid_request", "colour"),
        ("from=one", "invalid_request", "from"),
        ("from=-1", "invalid_request", "from"),
        ("from=1&from=2", "invalid_request", "from"),
        ("bodies=perhaps", "invalid_request", "bodies"),
        ("queue=%ff", "invalid_request", "UTF-8"),
        ("kind=eaten", "invalid_argument", "'eaten'"),
        ("columns=position,colour", "invalid_argument", "'colour'"),
        ("columns=", "invalid_argument", "''"),
        ("from=2&to=1", "invalid_argument", "before"),
        ("from=1000000", "invalid_argument", "not written yet"),
        ("shard=1", "invalid_argument", "There is no shard 1"),
        ("shard=65536", "invalid_request", "shard"),
    ],
)
def test_what_makes_no_sense_is_refused(http: Caller, log: Log, query: str, code: str, said: str) -> None:
    refusal = http.send("GET", f"/v1/log?{query}").refusal
    assert (refusal.status, refusal.code) == (400, code)
    assert said in refusal.message


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("max_rows=0", "invalid_request"),
        ("max_bytes=0", "invalid_request"),
        ("min_partitions=0", "invalid_request"),
        ("min_partitions=10001", "invalid_request"),
        ("from=1000000", "invalid_argument"),
        ("shard=1", "invalid_argument"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(http: Caller, query: str, code: str) -> None:
    assert http.send("GET", f"/v1/log/plan?{query}").refusal.code == code


@pytest.mark.parametrize("path", ["/v1/log", "/v1/log/range", "/v1/log/plan"])
def test_the_paths_are_there_to_be_read(http: Caller, path: str) -> None:
    answer = http.send("POST", path, b"{}")
    assert (answer.refusal.code, answer.headers["allow"]) == ("method_not_allowed", "GET, HEAD")
    assert http.send("HEAD", path).status == 200


def test_a_log_in_memory_is_not_read_in_bulk() -> None:
    with ServerThread() as server, Caller(server.address) as http:
        assert log_range(http)["first"] == 1
        for path in ("/v1/log", "/v1/log/plan"):
            refusal = http.send("GET", path).refusal
            assert refusal == Refusal(409, "log_in_memory", refusal.message)
            assert "--data" in refusal.message
