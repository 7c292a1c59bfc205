import pytest

from smista import AsyncClient
from smista.exchange_errors import ExchangeDiffers, ExchangeInUse, ExchangeNotFound


async def test_an_exchange_leads_to_the_queues_bound_to_it(client: AsyncClient, orders: str) -> None:
    exchange = f"events-{orders}"
    await client.declare_exchange(exchange, "topic")
    await client.bind(exchange, orders, key="orders.#")
    [routed] = await client.publish_to_exchange(exchange, "orders.new", {"n": 1}, headers={"tenant": "a"})
    assert (routed.queue, routed.position, routed.is_duplicate) == (orders, 1, False)
    [delivery] = await client.receive(orders)
    assert (delivery.id, delivery.json(), delivery.headers) == (routed.id, {"n": 1}, {"tenant": "a"})
    assert (delivery.exchange, delivery.routing_key) == (exchange, "orders.new")
    assert await client.publish_to_exchange(exchange, "invoices.new", b"nobody") == []


async def test_bindings_are_listed_and_taken_away(client: AsyncClient, orders: str) -> None:
    first, second = f"first-{orders}", f"second-{orders}"
    await client.declare_exchange(first, "headers", alternate=f"third-{orders}")
    await client.declare_exchange(second, "fanout")
    await client.bind(first, orders, arguments={"x-match": "any", "tenant": "a"})
    await client.bind(second, orders)
    await client.bind(second, to_exchange=first)
    assert {exchange.name: exchange.kind for exchange in await client.exchanges()}.items() >= {
        (first, "headers"),
        (second, "fanout"),
    }
    [binding] = await client.bindings(first)
    assert (binding.queue, binding.arguments) == (orders, {"x-match": "any", "tenant": "a"})
    assert [(one.queue, one.to_exchange) for one in await client.bindings(second)] == [(orders, None), (None, first)]
    assert len(await client.bindings()) >= 3
    await client.unbind(second, to_exchange=first)
    with pytest.raises(ExchangeInUse):
        await client.delete_exchange(second, if_unused=True)
    await client.delete_exchange(second)
    with pytest.raises(ExchangeNotFound):
        await client.route(second)


async def test_a_dry_run_says_where_a_message_would_go(client: AsyncClient, orders: str) -> None:
    exchange = f"events-{orders}"
    await client.declare_exchange(exchange)
    await client.bind(exchange, orders, key="new")
    route = await client.route(exchange, "new")
    assert (route.queues, route.is_unroutable, route.steps[0].via) == ([orders], False, "binding")
    assert (await client.route(exchange, "old")).is_unroutable


async def test_declaring_otherwise_is_refused(client: AsyncClient, orders: str) -> None:
    await client.declare_exchange(f"events-{orders}", "topic")
    await client.declare_exchange(f"events-{orders}", "topic")
    with pytest.raises(ExchangeDiffers, match="kind"):
        await client.declare_exchange(f"events-{orders}", "fanout")
