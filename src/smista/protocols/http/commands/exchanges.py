"""Exchanges and bindings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from smista.core.exchanges import thaw
from smista.engine import Binding, ExchangeKind, ExchangeSettings
from smista.protocols.http.commands.base import PAGE_MAX, After, Choice, Command, Door, Name, PageSize, Success, command
from smista.protocols.http.commands.publishing import check_named

ExchangeName = Annotated[str, msgspec.Meta(max_length=255)]
"""May be empty: the default exchange."""
BINDINGS_AT_ONCE = 1_000


@command
class DeclareExchange(Command):
    """Make an exchange, or see that it is there with these settings."""

    name: ClassVar[str] = "exchange.declare"
    answer: ClassVar[Any] = Success

    exchange: Name
    kind: ExchangeKind = ExchangeKind.DIRECT
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: Name | None = None

    async def run(self, door: Door) -> Success:
        settings = ExchangeSettings(self.kind, self.durable, self.auto_delete, self.internal, self.alternate)
        await door.broker.declare_exchange(self.exchange, settings, namespace=self.namespace)
        return Success()


@command
class DeleteExchange(Command):
    """Remove an exchange and its bindings."""

    name: ClassVar[str] = "exchange.delete"
    answer: ClassVar[Any] = Success

    exchange: Name
    if_unused: bool = False

    async def run(self, door: Door) -> Success:
        await door.broker.delete_exchange(self.exchange, if_unused=self.if_unused, namespace=self.namespace)
        return Success()


class ExchangeView(msgspec.Struct):
    exchange: str
    kind: ExchangeKind
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: str | None


class ExchangeList(msgspec.Struct, omit_defaults=True):
    exchanges: list[ExchangeView]
    after: str | None = None
    """Where the next page starts; absent when this was the last."""


@command
class ListExchanges(Command):
    """Exchanges in the order of their names, those that are always there too."""

    name: ClassVar[str] = "exchange.list"
    answer: ClassVar[Any] = ExchangeList

    after: ExchangeName | None = None
    limit: PageSize = PAGE_MAX

    async def run(self, door: Door) -> ExchangeList:
        broker = door.broker
        found = await broker.exchange_page(after=self.after, limit=self.limit + 1, namespace=self.namespace)
        page = found[: self.limit]
        return ExchangeList(
            [
                ExchangeView(
                    exchange.name,
                    exchange.settings.kind,
                    exchange.settings.durable,
                    exchange.settings.auto_delete,
                    exchange.settings.internal,
                    exchange.settings.alternate,
                )
                for exchange in page
            ],
            page[-1].name if len(found) > self.limit else None,
        )


class BindingFields(Command):
    """What names a binding: from an exchange to a queue or to another exchange."""

    choices: ClassVar[tuple[Choice, ...]] = (Choice(("queue", "to_exchange")),)

    exchange: ExchangeName
    queue: Name | None = None
    to_exchange: Name | None = None
    key: Annotated[str, msgspec.Meta(max_length=255)] = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    def binding(self) -> Binding:
        self.check_choices()
        check_named("arguments", self.arguments)
        if self.queue is not None:
            return Binding.to_queue(self.exchange, self.queue, self.key, self.arguments)
        assert self.to_exchange is not None
        return Binding.to_exchange(self.exchange, self.to_exchange, self.key, self.arguments)


@command
class Bind(BindingFields):
    """Have an exchange send to a queue or to another exchange."""

    name: ClassVar[str] = "exchange.bind"
    answer: ClassVar[Any] = Success

    async def run(self, door: Door) -> Success:
        await door.broker.bind(self.binding(), namespace=self.namespace)
        return Success()


@command
class Unbind(BindingFields):
    """Take a binding away."""

    name: ClassVar[str] = "exchange.unbind"
    answer: ClassVar[Any] = Success

    async def run(self, door: Door) -> Success:
        await door.broker.unbind(self.binding(), namespace=self.namespace)
        return Success()


class BindingView(msgspec.Struct, kw_only=True):
    exchange: str
    queue: str | UnsetType = UNSET
    to_exchange: str | UnsetType = UNSET
    key: str
    arguments: dict[str, Any]


class BindingList(msgspec.Struct, omit_defaults=True):
    bindings: list[BindingView]
    after: int | None = None
    """Where the next page starts; absent when this was the last."""


@command
class ListBindings(Command):
    """The bindings that lead from an exchange, or all of them."""

    name: ClassVar[str] = "exchange.bindings"
    answer: ClassVar[Any] = BindingList

    exchange: ExchangeName | None = None
    after: After = 0
    """How many are passed over: those on the pages before."""
    limit: PageSize = PAGE_MAX

    async def run(self, door: Door) -> BindingList:
        broker = door.broker
        some = broker.binding_page(self.exchange, after=self.after, limit=self.limit + 1, namespace=self.namespace)
        found: list[BindingView] = []
        async for binding in broker.lane.in_turns(some[: self.limit], BINDINGS_AT_ONCE):
            view = BindingView(exchange=binding.source, key=binding.key, arguments=thaw(binding.arguments))
            if binding.destination_kind == "queue":
                view.queue = binding.destination
            else:
                view.to_exchange = binding.destination
            found.append(view)
        return BindingList(found, self.after + len(found) if len(some) > self.limit else None)


class StepView(msgspec.Struct):
    """One step of the way: this exchange sends the message there, because of this."""

    exchange: str
    via: Literal["binding", "alternate", "default"]
    destination_kind: Literal["queue", "exchange"]
    destination: str
    key: str
    arguments: dict[str, Any]
    is_missing: bool


class RouteAnswer(msgspec.Struct):
    queues: list[str]
    is_unroutable: bool
    steps: list[StepView]


@command
class ShowRoute(Command):
    """Where a message would go, and why; nothing is published."""

    name: ClassVar[str] = "exchange.route"
    answer: ClassVar[Any] = RouteAnswer

    exchange: ExchangeName
    routing_key: Annotated[str, msgspec.Meta(max_length=255)] = ""
    headers: dict[str, Any] = msgspec.field(default_factory=dict)

    async def run(self, door: Door) -> RouteAnswer:
        check_named("headers", self.headers)
        found = door.broker.route(self.exchange, self.routing_key, headers=self.headers, namespace=self.namespace)
        steps = [
            StepView(
                step.exchange,
                step.via,
                step.destination_kind,
                step.destination,
                step.key,
                thaw(step.arguments),
                step.is_missing,
            )
            for step in found.trace
        ]
        return RouteAnswer(list(found.queues), not found.queues, steps)
