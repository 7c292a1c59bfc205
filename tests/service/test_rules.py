"""Every public method of a session has a rule: it refuses those who lack its permission, and those alone."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from smista.core.message import Message
from smista.engine import Broker, Publication, QueueSettings
from smista.engine.interface import Engine
from smista.errors import AccessDenied, ClaimNotFound
from smista.log import MemoryLog
from smista.service.commands.exchanges import DeclareExchange
from smista.service.commands.queues import AlterQueue, DeclareQueue, PurgeQueue
from smista.service.held import Held, HeldBytes
from smista.service.permission import NEEDED_TO_DECLARE, Need, Permission
from smista.service.principal import Principal, anyone
from smista.service.queue_settings import GivenSettings
from smista.service.route import RoutedQueue
from smista.service.rules import Rule, needs, needs_nothing, rules_of
from smista.service.service import Service
from smista.service.session import LimitedSession, Session
from smista.service.staging.files import Stage
from tests.alike import alike
from tests.bulk.fake_reader import FakeReader

Granted = tuple[Permission, str | None, str | None]
"""What, in which namespace (None: in all of them), to what (None: to all of it)."""
RULES = {name: rule for name, _, rule in rules_of(Session)}
QUEUE, EXCHANGE = "orders", "amq.fanout"


class Only:
    def __init__(self, *granted: Granted) -> None:
        self._granted = granted

    def allow(self, permission: Permission, namespace: str | None, name: str | None) -> bool:
        return (permission, namespace, name) in self._granted


class Caller:
    """With messages of the queue, one of them held."""

    def __init__(self, service: Service, message: Message, receipt: Any, text: str) -> None:
        self.service = service
        self.message = message
        self.id = service.ids.message_id(message.number, message.created_at_ms)
        self.receipt = receipt
        self.text = text

    def session(self, *granted: Granted) -> Session:
        return self.service.session(Principal("clerk", "http", "", Only(*granted)))


@pytest.fixture
async def caller(broker: Broker, where: Callable[[Broker], Engine]) -> AsyncIterator[Caller]:
    service = Service(where(broker), log_reader=FakeReader())
    session = service.session(anyone("http"))
    await session.declare_queue(QUEUE, QueueSettings())
    await session.publish(QUEUE, [Publication(b"one"), Publication(b"two")])
    [delivery] = await session.receive(QUEUE)
    [message, _] = (await broker.browsing.browse(QUEUE)).messages
    yield Caller(service, message, delivery.receipt, broker.ids.receipt_text(delivery.receipt))
    await service.close()


async def chunks() -> AsyncIterator[bytes]:
    yield b"nothing"


class Plain:
    routed_by: dict[str, Any] = {}  # noqa: RUF012
    extra_keys = ()


ROUTED = RoutedQueue(QUEUE)
CALLS: dict[str, Callable[[Session, Caller], Any]] = {
    "run": lambda session, caller: session.run(PurgeQueue(QUEUE)),
    "check": lambda session, caller: session.check(Permission.CONFIGURE, QUEUE),
    "publish": lambda session, caller: session.publish(QUEUE, [Publication(b"x")]),
    "publish_to_exchange": lambda session, caller: session.publish_to_exchange(EXCHANGE, Publication(b"x")),
    "stage": lambda session, caller: session.stage(Stage("j", "1", 0, 0), chunks(), 1000, Held(HeldBytes())),
    "route": lambda session, caller: session.route(EXCHANGE, "").queues(Plain()),
    "submit": lambda session, caller: session.submit(ROUTED, [Publication(b"x")]),
    "submit_alike": lambda session, caller: session.submit_alike(ROUTED, alike([b"x"])),
    "submit_to_queues": lambda session, caller: session.submit_to_queues([ROUTED], Publication(b"x")),
    "has_queue": lambda session, caller: session.has_queue(ROUTED),
    "is_plain": lambda session, caller: session.is_plain(ROUTED, Publication(b"")),
    "body_limit": lambda session, caller: session.body_limit(QUEUE),
    "receive": lambda session, caller: session.receive(QUEUE),
    "subscribe": lambda session, caller: session.subscribe(queue=QUEUE, deliver=lambda deliveries: None),
    "shared_credit": lambda session, caller: session.shared_credit(5),
    "leave": lambda session, caller: session.leave([], [caller.receipt], is_vanished=True),
    "read_claim": lambda session, caller: session.read_claim(QUEUE, "spark", 1),
    "receipt_of": lambda session, caller: session.receipt_of(QUEUE, caller.id),
    "receipt": lambda session, caller: session.receipt(caller.text),
    "acknowledge": lambda session, caller: session.acknowledge([caller.receipt]),
    "nack": lambda session, caller: session.nack([caller.receipt]),
    "release": lambda session, caller: session.release([caller.receipt]),
    "extend": lambda session, caller: session.extend([caller.receipt], 1000),
    "can_be_settled": lambda session, caller: session.can_be_settled([caller.receipt]),
    "held": lambda session, caller: session.held([caller.receipt]),
    "give_back": lambda session, caller: session.give_back([caller.receipt]),
    "declare_queue": lambda session, caller: session.declare_queue(QUEUE, QueueSettings()),
    "use_queue": lambda session, caller: session.use_queue(QUEUE),
    "queue_settings": lambda session, caller: session.queue_settings(QUEUE),
    "declared_settings": lambda session, caller: session.declared_settings(QUEUE),
    "queue_number": lambda session, caller: session.queue_number(QUEUE),
    "has_exchange": lambda session, caller: session.has_exchange(EXCHANGE),
    "exchange_settings": lambda session, caller: session.exchange_settings(EXCHANGE),
    "stats": lambda session, caller: session.stats(QUEUE),
    "counts": lambda session, caller: session.counts(QUEUE),
    "message_count": lambda session, caller: session.message_count(QUEUE),
    "queue_page": lambda session, caller: session.queue_page(limit=10),
    "message_id": lambda session, caller: session.message_id(caller.message),
    "measures": lambda session, caller: session.measures(),
    "bulk_measures": lambda session, caller: session.bulk_measures(),
    "log_range": lambda session, caller: session.log_range(),
    "log_position_at": lambda session, caller: session.log_position_at(0),
    "log_reader": lambda session, caller: session.log_reader(),
}
ASKS_INSIDE: dict[str, Need] = {
    "run": Permission.CONFIGURE.on("queue"),
    "check": Permission.CONFIGURE.on("queue"),
    "route": Permission.WRITE.on("exchange"),
}
"""What these ask for, by what they are called with, though they need nothing themselves."""
NAMED = {"queue": QUEUE, "exchange": EXCHANGE}


def granting(need: Need) -> Granted:
    name = NAMED[need.fields[0]] if need.fields else None
    return need.permission, None if need.is_everywhere else "/", name


def all_but(need: Need) -> list[Granted]:
    """All other permissions for it, but for those that imply this one; and this one for other things."""
    permission, namespace, name = granting(need)
    others = {Permission.ADMINISTER} if permission is Permission.MONITOR else {*Permission} - {permission}
    return [*((one, namespace, name) for one in others), (permission, "other", name), (permission, namespace, "other")]


def needs_of(method: str) -> tuple[Need, ...]:
    """As it is called here: without what it needs only with some settings."""
    if method in ASKS_INSIDE:
        return (ASKS_INSIDE[method],)
    return tuple(need for need in RULES[method].needs if need not in NEEDED_TO_DECLARE[1:])


async def call(method: str, session: Session, caller: Caller) -> None:
    """Raises `AccessDenied` where it is refused. What it finds wrong beyond that is not asked here."""
    try:
        found = CALLS[method](session, caller)
        if inspect.isawaitable(found):
            await found
    except ClaimNotFound:
        assert method == "read_claim"
    except Exception as error:
        if isinstance(error, AccessDenied) or method != "stage":
            raise


def test_every_public_method_has_a_rule_and_is_called_here() -> None:
    public = {name for name, member in vars(Session).items() if callable(member) and not name.startswith("_")}
    assert public == RULES.keys() == CALLS.keys()
    assert all(bool(rule.needs) != bool(rule.why_none) for rule in RULES.values())
    assert {name for name in RULES if RULES[name].needs}.isdisjoint(ASKS_INSIDE)


@pytest.mark.parametrize("method", [name for name in RULES if needs_of(name)])
async def test_who_lacks_the_permission_is_refused(caller: Caller, method: str) -> None:
    with pytest.raises(AccessDenied):
        await call(method, caller.session(), caller)
    [need] = needs_of(method)
    with pytest.raises(AccessDenied):
        await call(method, caller.session(*all_but(need)), caller)


@pytest.mark.parametrize("method", [name for name in RULES if needs_of(name)])
async def test_who_has_just_the_permission_does_it(caller: Caller, method: str) -> None:
    await call(method, caller.session(*map(granting, needs_of(method))), caller)


@pytest.mark.parametrize("method", [name for name in RULES if not needs_of(name)])
async def test_what_needs_no_permission_is_done_without(caller: Caller, method: str) -> None:
    await call(method, caller.session(), caller)


@pytest.mark.parametrize("other", [Permission.CONFIGURE, Permission.WRITE, Permission.READ])
async def test_who_may_do_anything_with_a_queue_sees_that_it_is_there(caller: Caller, other: Permission) -> None:
    await call("stats", caller.session((other, "/", QUEUE)), caller)
    with pytest.raises(
        AccessDenied, match="'clerk' has no permission for 'orders' in namespace '/', not even to monitor"
    ):
        await call("stats", caller.session((other, "/", "other")), caller)


TARGETS = ({"dead_letter_queue": "dead"}, {"dead_letter_exchange": "dead"})
CONFIGURE, READ, WRITE = Permission.CONFIGURE, Permission.READ, Permission.WRITE


@pytest.mark.parametrize("target", TARGETS, ids=["queue", "exchange"])
@pytest.mark.parametrize(
    "declare",
    [
        lambda session, target: session.declare_queue("mine", QueueSettings(**target)),
        lambda session, target: session.run(DeclareQueue("mine", GivenSettings(**target))),
        lambda session, target: session.run(AlterQueue(QUEUE, GivenSettings(**target))),
    ],
    ids=["method", "declare", "alter"],
)
async def test_who_says_where_dead_letters_go_may_read_the_queue_and_write_there(
    caller: Caller, declare: Callable[[Session, dict[str, str]], Any], target: dict[str, str]
) -> None:
    """Else whoever may make a queue puts messages into any, and whoever may change one reads it."""
    some = [(permission, "/", name) for name in ("mine", QUEUE) for permission in (CONFIGURE, READ, WRITE)]
    with pytest.raises(AccessDenied, match="to write 'dead'"):
        await declare(caller.session(*some), target)
    there = (WRITE, "/", "dead")
    with pytest.raises(AccessDenied, match=f"to read '(mine|{QUEUE})'"):
        await declare(caller.session(*(one for one in some if one[0] is not READ), there), target)
    await declare(caller.session(*some, there), target)


async def test_settings_without_a_target_of_dead_letters_need_no_more_than_to_configure(caller: Caller) -> None:
    session = caller.session((CONFIGURE, "/", QUEUE), (CONFIGURE, "/", "mine"))
    await session.run(AlterQueue(QUEUE, GivenSettings(lease_ms=1_000, dead_letter_queue=None)))
    await session.run(DeclareQueue("mine"))


async def test_who_names_an_alternate_exchange_may_read_the_one_and_write_to_the_other(caller: Caller) -> None:
    command = DeclareExchange("mine", alternate=EXCHANGE)
    needed = [(CONFIGURE, "/", "mine"), (READ, "/", "mine"), (WRITE, "/", EXCHANGE)]
    for missing in needed:
        with pytest.raises(AccessDenied, match=f"to {missing[0].value} '{missing[2]}'"):
            await caller.session(*(one for one in needed if one != missing)).run(command)
    await caller.session(*needed).run(command)


async def test_what_concerns_all_namespaces_needs_a_permission_for_the_broker(caller: Caller) -> None:
    with pytest.raises(AccessDenied, match="no permission to read the broker as a whole"):
        caller.session((Permission.READ, "/", None)).log_reader()


def test_who_may_do_everything_is_never_asked() -> None:
    for name, rule in RULES.items():
        asks = getattr(LimitedSession, name) is not getattr(Session, name)
        assert asks == bool(rule.needs)
        assert not hasattr(getattr(Session, name), "__wrapped__")


async def test_only_who_may_not_do_everything_has_a_session_that_asks() -> None:
    async with await Broker.open(MemoryLog()) as broker:
        service = Service(broker)
        assert type(service.session(anyone("http"))) is Session
        assert type(service.session(Principal("clerk", "http", "", Only()))) is LimitedSession


def test_a_method_without_a_rule_is_an_error() -> None:
    class Painting:
        @needs(Permission.READ.on("queue"))
        def show(self, queue: str) -> None: ...

        @needs_nothing("it is his own")
        def sign(self) -> None: ...

        def _mix(self) -> None: ...

    assert [(name, rule) for name, _, rule in rules_of(Painting)] == [
        ("show", Rule((Permission.READ.on("queue"),))),
        ("sign", Rule((), "it is his own")),
    ]
    for paint in (lambda self: None, property(lambda self: None)):
        Painting.paint = paint  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match=r"Painting\.paint does not say what permission it needs"):
            list(rules_of(Painting))
