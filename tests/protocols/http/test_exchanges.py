"""Exchanges and bindings: made, listed, followed, removed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.http.caller import Caller, new_name


@pytest.fixture
def exchange(caller: Caller) -> str:
    name = new_name("exchange")
    caller.call("exchange.declare", exchange=name)
    return name


def listed(caller: Caller, name: str) -> dict[str, Any]:
    [found] = [one for one in caller.call("exchange.list")["exchanges"] if one["exchange"] == name]
    return dict(found)


def test_an_exchange_is_direct_and_durable_unless_told_otherwise(caller: Caller, exchange: str) -> None:
    assert listed(caller, exchange) == {
        "exchange": exchange,
        "kind": "direct",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "alternate": None,
    }


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_an_exchange_keeps_what_it_was_declared_with(caller: Caller, exchange: str, kind: str) -> None:
    settings = {"kind": kind, "durable": False, "auto_delete": True, "internal": True, "alternate": exchange}
    name = new_name("exchange")
    assert caller.call("exchange.declare", exchange=name, **settings) == {"success": True}
    assert caller.call("exchange.declare", exchange=name, **settings) == {"success": True}
    assert listed(caller, name) == {"exchange": name, **settings}
    refusal = caller.refused("exchange.declare", exchange=name, **{**settings, "durable": True})
    assert refusal[:2] == (409, "exchange_differs")
    assert "durable" in refusal.message


def test_those_that_are_always_there_are_listed_and_cannot_be_had(caller: Caller) -> None:
    names = {one["exchange"] for one in caller.call("exchange.list")["exchanges"]}
    assert names >= {"", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"}
    assert caller.refused("exchange.declare", exchange="amq.mine")[:2] == (403, "exchange_reserved")
    assert caller.refused("exchange.delete", exchange="amq.topic")[:2] == (403, "exchange_reserved")


def test_delete_if_unused(caller: Caller, exchange: str, queue: str) -> None:
    caller.call("exchange.bind", exchange=exchange, queue=queue)
    assert caller.refused("exchange.delete", exchange=exchange, if_unused=True)[:2] == (409, "exchange_in_use")
    assert caller.call("exchange.delete", exchange=exchange) == {"success": True}
    assert caller.refused("exchange.delete", exchange=exchange)[:2] == (404, "exchange_not_found")


def test_bindings_lead_to_queues_and_exchanges(caller: Caller, exchange: str, queue: str) -> None:
    other = new_name("exchange")
    caller.call("exchange.declare", exchange=other, kind="headers")
    arguments = {"x-match": "any", "n": 1, "list": [1, "a"], "map": {"b": None}}
    assert caller.call("exchange.bind", exchange=exchange, to_exchange=other, key="k") == {"success": True}
    assert caller.call("exchange.bind", exchange=other, queue=queue, arguments=arguments) == {"success": True}
    assert caller.call("exchange.bindings", exchange=exchange) == {
        "bindings": [{"exchange": exchange, "to_exchange": other, "key": "k", "arguments": {}}]
    }
    assert caller.call("exchange.bindings", exchange=other) == {
        "bindings": [{"exchange": other, "queue": queue, "key": "", "arguments": arguments}]
    }
    everything = caller.call("exchange.bindings")["bindings"]
    assert [one for one in everything if one["exchange"] in (exchange, other)] == [
        *caller.call("exchange.bindings", exchange=exchange)["bindings"],
        *caller.call("exchange.bindings", exchange=other)["bindings"],
    ]


def test_bindings_come_in_pages(caller: Caller, exchange: str, queue: str) -> None:
    for key in "abcde":
        caller.call("exchange.bind", exchange=exchange, queue=queue, key=key)
    found: list[str] = []
    page: dict[str, Any] = {"after": 0}
    while "after" in page:
        page = caller.call("exchange.bindings", exchange=exchange, after=page["after"], limit=2)
        assert 1 <= len(page["bindings"]) <= 2
        found += [one["key"] for one in page["bindings"]]
    assert found == list("abcde")


def test_exchanges_come_in_pages(caller: Caller, exchange: str) -> None:
    everything = caller.call("exchange.list")
    assert "after" not in everything
    found: list[Any] = []
    page = caller.call("exchange.list", limit=3)
    while "after" in page:
        assert len(page["exchanges"]) == 3
        found += page["exchanges"]
        page = caller.call("exchange.list", limit=3, after=page["after"])
    found += page["exchanges"]
    names = [one["exchange"] for one in found]
    assert names == sorted(names)
    assert {"", "amq.fanout", exchange} <= set(names)


def test_a_binding_is_removed_by_naming_it_whole(caller: Caller, exchange: str, queue: str) -> None:
    for key in ("a", "b"):
        caller.call("exchange.bind", exchange=exchange, queue=queue, key=key)
    for key in ("a", "never bound"):
        assert caller.call("exchange.unbind", exchange=exchange, queue=queue, key=key) == {"success": True}
    assert [one["key"] for one in caller.call("exchange.bindings", exchange=exchange)["bindings"]] == ["b"]


def test_what_cannot_be_bound_is_refused(caller: Caller, exchange: str, queue: str) -> None:
    nowhere = new_name("nowhere")
    bind = {"exchange": exchange, "queue": queue}
    assert caller.refused("exchange.bind", **{**bind, "exchange": nowhere})[:2] == (404, "exchange_not_found")
    assert caller.refused("exchange.bind", **{**bind, "queue": nowhere})[:2] == (404, "binding_target_not_found")
    assert caller.refused("exchange.bind", **{**bind, "exchange": ""})[:2] == (403, "exchange_reserved")
    assert caller.refused("exchange.bind", exchange=exchange, to_exchange=exchange)[:2] == (409, "exchange_cycle")
    for odd in ({"exchange": exchange}, {**bind, "to_exchange": exchange}):
        refusal = caller.refused("exchange.bind", **odd)
        assert refusal[:2] == (400, "invalid_request")
        assert "`to_exchange`" in refusal.message
    headers = new_name("exchange")
    caller.call("exchange.declare", exchange=headers, kind="headers")
    refusal = caller.refused("exchange.bind", exchange=headers, queue=queue, arguments={"x-match": "some"})
    assert refusal[:2] == (400, "invalid_binding")
    assert caller.call("exchange.bindings", exchange=exchange) == {"bindings": []}


def test_bindings_of_an_exchange_that_is_not_there(caller: Caller) -> None:
    assert caller.refused("exchange.bindings", exchange=new_name("nowhere"))[:2] == (404, "exchange_not_found")


def test_an_internal_exchange_takes_from_exchanges_only(caller: Caller) -> None:
    name = new_name("exchange")
    caller.call("exchange.declare", exchange=name, internal=True)
    assert caller.refused("exchange.publish", exchange=name, message=1)[:2] == (403, "exchange_internal")


def test_route_says_where_a_message_would_go_and_why(caller: Caller, queue: str) -> None:
    first, second = new_name("exchange"), new_name("exchange")
    caller.call("exchange.declare", exchange=first, kind="topic")
    caller.call("exchange.declare", exchange=second, kind="headers")
    caller.call("exchange.bind", exchange=first, to_exchange=second, key="orders.#")
    caller.call("exchange.bind", exchange=second, queue=queue, arguments={"kind": "express"})
    answer = caller.call("exchange.route", exchange=first, routing_key="orders", headers={"kind": "express"})
    assert (answer["queues"], answer["is_unroutable"]) == ([queue], False)
    assert answer["steps"] == [
        {
            "exchange": first,
            "via": "binding",
            "destination_kind": "exchange",
            "destination": second,
            "key": "orders.#",
            "arguments": {},
            "is_missing": False,
        },
        {
            "exchange": second,
            "via": "binding",
            "destination_kind": "queue",
            "destination": queue,
            "key": "",
            "arguments": {"kind": "express"},
            "is_missing": False,
        },
    ]
    assert caller.call("exchange.route", exchange=first, routing_key="bills") == {
        "queues": [],
        "is_unroutable": True,
        "steps": [],
    }
    assert caller.stats(queue)["published_total"] == 0


def test_route_shows_the_default_exchange_and_what_is_missing(caller: Caller, queue: str) -> None:
    [step] = caller.call("exchange.route", exchange="", routing_key=queue)["steps"]
    assert (step["via"], step["destination"], step["is_missing"]) == ("default", queue, False)
    assert caller.call("exchange.route", exchange="", routing_key=new_name("nowhere"))["is_unroutable"] is True
    assert caller.refused("exchange.route", exchange=new_name("nowhere"))[:2] == (404, "exchange_not_found")


def test_what_matches_nothing_goes_to_the_alternate(caller: Caller, queue: str) -> None:
    name, alternate = new_name("exchange"), new_name("exchange")
    caller.call("exchange.declare", exchange=alternate, kind="fanout")
    caller.call("exchange.bind", exchange=alternate, queue=queue)
    caller.call("exchange.declare", exchange=name, alternate=alternate)
    assert [one["queue"] for one in caller.call("exchange.publish", exchange=name, message=1)["routed"]] == [queue]
