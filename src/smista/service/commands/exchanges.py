"""Exchanges and bindings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from smista.core.exchanges import thaw
from smista.engine import Binding, ExchangeKind, ExchangeSettings
from smista.service.command import Command
from smista.service.context import Context
from smista.service.fields import PAGE_MAX, After, Choice, Name, PageSize, Success
from smista.service.permission import Permission
from smista.service.plain_values import check_named

ExchangeName = Annotated[str, msgspec.Meta(max_length=255)]
"""May be empty: the default exchange."""
RoutingKey = Annotated[str, msgspec.Meta(max_length=255)]
BINDINGS_AT_ONCE = 1_000


class DeclareExchange(
    Command[Success],
    needs=(
        Permission.CONFIGURE.on("exchange"),
        # What it does not route it hands on, as by a binding.
        Permission.READ.on("exchange").with_any("alternate"),
        Permission.WRITE.on("alternate"),
    ),
    changes=True,
):
    """Make an exchange, or see that it is there with these settings."""

    name = "exchange.declare"

    exchange: Name
    kind: ExchangeKind = ExchangeKind.DIRECT
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: Name | None = None

    async def run(self, context: Context) -> Success:
        settings = ExchangeSettings(self.kind, self.durable, self.auto_delete, self.internal, self.alternate)
        await context.broker.declaring.declare_exchange(self.exchange, settings, namespace=context.namespace)
        return Success()


class DeleteExchange(Command[Success], needs=Permission.CONFIGURE.on("exchange"), changes=True):
    """Remove an exchange and its bindings."""

    name = "exchange.delete"

    exchange: Name
    if_unused: bool = False

    async def run(self, context: Context) -> Success:
        await context.broker.declaring.delete_exchange(
            self.exchange, if_unused=self.if_unused, namespace=context.namespace
        )
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


class ListExchanges(Command[ExchangeList], needs=Permission.MONITOR):
    """Exchanges in the order of their names, those that are always there too."""

    name = "exchange.list"

    after: ExchangeName | None = None
    limit: PageSize = PAGE_MAX

    async def run(self, context: Context) -> ExchangeList:
        found = await context.broker.surveying.exchange_page(
            after=self.after, limit=self.limit + 1, namespace=context.namespace
        )
        page = found[: self.limit]
        return ExchangeList(
            [ExchangeView(exchange.name, **msgspec.structs.asdict(exchange.settings)) for exchange in page],
            page[-1].name if len(found) > self.limit else None,
        )


class BindingFields(msgspec.Struct, forbid_unknown_fields=True):
    """What names a binding: from an exchange to a queue or to another exchange."""

    exchange: ExchangeName
    queue: Name | None = None
    to_exchange: Name | None = None
    key: RoutingKey = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    def binding(self) -> Binding:
        QUEUE_OR_EXCHANGE.check(self)
        check_named("arguments", self.arguments)
        if self.queue is not None:
            return Binding.to_queue(self.exchange, self.queue, self.key, self.arguments)
        assert self.to_exchange is not None
        return Binding.to_exchange(self.exchange, self.to_exchange, self.key, self.arguments)


QUEUE_OR_EXCHANGE = Choice(("queue", "to_exchange"))
NEEDED_TO_BIND = (Permission.READ.on("exchange"), Permission.WRITE.on("queue", "to_exchange"))


class Bind(BindingFields, Command[Success], needs=NEEDED_TO_BIND, changes=True):
    """Have an exchange send to a queue or to another exchange."""

    name = "exchange.bind"
    choices = (QUEUE_OR_EXCHANGE,)

    async def run(self, context: Context) -> Success:
        await context.broker.declaring.bind(self.binding(), namespace=context.namespace)
        return Success()


class Unbind(BindingFields, Command[Success], needs=NEEDED_TO_BIND, changes=True):
    """Take a binding away."""

    name = "exchange.unbind"
    choices = (QUEUE_OR_EXCHANGE,)

    async def run(self, context: Context) -> Success:
        await context.broker.declaring.unbind(self.binding(), namespace=context.namespace)
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


class ListBindings(Command[BindingList], needs=Permission.MONITOR):
    """The bindings that lead from an exchange, or all of them."""

    name = "exchange.bindings"

    exchange: ExchangeName | None = None
    after: After = 0
    """How many are passed over: those on the pages before."""
    limit: PageSize = PAGE_MAX

    async def run(self, context: Context) -> BindingList:
        broker = context.broker
        some = broker.surveying.binding_page(
            self.exchange, after=self.after, limit=self.limit + 1, namespace=context.namespace
        )
        found: list[BindingView] = []
        async for binding in broker.fair_turns.in_turns(some[: self.limit], BINDINGS_AT_ONCE):
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


class ShowRoute(Command[RouteAnswer], needs=Permission.MONITOR.on("exchange")):
    """Where a message would go, and why; nothing is published."""

    name = "exchange.route"

    exchange: ExchangeName
    routing_key: RoutingKey = ""
    headers: dict[str, Any] = msgspec.field(default_factory=dict)

    async def run(self, context: Context) -> RouteAnswer:
        check_named("headers", self.headers)
        found = context.broker.catalog.route(
            self.exchange, self.routing_key, headers=self.headers, namespace=context.namespace
        )
        steps = [
            StepView(**(msgspec.structs.asdict(step) | {"arguments": thaw(step.arguments)})) for step in found.trace
        ]
        return RouteAnswer(list(found.queues), not found.queues, steps)
