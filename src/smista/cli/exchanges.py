"""Exchanges, bindings and routes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from smista.cli.arguments import Exchange, Headers, IsSure, named_values
from smista.cli.completion import exchange_names, queue_names
from smista.cli.connected import client_command
from smista.cli.help import Group
from smista.cli.options import OptionGroup
from smista.cli.output import Output, confirm
from smista.cli.table import Column
from smista.command_line import WrongUsage, switch

if TYPE_CHECKING:
    from smista.client import AsyncClient, Binding, RouteStep

commands = typer.Typer()
exchange_commands = typer.Typer(cls=Group, help="Exchanges: declare, delete.")

COLUMNS = [Column(name) for name in ("exchange", "kind", "durable", "auto delete", "internal", "alternate")]
BINDING_COLUMNS = [Column("exchange"), Column("to"), Column("key"), Column("arguments", is_flexible=True)]
STEP_COLUMNS = [Column("exchange"), Column("by"), Column("key"), Column("to"), Column("")]


def shown_name(exchange: str) -> str:
    return exchange or "(default)"


@client_command(commands)
async def exchanges(client: AsyncClient, output: Output) -> None:
    """List the exchanges."""
    output.items(
        await client.exchanges(),
        COLUMNS,
        lambda found: [
            shown_name(found.name),
            found.kind,
            found.durable,
            found.auto_delete,
            found.internal,
            found.alternate,
        ],
        msgspec.to_builtins,
    )


@client_command(exchange_commands)
async def declare(
    client: AsyncClient,
    output: Output,
    exchange: Annotated[str, typer.Argument(metavar="EXCHANGE", help="The exchange's name.")],
    kind: Annotated[
        Literal["direct", "fanout", "topic", "headers"], typer.Option("--kind", "-k", help="How it routes messages.")
    ] = "direct",
    durable: Annotated[bool, typer.Option(help="Keep it over a restart.")] = True,
    auto_delete: Annotated[bool, typer.Option(help="Delete it with its last binding.")] = False,
    internal: Annotated[bool, typer.Option(help="Take messages from other exchanges only.")] = False,
    alternate: Annotated[
        str | None,
        typer.Option(
            metavar="EXCHANGE",
            help="The exchange that gets messages that match no binding.",
            autocompletion=exchange_names,
        ),
    ] = None,
) -> None:
    """Declare an exchange; one that exists must have these settings."""
    await client.declare_exchange(
        exchange, kind, durable=durable, auto_delete=auto_delete, internal=internal, alternate=alternate
    )
    output.say(f"Exchange {exchange} is declared.", exchange=exchange, kind=kind)


@client_command(exchange_commands)
async def delete(
    client: AsyncClient,
    output: Output,
    exchange: Exchange,
    if_unused: Annotated[bool, switch(help="Only if no binding leads from it.")] = False,
    is_sure: IsSure = False,
) -> None:
    """Delete an exchange and its bindings."""
    confirm(f"Delete exchange {exchange} with its bindings?", is_sure=is_sure)
    await client.delete_exchange(exchange, if_unused=if_unused)
    output.say(f"Deleted exchange {exchange}.", exchange=exchange)


@dataclass(frozen=True, slots=True)
class BindingOptions(OptionGroup):
    """The parts that identify a binding."""

    exchange: Exchange
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="The queue it leads to.", autocompletion=queue_names)
    ] = None
    key: Annotated[
        str, typer.Option("--key", "-k", metavar="KEY", help="The routing key; of a topic exchange a pattern.")
    ] = ""
    to_exchange: Annotated[
        str | None,
        typer.Option(metavar="EXCHANGE", help="The exchange it leads to instead.", autocompletion=exchange_names),
    ] = None
    arguments: Annotated[
        list[str] | None,
        typer.Option(
            "--argument",
            "-a",
            metavar="NAME=VALUE",
            help="An argument for a headers exchange; NAME:=JSON for one that is not text. Repeatable.",
        ),
    ] = None

    def target(self) -> str:
        if (self.queue is None) == (self.to_exchange is None):
            raise WrongUsage("Give either QUEUE or --to-exchange.")
        return f"queue {self.queue}" if self.to_exchange is None else f"exchange {self.to_exchange}"

    def named(self) -> dict[str, Any]:
        """The binding by the client's names."""
        return asdict(self) | {"arguments": named_values(self.arguments, "--argument")}

    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in self.named().items() if value is not None}


@client_command(commands)
async def bind(client: AsyncClient, output: Output, binding: BindingOptions) -> None:
    """Have an exchange send the messages that match to a queue, or to another exchange."""
    target = binding.target()
    await client.bind(**binding.named())
    output.say(f"Exchange {shown_name(binding.exchange)} now leads to {target}.", **binding.fields())


@client_command(commands)
async def unbind(client: AsyncClient, output: Output, binding: BindingOptions) -> None:
    """Remove a binding."""
    target = binding.target()
    await client.unbind(**binding.named())
    output.say(
        f"Exchange {shown_name(binding.exchange)} no longer leads to {target} by this binding.", **binding.fields()
    )


@client_command(commands)
async def bindings(
    client: AsyncClient,
    output: Output,
    exchange: Annotated[
        str | None,
        typer.Argument(metavar="EXCHANGE", help="Only those that lead from it.", autocompletion=exchange_names),
    ] = None,
) -> None:
    """List the bindings."""

    def row(binding: Binding) -> list[object]:
        target = f"queue {binding.queue}" if binding.queue is not None else f"exchange {binding.to_exchange}"
        return [shown_name(binding.exchange), target, binding.key, _shown(binding.arguments)]

    if not output.items(await client.bindings(exchange), BINDING_COLUMNS, row, _without_none):
        output.remark("There are no bindings.")


@client_command(commands)
async def route(
    client: AsyncClient,
    output: Output,
    exchange: Exchange,
    routing_key: Annotated[str, typer.Argument(metavar="KEY", help="The routing key.")] = "",
    header: Headers = None,
) -> None:
    """Show where a message would go, and why, without publishing it."""
    found = await client.route(exchange, routing_key, headers=named_values(header, "--header"))
    if output.is_json:
        output.line(msgspec.to_builtins(found))
    else:
        output.items(found.steps, STEP_COLUMNS, _step_row, msgspec.to_builtins)
        if found.queues:
            print(f"It would reach {', '.join(found.queues)}.")
    if found.is_unroutable:
        raise output.nothing("It would reach no queue.")


def _step_row(step: RouteStep) -> list[object]:
    return [
        shown_name(step.exchange),
        step.via,
        " ".join(filter(None, (step.key, _shown(step.arguments)))),
        f"{step.destination_kind} {step.destination}",
        "which does not exist" if step.is_missing else "",
    ]


def _shown(arguments: dict[str, Any]) -> str:
    return msgspec.json.encode(arguments).decode() if arguments else ""


def _without_none(binding: Binding) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(binding)
    return {name: value for name, value in fields.items() if value is not None}
