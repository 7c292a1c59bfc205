"""What a user has no permission for is refused, by the session, and closes the channel with ACCESS_REFUSED."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.methods import Method
from smista.service.permission import Permission
from smista.service.principal import Principal
from tests.protocols.amqp.in_process import Client, Server
from tests.protocols.amqp.raw import consume, declare, get, message, on

CONFIGURE, WRITE, READ = Permission.CONFIGURE, Permission.WRITE, Permission.READ
Granted = set[tuple[Permission, str | None]]


class Grants:
    """What the clerk may do; a test changes it."""

    def __init__(self) -> None:
        self.granted: Granted = set()
        self.asked: Granted = set()

    def allow(self, permission: Permission, namespace: str | None, name: str | None) -> bool:
        self.asked.add((permission, name))
        return (permission, name) in self.granted


@pytest.fixture
def grants() -> Grants:
    return Grants()


@pytest.fixture
async def server(grants: Grants) -> AsyncIterator[Server]:
    server = await Server().start(principal_of=lambda name, peer: Principal("clerk", "amqp", peer, grants))
    yield server
    await server.stop()


@pytest.fixture
async def client(server: Server, grants: Grants) -> Client:
    """With a queue `q` and an exchange `x`, and no permission any more."""
    client = await server.connect()
    grants.granted = {(CONFIGURE, "q"), (CONFIGURE, "x")}
    await client.call(declare("q"), methods.QueueDeclareOk)
    await client.call(exchange_declare("x"), methods.ExchangeDeclareOk)
    grants.granted = set()
    return client


def exchange_declare(name: str, *, is_passive: bool = False) -> Method:
    return methods.ExchangeDeclare(0, name, "direct", is_passive, False, False, False, False, {})


BIND = methods.QueueBind(0, "q", "x", "key", False, {})
UNBIND = methods.QueueUnbind(0, "q", "x", "key", {})


async def refusal(client: Client, *data: bytes) -> str:
    client.feed(*data)
    closed = await client.expect(methods.ChannelClose)
    assert closed.reply_code == 403
    client.feed(on(1, methods.ChannelCloseOk()), on(1, methods.ChannelOpen()))
    await client.expect(methods.ChannelOpenOk)
    return closed.reply_text


def lacking(permission: str, name: str) -> str:
    return (
        f"ACCESS_REFUSED - 'clerk' has no permission to {permission} '{name}' in namespace '/'; "
        "ask an administrator for it."
    )


REFUSED = [
    (declare("new"), "configure", "new"),
    (declare("q"), "configure", "q"),
    (methods.QueueDelete(0, "q", False, False, False), "configure", "q"),
    (methods.QueueDelete(0, "nowhere", False, False, False), "configure", "nowhere"),
    (methods.QueuePurge(0, "q", False), "configure", "q"),
    (exchange_declare("new"), "configure", "new"),
    (exchange_declare("x"), "configure", "x"),
    (methods.ExchangeDelete(0, "x", False, False), "configure", "x"),
    (BIND, "read", "x"),
    (UNBIND, "read", "x"),
    (methods.ExchangeBind(0, "x", "amq.direct", "key", False, {}), "read", "amq.direct"),
    (methods.ExchangeUnbind(0, "x", "amq.direct", "key", False, {}), "read", "amq.direct"),
    (consume("q"), "read", "q"),
    (get("q"), "read", "q"),
]


@pytest.mark.parametrize(
    ("method", "permission", "name"), REFUSED, ids=[f"{type(method).__name__}-{name}" for method, _, name in REFUSED]
)
async def test_what_is_not_granted_is_refused(client: Client, method: Method, permission: str, name: str) -> None:
    assert await refusal(client, on(1, method)) == lacking(permission, name)
    assert not client.wire.is_closed


@pytest.mark.parametrize("method", [BIND, UNBIND])
async def test_to_bind_a_queue_is_to_write_to_it(client: Client, grants: Grants, method: Method) -> None:
    grants.granted = {(READ, "x")}
    assert await refusal(client, on(1, method)) == lacking("write", "q")


async def test_to_say_where_dead_letters_go_is_to_read_the_queue_and_to_write_there(
    client: Client, grants: Grants
) -> None:
    """As in RabbitMQ. Else a queue of one's own is a way into any exchange."""
    method = methods.QueueDeclare(0, "new", False, True, False, False, False, {"x-dead-letter-exchange": "x"})
    needed: list[tuple[Permission, str | None]] = [(CONFIGURE, "new"), (READ, "new"), (WRITE, "x")]
    for missing in needed:
        grants.granted = {*needed} - {missing}
        assert await refusal(client, on(1, method)) == lacking(missing[0].value, str(missing[1]))
    grants.granted = {*needed}
    await client.call(method, methods.QueueDeclareOk)


async def test_to_name_an_alternate_exchange_is_to_read_the_one_and_to_write_to_the_other(
    client: Client, grants: Grants
) -> None:
    method = methods.ExchangeDeclare(0, "new", "direct", False, False, False, False, False, {"alternate-exchange": "x"})
    needed: list[tuple[Permission, str | None]] = [(CONFIGURE, "new"), (READ, "new"), (WRITE, "x")]
    for missing in needed:
        grants.granted = {*needed} - {missing}
        assert await refusal(client, on(1, method)) == lacking(missing[0].value, str(missing[1]))
    grants.granted = {*needed}
    await client.call(method, methods.ExchangeDeclareOk)


async def test_to_publish_is_to_write_to_the_exchange_and_is_asked_for_each_message(
    client: Client, grants: Grants
) -> None:
    grants.granted = {(WRITE, "q")}
    assert await refusal(client, message(b"one", "key", "x")) == lacking("write", "x")
    grants.granted = {(WRITE, "x"), (READ, "x"), (WRITE, "q")}
    await client.call(BIND, methods.QueueBindOk)
    client.feed(message(b"two", "key", "x"))
    await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    grants.granted = set()
    assert await refusal(client, message(b"three", "key", "x")) == lacking("write", "x")


async def test_what_is_granted_is_done(client: Client, grants: Grants) -> None:
    grants.granted = {(READ, "q"), (WRITE, "x"), (READ, "x"), (WRITE, "q")}
    await client.call(BIND, methods.QueueBindOk)
    client.feed(message(b"one", "key", "x"), message(b"two", "key", "x"))
    got = await client.call(get("q", is_no_ack=True), methods.BasicGetOk)
    assert (got.exchange, await client.content()) == ("x", b"one")
    await client.call(consume("q"), methods.BasicConsumeOk)
    assert await client.deliveries(1) == [(2, b"two")]


async def test_to_ask_whether_a_name_is_there_needs_no_permission(client: Client, grants: Grants) -> None:
    grants.asked = set()
    await client.call(declare("q", is_passive=True), methods.QueueDeclareOk)
    await client.call(exchange_declare("x", is_passive=True), methods.ExchangeDeclareOk)
    assert grants.asked == set()
