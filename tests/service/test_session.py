"""A session: what a caller may do, it does; what it may not, is refused before anything was done."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from smista.core.message import Envelope
from smista.engine import Broker, Publication, QueueSettings
from smista.errors import AccessDenied, NamespaceNotFound, QueueNotFound
from smista.service.command import COMMANDS
from smista.service.commands.queues import DeclareQueue, DeleteQueue, ListQueues, PurgeQueue
from smista.service.permission import Permission
from smista.service.principal import ANYONE, Principal, anyone
from smista.service.route import RoutedQueue
from smista.service.service import Service
from smista.service.session import Session


class Only:
    """Grants these."""

    def __init__(self, *granted: tuple[Permission, str | None]) -> None:
        self._granted = granted

    def allow(self, permission: Permission, namespace: str | None, name: str | None) -> bool:
        return (permission, name) in self._granted


def limited(service: Service, *granted: tuple[Permission, str | None]) -> Session:
    return service.session(Principal("clerk", "http", "", Only(*granted)))


async def test_anyone_may_do_everything_as_long_as_there_are_no_users(service: Service) -> None:
    session = service.session(anyone("http", "127.0.0.1"))
    assert session.principal.name == ANYONE
    assert (await session.run(DeclareQueue("orders"))).created
    await session.publish("orders", [Publication(b"x")])
    assert (await session.run(PurgeQueue("orders"))).purged == 1
    assert (await session.run(DeleteQueue("orders"))).deleted == 0


async def test_a_session_is_for_one_namespace(service: Service) -> None:
    ours, theirs = service.session(anyone("http"), "ours"), service.session(anyone("http"), "theirs")
    await ours.run(DeclareQueue("orders"))
    assert (await ours.run(ListQueues())).queues == ["orders"]
    assert (await theirs.run(ListQueues())).queues == []
    assert ours.queue_number("orders")
    with pytest.raises((QueueNotFound, NamespaceNotFound)):
        theirs.queue_number("orders")


async def test_a_command_that_the_caller_may_not_run_does_nothing(service: Service, broker: Broker) -> None:
    await broker.declaring.declare_queue("orders")
    await broker.publishing.publish("orders", [Publication(b"x")])
    session = limited(service, (Permission.READ, "orders"), (Permission.CONFIGURE, "other"))
    with pytest.raises(AccessDenied, match="'clerk' has no permission to configure 'orders' in namespace '/'"):
        await session.run(PurgeQueue("orders"))
    assert broker.statistics.stats("orders").ready == 1


async def test_a_command_about_the_namespace_needs_a_permission_for_the_namespace(service: Service) -> None:
    with pytest.raises(AccessDenied, match="to monitor namespace '/'"):
        await limited(service, (Permission.MONITOR, "orders")).run(ListQueues())
    assert (await limited(service, (Permission.MONITOR, None)).run(ListQueues())).queues == []


async def test_publishing_and_receiving_need_a_permission_for_the_queue(service: Service, broker: Broker) -> None:
    await broker.declaring.declare_queue("orders")
    writer, reader = limited(service, (Permission.WRITE, "orders")), limited(service, (Permission.READ, "orders"))
    await writer.publish("orders", [Publication(b"x")])
    [delivery] = await reader.receive("orders")
    assert delivery.body == b"x"
    for refused in (
        lambda: writer.receive("orders"),
        lambda: writer.subscribe("orders", lambda deliveries: None),
        lambda: writer.receipt_of("orders", delivery.id),
        lambda: reader.publish("orders", [Publication(b"y")]),
        lambda: reader.publish_to_exchange("", Publication(b"y")),
    ):
        with pytest.raises(AccessDenied):
            refused()
    assert broker.statistics.stats("orders").depth == 1


@pytest.mark.parametrize("name", COMMANDS)
async def test_nobody_without_permissions_runs_any_command(service: Service, broker: Broker, name: str) -> None:
    kind = COMMANDS[name]
    given = {field.name: _value(field.type) for field in msgspec.structs.fields(kind) if field.required}
    for choice in kind.choices:
        if choice.is_required:
            given[choice.fields[0]] = "name" if choice.fields[0] in ("queue", "message_id") else 1
    command = kind(**given)
    before = broker.statistics.measures().log.waiting_bytes, broker.catalog.queue_names()
    with pytest.raises(AccessDenied):
        await limited(service).run(command)
    assert (broker.statistics.measures().log.waiting_bytes, broker.catalog.queue_names()) == before


def _value(kind: Any) -> Any:
    """Something that a required field takes."""
    shown = repr(kind)
    return [] if "list[" in shown else 1 if "int" in shown else "name"


@pytest.mark.parametrize(
    ("publication", "is_plain"),
    [
        (Publication(b""), True),
        (Publication(b"", priority=5), False),
        (Publication(b"", delay_ms=1), False),
        (Publication(b"", Envelope(ttl_ms=1)), False),
        (Publication(b"", Envelope(deduplication_id="a")), False),
    ],
)
async def test_what_is_plain_is_what_a_queue_puts_in_without_a_look_at_each(
    service: Service, broker: Broker, publication: Publication, is_plain: bool
) -> None:
    await broker.declaring.declare_queue("plain", QueueSettings(max_priority=9))
    await broker.declaring.declare_queue("flat", QueueSettings(max_priority=0, clamp_priority=True))
    await broker.declaring.declare_queue("ordered", QueueSettings(ordered=True))
    session = service.session(anyone("amqp"))

    def asked(queue: str) -> bool:
        return session.is_plain(RoutedQueue(queue), publication)

    # A queue that has one priority only does not look at that of a message.
    assert (asked("plain"), asked("flat")) == (is_plain, is_plain or publication.priority is not None)
    assert not asked("ordered")
    assert not asked("missing")
