"""What schemathesis has to be told about a broker; loaded by it, see test_openapi.py.

- Names made up at random exist nowhere, and everything would be 404. So most requests are pointed at a queue of the
  operation's own, with a message in the state that the operation is about.
- MessagePack is no format it knows. Requests are made in it where SMISTA_TEST_MSGPACK is set; answers are read anyway.
- Long polls are made short, and patterns of policies match no queue: what they gave would be in the way of the rest.

Two checks are added: every operation has to succeed now and then, and what the schema allows has to be readable. The
latter stands in for `positive_data_acceptance`, which cannot be used: that check takes every 400 to what the schema
allows for a failure, while a broker has rules that no schema can say (a name must be printable, a priority within what
the queue takes, a receipt one that was given out). Those refusals have codes of their own; `invalid_request` may not be
among them.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import itertools
import os
import re
import threading
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import schemathesis
from schemathesis import Case, CheckContext, DeserializationContext, GenerationMode, Response, SerializationContext

WAIT_MS_MAX = 20
ENOUGH = 30
EXPLAINED = re.compile(
    # JSON Schema counts 1.0 among the integers; we take whole numbers that are written as such.
    r"is a number with a fraction; give a whole number"
    # OpenAPI has no way to say that two parameters of a query exclude each other.
    r"|required field is missing; give one of `queue`, `to_exchange`"
    r"|Both `queue` and `to_exchange` are given"
    r"|Both `message_id` and `message_ids` are given"
    # Where JSON Schema allows any value there may be numbers that MessagePack has not.
    r"|a whole number of more than 64 bits"
    r"|invalid opcode '\\xc1'"
    # At /v1/command it depends on the command whether the header is looked at.
    r"|Idempotency-Key must have"
)

_turn = itertools.count()


# -- MessagePack ------------------------------------------------------------------------------------------------------


def write_msgpack(context: SerializationContext, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(_with_bytes(value))
    except (OverflowError, ValueError):
        # A number that MessagePack has not: it is refused as what cannot be read.
        return b"\xc1"


if os.environ.get("SMISTA_TEST_MSGPACK"):
    schemathesis.serializer("application/msgpack")(write_msgpack)


@schemathesis.serializer("application/vnd.apache.arrow.stream")
def write_arrow(context: SerializationContext, value: Any) -> bytes:
    """What a schema can say of a stream of Arrow is nothing."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"body": [b"x"]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _with_bytes(value: Any, *, is_body: bool = False) -> Any:
    """Bodies are binary rather than base64."""
    if isinstance(value, dict):
        binary = ("body", "bodies", "properties")
        return {name: _with_bytes(item, is_body=name in binary) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_bytes(item, is_body=is_body) for item in value]
    if is_body and isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return value
    return value


@schemathesis.deserializer("application/msgpack")
def read_msgpack(context: DeserializationContext, response: Response) -> Any:
    return msgspec.to_builtins(msgspec.msgpack.decode(response.content))


# -- something to work on ---------------------------------------------------------------------------------------------


class Broker:
    """The server, for what has to be there before a request makes sense."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)

    def call(self, command: str, **payload: Any) -> Any:
        body = msgspec.json.encode({"command": command, "payload": payload})
        self._connection.request("POST", "/v1/command", body, {"Content-Type": "application/json"})
        return msgspec.json.decode(self._connection.getresponse().read())


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    _shorten(case.query)
    if isinstance(case.body, dict):
        for fields in (case.body, case.body.get("payload")):
            _shorten(fields)
            _tame(fields)
    is_positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    # Now and then a request keeps the names that were made up for it.
    turn = next(_turn)
    if not is_positive or turn % 5 == 0 or not case.path.startswith("/v1/"):
        return
    if case.path.startswith("/v1/log"):
        # Shards, blocks, columns and kinds made up at random are none.
        made_up = ("shard", "from", "to", "columns", "kind")
        case.query = {name: value for name, value in case.query.items() if name not in made_up}
        return
    broker = Broker(case.operation.base_url or "")
    case.query = {name: value for name, value in (case.query or {}).items() if name != "namespace"}
    body = case.body if isinstance(case.body, dict) else {}
    if case.path == "/v1/command":
        _point(broker, str(body["command"]), body.get("payload", {}))
        return
    named = case.operation.definition.raw["description"].split("`")
    if len(named) < 2:
        _point_at_claim(broker, "claim.read", case.path_parameters, case.query)
        return
    command = named[1]
    _point(broker, command, case.path_parameters)
    _point_at_receipt(broker, command, body)
    if command.startswith("claim."):
        _point_at_claim(broker, command, case.path_parameters, body)
    if command == "staged.commit":
        _point(broker, command, body)
    if command == "queue.alter" and body:
        # All settings together are hardly ever in accord.
        name = sorted(body)[turn % len(body)]
        case.body = {name: body[name]}
    settings = body.get("settings")
    if command == "policy.set" and isinstance(settings, dict) and settings:
        name = sorted(settings)[turn % len(settings)]
        case.body = {**body, "settings": {name: settings[name]}}


def _shorten(fields: Any) -> None:
    if isinstance(fields, dict):
        for name, longest in (("wait_ms", WAIT_MS_MAX), ("timeout", WAIT_MS_MAX / 1000)):
            value = fields.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > longest:
                fields[name] = longest
        if isinstance(fields.get("per_second"), int | float):
            fields["per_second"] = max(fields["per_second"], 1_000)


def _tame(fields: Any) -> None:
    """As long and as readable as before."""
    if isinstance(fields, dict) and isinstance(fields.get("pattern"), str):
        fields["pattern"] = re.sub(r"[*?[]", "x", fields["pattern"])


def _point(broker: Broker, command: str, fields: Any) -> None:
    """Let a request name what is there."""
    fields.pop("namespace", None)
    if command in ("queue.create", "queue.declare", "exchange.declare"):
        return
    queue = _queue_of(command)
    if "exchange" in fields:
        fields["exchange"] = "amq.headers"
    if command == "exchange.delete":
        broker.call("exchange.declare", exchange=queue)
        fields["exchange"] = queue
    if command == "policy.delete":
        broker.call("policy.set", policy=queue, pattern="nothing", settings={"lease_ms": 1})
        fields["policy"] = queue
    if "queue" in fields:
        broker.call("queue.declare", queue=queue)
        fields["queue"] = queue
    if isinstance(fields.get("message_id"), str):
        fields["message_id"] = _message(broker, queue, command)["message_id"]
    _point_at_receipt(broker, command, fields)
    if command.startswith("claim."):
        _point_at_claim(broker, command, fields, fields)
    if "parts" in fields:
        fields["parts"] = []


def _point_at_claim(broker: Broker, command: str, path: dict[str, Any], fields: dict[str, Any]) -> None:
    """Let a request be of a session that has a claim."""
    if "queue" not in path:
        return
    queue, claimant = _queue_of(command), {"consumer": "c", "session": "s"}
    broker.call("queue.declare", queue=queue)
    broker.call("queue.publish", queue=queue, message=1)
    made = broker.call("claim.make", queue=queue, after=0, max_rows=1, **claimant)
    path["queue"] = queue
    for name, value in {**claimant, "number": made["number"], "after": 0, "up_to": 0}.items():
        for given in (path, fields):
            if name in given:
                given[name] = value


def _point_at_receipt(broker: Broker, command: str, fields: dict[str, Any]) -> None:
    if isinstance(fields.get("receipt"), str):
        fields["receipt"] = _message(broker, _queue_of(command), command)["receipt"]


def _queue_of(command: str) -> str:
    """One per thread of schemathesis, so that they do not empty each other's."""
    return f"of-{command}-{threading.get_ident()}"


def _message(broker: Broker, queue: str, command: str) -> dict[str, Any]:
    """A message in the state in which the command wants it."""
    broker.call("queue.declare", queue=queue)
    # Names that answers told of are tried too, so it may have been paused.
    broker.call("queue.resume", queue=queue)
    broker.call("queue.purge", queue=queue)
    delay = {"delay_ms": 3_600_000} if command.startswith("scheduled") else {}
    message: dict[str, Any] = broker.call("queue.publish", queue=queue, message=1, **delay)
    if command in ("queue.ack", "queue.nack", "queue.release", "queue.extend", "dlq.retry"):
        message = broker.call("queue.receive", queue=queue)["messages"][0]
    if command == "dlq.retry":
        broker.call("queue.nack", receipt=message["receipt"], requeue=False)
    return message


# -- checks -----------------------------------------------------------------------------------------------------------


@schemathesis.check
def what_the_schema_allows_can_be_read(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE or response.status_code != 400:
        return
    decode = msgspec.msgpack.decode if "msgpack" in response.headers["content-type"][0] else msgspec.json.decode
    error = decode(response.content)["error"]
    if error["code"] == "invalid_request" and not EXPLAINED.search(error["message"]):
        raise AssertionError(f"the schema allows what the broker cannot read: {error['message']}")


@schemathesis.check
class EveryOperationSucceedsNowAndThen:
    """Else the answers that are checked are all refusals. Not asked of those that are tried a few times only."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.succeeded: set[str] = set()

    def after_response(self, ctx: CheckContext, response: Response, case: Case[Any]) -> None:
        self.tried[case.operation.label] += 1
        if response.status_code < 300:
            self.succeeded.add(case.operation.label)

    def after_run(self, ctx: Any) -> None:
        never = {label for label, count in self.tried.items() if count >= ENOUGH} - self.succeeded
        if never:
            raise AssertionError("never answered 2xx: " + ", ".join(sorted(never)))
