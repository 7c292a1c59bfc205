"""Scheduled messages: list, change, cancel. `smista scheduled ...`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from smista.cli import messages
from smista.cli.arguments import Bodies, Filters, Limit, MessageIds, Queue
from smista.cli.browsing import page_size, show
from smista.cli.connected import client_command
from smista.cli.help import Group
from smista.cli.output import Output
from smista.cli.table import Column, Row
from smista.command_line import WrongUsage, duration, future_ms
from smista.durations import shown_instant
from smista.text import count, preview

if TYPE_CHECKING:
    from smista.client import AsyncClient, Message

commands = typer.Typer(cls=Group, help="Scheduled messages: list, change, cancel.")

COLUMNS = [
    Column("id"),
    Column("due in", is_number=True),
    Column("due at"),
    Column("deliveries", is_number=True),
    Column("body", is_flexible=True),
]


def row(message: Message) -> Row:
    at_ms = message.ready_at_ms or 0
    return [message.id, messages.until(at_ms), shown_instant(at_ms), message.delivery_count, preview(message.body)]


@client_command(commands, "list")
async def list_(
    client: AsyncClient, output: Output, queue: Queue, filters: Filters, limit: Limit = 100, bodies: Bodies = True
) -> None:
    """List the messages of a queue that are scheduled or wait for a retry."""
    pages = client.scheduled(queue, page_size=page_size(limit), bodies=bodies, **filters.wanted())
    if not await show(output, pages, limit, COLUMNS, row, bodies=bodies):
        raise output.nothing(f"Queue {queue} has no such scheduled messages.")


@client_command(commands)
async def change(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    message_ids: MessageIds,
    delay: Annotated[int | None, duration(help="Due after this time; 0 for now.")] = None,
    at: Annotated[int | None, typer.Option(parser=future_ms, metavar="INSTANT", help="Due at that time.")] = None,
) -> None:
    """Change when scheduled messages become ready."""
    if (delay is None) == (at is None):
        raise WrongUsage("Give either --delay or --at.")
    for message_id in message_ids:
        await client.reschedule(queue, message_id, delay_ms=delay, deliver_at_ms=at)
    output.say(f"Changed {count(len(message_ids), 'message')}.", queue=queue, changed=len(message_ids))


@client_command(commands)
async def cancel(client: AsyncClient, output: Output, queue: Queue, message_ids: MessageIds) -> None:
    """Delete scheduled messages."""
    for message_id in message_ids:
        await client.cancel_scheduled(queue, message_id)
    output.say(f"Cancelled {count(len(message_ids), 'message')}.", queue=queue, cancelled=len(message_ids))
