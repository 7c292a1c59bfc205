"""`exchanges`, `exchange declare`, `exchange delete`, `bind`, `unbind`, `bindings`, `route`."""

import pytest

from tests.cli.conftest import Smista


@pytest.fixture
def exchange(smista: Smista, name: str) -> str:
    exchange = name + "events"
    assert smista("exchange", "declare", exchange, "--kind", "topic").out == f"Exchange {exchange} is declared.\n"
    return exchange


def test_exchanges_are_listed(smista: Smista, exchange: str) -> None:
    assert "amq.topic" in smista("exchanges").out
    [found] = [each for each in smista("exchanges", "--json").lines if each["exchange"] == exchange]
    assert (found["kind"], found["durable"]) == ("topic", True)


def test_declare_with_another_kind_is_refused(smista: Smista, exchange: str) -> None:
    done = smista("exchange", "declare", exchange, "--kind", "fanout")
    assert (done.code, "[exchange_differs]" in done.err) == (1, True)


def test_a_binding_leads_to_a_queue_until_it_is_taken_away(smista: Smista, exchange: str, queue: str) -> None:
    assert smista("bind", exchange, queue, "--key", "orders.*").code == 0
    assert smista("bindings", exchange, "--json").lines == [
        {"exchange": exchange, "queue": queue, "key": "orders.*", "arguments": {}}
    ]
    assert f"queue {queue}" in smista("bindings").out
    assert smista("unbind", exchange, queue, "--key", "orders.*").code == 0
    assert smista("bindings", exchange).err == "There are no bindings.\n"


def test_a_binding_may_lead_to_an_exchange_and_compare_headers(smista: Smista, exchange: str, queue: str) -> None:
    done = smista("bind", "amq.headers", "--to-exchange", exchange, "-a", f"who={queue}", "-a", "n:=1", "--json")
    assert done.json["arguments"] == {"who": queue, "n": 1}
    smista("bind", exchange, queue, "--key", "#")
    route = smista("route", "amq.headers", "-H", f"who={queue}", "-H", "n:=1", "--json").json
    assert route["queues"] == [queue]


def test_a_binding_leads_to_one_thing(smista: Smista, exchange: str, queue: str) -> None:
    assert smista("bind", exchange).code == 2
    assert smista("bind", exchange, queue, "--to-exchange", exchange).code == 2


def test_route_tells_where_a_message_would_go_and_why(smista: Smista, exchange: str, queue: str) -> None:
    smista("bind", exchange, queue, "--key", "orders.*")
    done = smista("route", exchange, "orders.new")
    assert done.out.endswith(f"It would reach {queue}.\n")
    assert "orders.*" in done.out
    assert smista("stats", queue, "--json").json["depth"] == 0


def test_what_would_reach_no_queue_is_4(smista: Smista, exchange: str) -> None:
    done = smista("route", exchange, "nothing")
    assert (done.code, done.err) == (4, "It would reach no queue.\n")
    assert smista("route", exchange, "nothing", "--json").json["is_unroutable"] is True


def test_delete_removes_the_exchange(smista: Smista, exchange: str) -> None:
    assert smista("exchange", "delete", exchange, "--yes").out == f"Deleted exchange {exchange}.\n"
    assert smista("exchange", "delete", exchange).code == 1
