import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from smista import AsyncClient, errors
from smista.client.errors import ServerError, another, error_from
from smista.errors import BrokerError, InvalidArgument, InvalidRequest, LeaseExpired, StaleReceipt
from smista.exchange_errors import ExchangeNotFound
from smista.protocols.http.errors import STATUS
from tests.client.fake_broker import FakeBroker


def test_every_error_of_the_broker_comes_back_as_its_own_class() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, BrokerError)]
    kinds.remove(BrokerError)
    assert kinds
    for kind in kinds:
        error = error_from(kind.code, "What happened.")
        assert type(error) is kind
        assert str(error) == "What happened."


@pytest.mark.parametrize("code", sorted({*STATUS, "internal_error"}))
def test_every_code_that_the_broker_answers_is_a_class(code: str) -> None:
    error = error_from(code, "What happened.")
    assert not isinstance(error, ServerError)
    assert (type(error).code, str(error)) == (code, "What happened.")


MISTAKES: dict[str, Callable[[AsyncClient, str], Coroutine[Any, Any, object]]] = {
    "a priority that no queue has": lambda client, queue: client.publish(queue, 1, priority=999),
    "a part of a millisecond": lambda client, queue: client.publish(queue, 1, delay_ms=1.5),  # type: ignore[arg-type]
    "a setting of the wrong type": lambda client, queue: client.declare_queue(queue, max_retries="three"),  # type: ignore[arg-type]
    "a setting that is none": lambda client, queue: client.declare_queue(queue, colour="red"),  # type: ignore[call-arg]
    "no messages at all": lambda client, queue: client.receive(queue, 0),
    "a receipt that is no text": lambda client, queue: client.ack(3),  # type: ignore[arg-type]
    "a state that is none": lambda client, queue: client.browse(queue, state="blue").next_page(),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
async def test_an_ordinary_mistake_is_an_error_that_says_so(
    client: AsyncClient, orders: str, mistake: Callable[[AsyncClient, str], Coroutine[Any, Any, object]]
) -> None:
    with pytest.raises((InvalidRequest, InvalidArgument)):
        await mistake(client, orders)


def test_an_error_whose_constructor_makes_the_sentence_keeps_the_one_that_travelled() -> None:
    error = error_from("exchange_not_found", "No such exchange.")
    assert isinstance(error, ExchangeNotFound)
    assert (str(error), error.args) == ("No such exchange.", ("No such exchange.",))


def test_a_lease_that_expired_is_also_a_stale_receipt() -> None:
    assert isinstance(error_from("ack_deadline_exceeded", "Too late."), StaleReceipt)
    assert type(error_from("ack_deadline_exceeded", "Too late.")) is LeaseExpired


def test_an_unknown_code_is_kept() -> None:
    error = error_from("quota_exceeded", "Too much.")
    assert isinstance(error, ServerError)
    assert (error.code, str(error)) == ("quota_exceeded", "Too much.")
    assert ServerError.code == "server_error"


def test_another_error_says_the_same_and_has_notes_of_its_own() -> None:
    for error in (error_from("exchange_not_found", "No such exchange."), error_from("quota_exceeded", "Too much.")):
        error.add_note("of the first")
        copy = another(error)
        assert (type(copy), copy.code, str(copy)) == (type(error), error.code, str(error))
        copy.add_note("of the second")
        assert (error.__notes__, copy.__notes__) == (["of the first"], ["of the second"])


async def errors_of(*calls: Coroutine[Any, Any, object]) -> list[object]:
    """What each of them raises, all of them at once."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, BrokerError) for error in found), found
    return found


def are_apart(errors: list[object]) -> bool:
    return len({id(error) for error in errors}) == len(errors)


async def test_callers_that_fail_together_have_an_error_each() -> None:
    refusal = {"error": {"code": "queue_not_found", "message": "No such queue."}}
    async with FakeBroker(lambda request: refusal) as broker, AsyncClient(broker.address) as client:
        assert are_apart(await errors_of(*(client.publish("orders", number) for number in range(3))))
        subscription = client.subscribe("orders")
        assert are_apart(await errors_of(*(anext(subscription) for _ in range(3)), anext(subscription)))


async def test_deliveries_that_cannot_be_settled_have_an_error_each(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(3))
    deliveries = await client.receive(orders, 3)
    await client.delete_queue(orders)
    errors = await errors_of(*(delivery.ack() for delivery in deliveries), *(d.extend(1_000) for d in deliveries * 2))
    assert are_apart(errors)


async def test_those_that_wait_for_a_broker_in_vain_have_an_error_each(unused_address: str) -> None:
    client = AsyncClient(unused_address)
    waiting = [client.connect(), client.connect(), client.info(), client.info(), anext(client.subscribe("orders"))]
    assert are_apart(await errors_of(*waiting))
    await client.close()
