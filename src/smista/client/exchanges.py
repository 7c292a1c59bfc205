"""Calls about exchanges and bindings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from smista.client.answers import Binding, Bindings, Done, Exchange, Exchanges, Route
from smista.client.calls import Calls


class ExchangeCalls(Calls):
    async def declare_exchange(
        self,
        name: str,
        kind: Literal["direct", "fanout", "topic", "headers"] = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        alternate: str | None = None,
    ) -> None:
        """Make an exchange. One that exists must have these settings, else this raises `ExchangeDiffers`."""
        await self._ask(
            "exchange.declare",
            Done,
            is_repeatable=True,
            exchange=name,
            kind=kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            alternate=alternate,
        )

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; with `if_unused` only where none leads from it (`ExchangeInUse`)."""
        await self._ask("exchange.delete", Done, exchange=name, if_unused=if_unused)

    async def exchanges(self) -> list[Exchange]:
        """All exchanges, including those that the broker declares itself."""
        return await self._all("exchange.list", Exchanges, "exchanges")

    async def bind(
        self,
        exchange: str,
        queue: str | None = None,
        *,
        key: str = "",
        to_exchange: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Have an exchange send the messages that match to a queue, or to another exchange."""
        await self._ask(
            "exchange.bind",
            Done,
            is_repeatable=True,
            exchange=exchange,
            queue=queue,
            to_exchange=to_exchange,
            key=key,
            arguments=arguments,
        )

    async def unbind(
        self,
        exchange: str,
        queue: str | None = None,
        *,
        key: str = "",
        to_exchange: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Remove a binding; it is no error if there is none."""
        await self._ask(
            "exchange.unbind",
            Done,
            exchange=exchange,
            queue=queue,
            to_exchange=to_exchange,
            key=key,
            arguments=arguments,
        )

    async def bindings(self, exchange: str | None = None) -> list[Binding]:
        """All bindings, or those that lead from one exchange."""
        return await self._all("exchange.bindings", Bindings, "bindings", exchange=exchange)

    async def route(self, exchange: str, routing_key: str = "", *, headers: Mapping[str, Any] | None = None) -> Route:
        """Where a message would go, and why; nothing is published."""
        return await self._ask(
            "exchange.route", Route, is_repeatable=True, exchange=exchange, routing_key=routing_key, headers=headers
        )
