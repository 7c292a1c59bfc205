"""Nothing is left out: every command and every route stands in the docs with all its fields, and a walk through all of
them, over a real socket, misses none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.sync.client import connect

from smista.protocols.http.commands import COMMANDS
from smista.protocols.http.routes import ROUTES
from smista.protocols.http.stream_frames import STREAM_COMMANDS
from tests.protocols.http.caller import Answer, Caller, new_name
from tests.waiting import PATIENCE_S

DOCS = Path(__file__).parents[3] / "docs"
SHARED = ("# Commands", "## Bodies", "## A message in an answer", "## Statistics", "## Synap's words")
"""The sections that say what holds for all commands."""
OF_ERRORS = {"code", "message"}
"""Shown at the top of the page."""


def sections(page: str) -> dict[str, str]:
    """The text under each heading."""
    found = {}
    for part in re.split(r"^(?=#)", (DOCS / page).read_text(), flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        found[heading] = text
    return found


def rows(text: str) -> dict[str, str]:
    """The rows of a section's table by each of the names in the first cell."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            for name in re.findall(r"`([\w.]+)`", line.split(" | ")[0]):
                found[name] = line
    return found


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def fields_of(kind: Any) -> set[str]:
    """The names of a structure's fields, and of those inside it."""
    found: set[str] = set()
    pending, seen = [kind], set()
    while pending:
        one = pending.pop()
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one not in seen:
            seen.add(one)
            for field in msgspec.structs.fields(one):
                found.add(field.encode_name)
                pending.append(field.type)
        else:
            pending += [inner for inner in getattr(one, "__args__", ()) if inner is not one]
    return found


# -- the docs ---------------------------------------------------------------------------------------------------------

COMMANDS_PAGE = sections("commands.md")
SETTINGS = names_in((DOCS / "queues.md").read_text())


def section_of(command: str) -> str:
    [found] = [text for text in COMMANDS_PAGE.values() if command in rows(text)]
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_stands_in_the_docs_with_its_fields(command: str) -> None:
    kind: Any = COMMANDS[command]
    answers = kind.answer if isinstance(kind.answer, tuple) else (kind.answer,)
    fields = fields_of(kind).union(*map(fields_of, answers))
    explained = names_in(section_of(command)).union(*(names_in(COMMANDS_PAGE[heading]) for heading in SHARED))
    if {"source", "deliveries_min"} <= fields:
        explained |= names_in(section_of("queue.browse"))  # its filters are those of other commands too
    assert fields - explained - SETTINGS - OF_ERRORS == set()


def test_the_docs_name_no_command_that_is_not_there() -> None:
    named = [name for text in COMMANDS_PAGE.values() for name in rows(text) if "." in name]
    assert sorted(named) == sorted(COMMANDS)


@pytest.mark.parametrize("command", STREAM_COMMANDS)
def test_every_command_of_the_stream_stands_in_the_docs_with_its_fields(command: str) -> None:
    text = sections("stream.md")["## Commands of the stream"]
    assert command in rows(text)
    assert fields_of(STREAM_COMMANDS[command]) <= names_in(text)


def test_every_route_stands_in_the_docs_with_its_command() -> None:
    found = re.findall(r"^\| `(\w+) (\S+)` \| `([\w.]+)` \|", sections("rest.md")["## Paths"], re.MULTILINE)
    assert found == [(route.method, route.path, route.command) for route in ROUTES]


# -- a walk through all of them ---------------------------------------------------------------------------------------


class Walker:
    """Notes what succeeded."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.commands: set[str] = set()
        self.routes: set[tuple[str, str]] = set()

    def call(self, command: str, **payload: Any) -> Any:
        value = self.caller.call(command, **payload)
        self.commands.add(command)
        return value

    def go(self, method: str, template: str, names: dict[str, str], fields: Any = None, **query: Any) -> Answer:
        parts = [part.format(**names) for part in template.removeprefix("/v1/").split("/")]
        answer = self.caller.rest(method, *parts, fields=fields, **query)
        assert answer.status in (200, 201), answer.body
        self.routes.add((method, template))
        return answer


def test_a_walk_through_every_command(caller: Caller) -> None:
    walker = Walker(caller)
    call = walker.call
    first, second, exchange = new_name("walk"), new_name("walk"), new_name("walk")
    assert call("queue.create", queue=first)["created"]
    assert call("queue.declare", queue=second)["created"]
    assert call("queue.alter", queue=first, settings={"lease_ms": 60_000})["settings"]["lease_ms"] == 60_000
    assert call("queue.settings", queue=first)["settings"]["lease_ms"] == 60_000
    assert {first, second} <= set(call("queue.list", prefix="walk")["queues"])
    call("queue.pause", queue=first)
    call("queue.resume", queue=first)
    assert call("policy.set", policy=exchange, pattern=second, settings={"lease_ms": 1})["queues"] == 1
    assert exchange in [one["policy"] for one in call("policy.list")["policies"]]
    assert call("policy.delete", policy=exchange)["success"]
    call("exchange.declare", exchange=exchange, kind="fanout")
    call("exchange.bind", exchange=exchange, queue=second)
    assert len(call("exchange.bindings", exchange=exchange)["bindings"]) == 1
    assert call("exchange.route", exchange=exchange)["queues"] == [second]
    assert len(call("exchange.publish", exchange=exchange, message=0)["routed"]) == 1
    call("exchange.unbind", exchange=exchange, queue=second)
    assert exchange in [one["exchange"] for one in call("exchange.list")["exchanges"]]
    call("exchange.delete", exchange=exchange)
    published = call("queue.publish", queue=first, message=1)
    assert call("queue.publish_batch", queue=first, messages=[{"message": 2}, {"message": 3}])["accepted"] == 2
    assert [one["message"] for one in call("queue.peek", queue=first, limit=3)["messages"]] == [1, 2, 3]
    assert len(call("queue.browse", queue=first)["messages"]) == 3
    assert call("queue.get", queue=first, message_id=published["message_id"])["message"] == 1
    held = call("queue.consume", queue=first)
    assert call("queue.extend", receipt=held["receipt"], lease_ms=60_000)["success"]
    assert call("queue.ack", receipt=held["receipt"])["success"]
    for settle, more in (("queue.release", {}), ("queue.nack", {"requeue": False})):
        [held] = call("queue.receive", queue=first)["messages"]
        assert call(settle, receipt=held["receipt"], **more)["success"]
    assert len(call("dlq.list", queue=first)["messages"]) == 1
    started = call("redrive.start", queue=first, per_second=0.001)
    assert [one["job"] for one in call("redrive.list", queue=first)["redrives"]] == [started["job"]]
    cancelled = call("redrive.cancel", queue=first, job=started["job"])
    assert cancelled["redriven"] + call("dlq.retry", queue=first)["redriven"] == 1
    assert call("dlq.purge", queue=first)["purged"] == 0
    later = call("queue.publish", queue=first, message=4, delay_ms=3_600_000)
    assert len(call("scheduled.list", queue=first)["messages"]) == 1
    assert call("scheduled.change", queue=first, message_id=later["message_id"], delay_ms=7_200_000)["success"]
    assert call("scheduled.cancel", queue=first, message_id=later["message_id"])["success"]
    another = call("queue.publish", queue=first, message="x")["message_id"]
    assert call("queue.delete_message", queue=first, message_id=another)["success"]
    made = call("claim.make", queue=first, consumer="c", session="s", after=0, max_rows=2)
    assert (made["number"], made["rows"]) == (1, 2)
    assert len(call("claim.list", queue=first)["consumers"]) == 1
    assert len(call("claim.heartbeat", queue=first, consumer="c", session="s")["claims"]) == 1
    assert call("claim.release", queue=first, consumer="c", session="s")["released"] == 2
    assert call("claim.acknowledge", queue=first, consumer="c", session="s", up_to=0)["acknowledged"] == 0
    assert call("staged.commit", job=exchange, batch="1", queue=first, parts=[])["published"] == 0
    assert call("staged.discard", job=exchange, batch="2")["discarded"] == 0
    assert call("queue.stats", queue=first)["depth"] == 2
    assert call("queue.purge", queue=first)["purged"] == 2
    assert call("queue.delete", queue=first)["deleted"] == 0
    assert call("broker.info")["queues"] >= 1
    assert walker.commands == set(COMMANDS)


def test_a_walk_through_every_route(caller: Caller) -> None:
    walker = Walker(caller)
    go = walker.go
    names = {"queue": new_name("walk/way"), "exchange": new_name("walk/way")}
    queue, message = "/v1/queues/{queue}", "/v1/queues/{queue}/messages/{message_id}"
    exchange = "/v1/exchanges/{exchange}"

    def publish(**fields: Any) -> str:
        message_id = go("POST", f"{queue}/messages", names, {"message": 1, **fields}).value["message_id"]
        names["message_id"] = message_id
        return str(message_id)

    def receive() -> str:
        [held] = go("POST", f"{queue}/receive", names).value["messages"]
        return str(held["receipt"])

    go("GET", "/v1/info", names)
    assert go("PUT", queue, names).status == 201
    assert go("PUT", queue, names).status == 200
    go("PATCH", queue, names, {"lease_ms": 60_000})
    assert go("GET", f"{queue}/settings", names).value["settings"]["lease_ms"] == 60_000
    assert names["queue"] in go("GET", "/v1/queues", names, prefix="walk").value["queues"]
    go("POST", f"{queue}/pause", names)
    go("POST", f"{queue}/resume", names)
    publish()
    go("POST", f"{queue}/batches", names, {"messages": [{"message": 2}]})
    assert len(go("GET", f"{queue}/messages", names).value["messages"]) == 2
    assert len(go("GET", f"{queue}/next", names).value["messages"]) == 1
    assert go("GET", message, names).value["message"] == 1
    assert go("GET", queue, names).value["ready"] == 2
    for verb, fields in (
        ("extend", {"lease_ms": 60_000}),
        ("release", None),
        ("nack", {"requeue": False}),
        ("ack", None),
    ):
        go("POST", f"{queue}/purge", names)
        publish()
        receive()
        go("POST", f"{message}/{verb}", names, fields)
        go("POST", f"{queue}/purge", names)
        publish()
        go("POST", f"/v1/{verb}", names, {"receipt": receive(), **(fields or {})})
    assert len(go("GET", f"{queue}/dead-letters", names).value["messages"]) == 2
    names["job"] = go("POST", f"{queue}/redrives", names, {"per_second": 0.001}).value["job"]
    for where in (f"{queue}/redrives", "/v1/redrives"):
        assert names["job"] in [one["job"] for one in go("GET", where, names).value["redrives"]]
    cancelled = go("DELETE", f"{queue}/redrives/{{job}}", names).value
    assert go("POST", f"{queue}/dead-letters/redrive", names, limit=1).value["redriven"] == 1
    assert go("DELETE", f"{queue}/dead-letters", names).value["purged"] + cancelled["redriven"] == 1
    publish(delay_ms=3_600_000)
    assert len(go("GET", f"{queue}/scheduled", names).value["messages"]) == 1
    go("PATCH", f"{queue}/scheduled/{{message_id}}", names, {"delay_ms": 7_200_000})
    go("DELETE", f"{queue}/scheduled/{{message_id}}", names)
    publish()
    go("DELETE", f"{queue}/messages/{{message_id}}", names)
    claims = "/v1/queues/{queue}/claims"
    names |= {"consumer": "c", "job": new_name("job"), "batch": "1"}
    go("POST", f"{queue}/purge", names)
    publish()
    assert go("POST", claims, names, {"consumer": "c", "session": "s", "after": 0, "max_rows": 1}).value["rows"] == 1
    for path in (claims, f"{claims}/{{consumer}}"):
        assert len(go("GET", path, names).value["consumers"]) == 1
    go("POST", f"{claims}/{{consumer}}/heartbeat", names, {"session": "s"})
    assert go("POST", f"{claims}/{{consumer}}/release", names, {"session": "s"}).value["released"] == 1
    go("POST", f"{claims}/{{consumer}}/acknowledge", names, {"session": "s", "up_to": 0})
    go("POST", "/v1/staged/{job}/{batch}/commit", names, {"queue": names["queue"], "parts": []})
    go("DELETE", "/v1/staged/{job}/{batch}", names)
    names["policy"] = names["queue"]
    policy = "/v1/policies/{policy}"
    assert go("PUT", policy, names, {"pattern": names["queue"], "settings": {"lease_ms": 1}}).value["queues"] == 1
    assert names["policy"] in [one["policy"] for one in go("GET", "/v1/policies", names).value["policies"]]
    go("DELETE", policy, names)
    go("PUT", exchange, names, {"kind": "fanout"})
    go("POST", f"{exchange}/bindings", names, {"queue": names["queue"]})
    assert len(go("GET", f"{exchange}/bindings", names).value["bindings"]) == 1
    assert len(go("GET", "/v1/bindings", names, exchange=names["exchange"]).value["bindings"]) == 1
    for method in ("GET", "POST"):
        assert go(method, f"{exchange}/route", names).value["queues"] == [names["queue"]]
    assert go("POST", f"{exchange}/messages", names, {"message": 3}).status == 201
    go("DELETE", f"{exchange}/bindings", names, queue=names["queue"])
    assert names["exchange"] in [one["exchange"] for one in go("GET", "/v1/exchanges", names).value["exchanges"]]
    go("DELETE", exchange, names)
    go("DELETE", queue, names)
    assert walker.routes == {(route.method, route.path) for route in ROUTES}


def test_a_walk_through_every_command_of_the_stream(http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, *range(4))
    done: set[str] = set()
    host, port = http.address
    with connect(f"ws://{host}:{port}/v1/stream", proxy=None, open_timeout=PATIENCE_S) as stream:
        pushed: list[Any] = []

        def ask(command: str, **payload: Any) -> Any:
            stream.send(json.dumps({"id": command, "command": command, "payload": payload}))
            while (frame := json.loads(stream.recv(PATIENCE_S))).get("id") != command:
                pushed.extend(frame["messages"])
            done.add(command)
            return frame["result"]

        number = ask("subscribe", queue=queue, prefetch=2)["subscription"]
        assert ask("credit", subscription=number, prefetch=4) == {"success": True}
        while len(pushed) < 4:
            pushed.extend(json.loads(stream.recv(PATIENCE_S))["messages"])
        assert ask("unsubscribe", subscription=number) == {"success": True}
        assert ask("extend", tags=[1, 2], lease_ms=60_000) == {"success": True}
        assert ask("ack", tags=[1]) == {"success": True}
        assert ask("nack", tags=[2], requeue=False) == {"success": True, "action": "dead_lettered"}
        assert ask("release", up_to=4) == {"success": True}
        assert ask("cancel", request="subscribe") == {"cancelled": False}
    assert done == set(STREAM_COMMANDS)
    assert http.stats(queue)["ready"] == 2
