"""Which dead letters a filter leaves: the same for every command, whichever protocol the messages came through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest

import smista.protocols.amqp.routing
import smista.protocols.amqp.translation  # noqa: F401  # both: that it is known how AMQP keeps properties
from smista.engine import Broker, DeadLetterMode, Publication, QueueSettings
from smista.errors import InvalidRequest
from smista.protocols.amqp.wire import content
from smista.protocols.amqp.wire.values import Octets, Timestamp
from smista.service import properties
from smista.service.commands.dead_letters import ListDeadLetters, PurgeDeadLetters, RedriveDeadLetters
from smista.service.commands.messages import BrowseMessages
from smista.service.commands.redrives import ListRedrives, StartRedrive
from smista.service.principal import anyone
from smista.service.properties import Properties
from smista.service.service import Service
from smista.service.session import Session
from smista.service.values import Envelope
from tests.engine.bench import turns


def natively(headers: dict[str, Any]) -> bytes:
    """As HTTP, WebSocket and SQS keep them."""
    return properties.write(Properties(headers=headers))


def over_amqp(headers: dict[str, Any]) -> bytes:
    return bytes([content.AMQP]) + content.write_properties(content.BasicProperties(headers=headers))


LETTERS = {
    b"text": over_amqp({"region": "EU"}),
    b"octets": over_amqp({"region": Octets(b"EU")}),
    b"native": natively({"region": "EU"}),
    b"bytes": natively({"region": b"EU"}),
    b"int": over_amqp({"region": 1}),
    b"true": natively({"region": True}),
    b"float": natively({"region": 1.5}),
    b"decimal": over_amqp({"region": Decimal("1.5")}),
    b"timestamp": over_amqp({"region": Timestamp(1_000)}),
    b"number": natively({"region": 1_000}),
    b"table": over_amqp({"region": {"of": [Octets(b"a"), Timestamp(2)]}}),
    b"map": natively({"region": {"of": ["a", 2]}}),
    b"void": over_amqp({"region": None}),
    b"none": b"",
    b"other": over_amqp({"name": "EU"}),
    b"two": over_amqp({"region": Octets(b"EU"), "name": "EU"}),
}
CASES: list[tuple[dict[str, Any], set[bytes]]] = [
    ({}, set(LETTERS)),
    ({"region": "EU"}, {b"text", b"octets", b"native", b"two"}),
    ({"region": "EU", "name": "EU"}, {b"two"}),
    ({"region": "US"}, set()),
    ({"region": 1}, {b"int", b"true"}),
    ({"region": 1.5}, {b"float"}),
    ({"region": {"decimal": "1.5"}}, {b"decimal"}),
    ({"region": 1_000}, {b"timestamp", b"number"}),
    ({"region": {"of": ["a", 2]}}, {b"table", b"map"}),
    ({"region": None}, {b"void", b"none", b"other"}),
    ({"name": "EU"}, {b"other", b"two"}),
]


@pytest.fixture
async def session(broker: Broker, service: Service) -> Session:
    """With dead letters of "orders", half of them parked and half in its dead-letter queue."""
    session = service.session(anyone("http"))
    await broker.declaring.declare_queue("orders", QueueSettings(dead_letter=DeadLetterMode.PARK))
    for number, (body, kept) in enumerate(LETTERS.items()):
        if number == len(LETTERS) // 2:
            await broker.declaring.alter_queue("orders", QueueSettings())
        await session.publish("orders", [Publication(body, Envelope(kept))])
        [delivery] = await session.receive("orders")
        await session.nack([delivery.receipt], requeue=False)
    return session


async def listed(session: Session, wanted: dict[str, Any]) -> set[bytes]:
    page = await session.run(ListDeadLetters(queue="orders", **wanted))
    return {bytes(found.message.body) for found in page.messages}


async def browsed(session: Session, wanted: dict[str, Any]) -> set[bytes]:
    pages = [await session.run(BrowseMessages(queue=queue, **wanted)) for queue in ("orders", "orders_dlq")]
    return {bytes(found.message.body) for page in pages for found in page.messages}


async def redriven(session: Session, wanted: dict[str, Any]) -> set[bytes]:
    before = await listed(session, {})
    done = await session.run(RedriveDeadLetters(queue="orders", **wanted))
    found = before - await listed(session, {})
    assert done.redriven == len(found)
    return found


async def redriven_at_a_pace(session: Session, wanted: dict[str, Any]) -> set[bytes]:
    return await redriven(session, wanted | {"per_second": 1e9})


async def redriven_by_a_job(session: Session, wanted: dict[str, Any]) -> set[bytes]:
    before = await listed(session, {})
    await session.run(StartRedrive(queue="orders", **wanted))
    while any(job.state != "completed" for job in (await session.run(ListRedrives("orders"))).redrives):
        await turns(1)
    return before - await listed(session, {})


async def discarded(session: Session, wanted: dict[str, Any]) -> set[bytes]:
    before = await listed(session, {})
    done = await session.run(PurgeDeadLetters(queue="orders", **wanted))
    found = before - await listed(session, {})
    assert done.purged == len(found)
    return found


CHANGES = [redriven, redriven_at_a_pace, redriven_by_a_job, discarded]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("headers", "expected"), CASES, ids=[str(headers) for headers, _ in CASES])
async def test_what_is_listed_is_what_is_counted_and_sent_back_or_thrown_away(
    session: Session,
    headers: dict[str, Any],
    expected: set[bytes],
    change: Callable[[Session, dict[str, Any]], Awaitable[set[bytes]]],
) -> None:
    wanted = {"headers": headers}
    assert await listed(session, wanted) == expected
    assert await browsed(session, wanted) == expected
    dry = await session.run(RedriveDeadLetters(queue="orders", dry_run=True, headers=headers))
    assert dry.redriven == len(expected)
    assert await change(session, wanted) == expected


@pytest.mark.parametrize("change", CHANGES)
async def test_ids_and_headers_narrow_together(
    session: Session, change: Callable[[Session, dict[str, Any]], Awaitable[set[bytes]]], broker: Broker
) -> None:
    page = await session.run(ListDeadLetters(queue="orders"))
    ids = {bytes(found.message.body): found.message for found in page.messages}
    named = [broker.ids.message_id(ids[body].number, ids[body].created_at_ms) for body in (b"octets", b"two", b"int")]
    assert await change(session, {"headers": {"region": "EU"}, "message_ids": named}) == {b"octets", b"two"}


async def test_a_header_that_no_record_can_hold_is_refused_by_all_alike(session: Session) -> None:
    for look in (listed, browsed, *CHANGES):
        with pytest.raises(InvalidRequest, match=r"headers\.region` is bytes"):
            await look(session, {"headers": {"region": b"EU"}})
