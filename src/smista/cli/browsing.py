"""Shows messages without changing them: `peek` and `browse`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from smista.cli import messages
from smista.cli.arguments import Bodies, Filters, Limit, Queue, State
from smista.cli.connected import client_command
from smista.cli.output import Output
from smista.cli.table import Column, Row

if TYPE_CHECKING:
    from smista.client import AsyncClient, Message, Pages

commands = typer.Typer()

PAGE_SIZE_MAX = 1_000


@client_command(commands)
async def peek(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    number: Annotated[
        int, typer.Option("--number", "-n", metavar="COUNT", min=1, max=10_000, help="At most this many.")
    ] = 1,
) -> None:
    """Show the messages that would be received next."""
    if not output.items(await client.peek(queue, number), messages.COLUMNS, messages.row, messages.fields):
        raise output.nothing(f"Queue {queue} has no message that is ready.")


@client_command(commands)
async def browse(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    filters: Filters,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="MESSAGE_ID", help="Show one message with all its fields.")
    ] = None,
    state: State = None,
    limit: Limit = 100,
    bodies: Bodies = True,
) -> None:
    """Show messages of a queue in any state, in the order in which they were published."""
    if message_id is not None:
        message = await client.get(queue, message_id)
        output.pairs(messages.pairs(message), messages.fields(message))
        return
    pages = client.browse(queue, state=state, page_size=page_size(limit), bodies=bodies, **filters.wanted())
    if not await show(output, pages, limit, messages.COLUMNS, messages.row, bodies=bodies):
        raise output.nothing(f"Queue {queue} has no such message.")


def page_size(limit: int) -> int:
    return min(limit, PAGE_SIZE_MAX)


async def show(
    output: Output,
    pages: Pages[Message],
    limit: int,
    columns: Sequence[Column],
    row: Callable[[Message], Row],
    *,
    bodies: bool,
) -> int:
    """Print the first `limit` messages, JSON as they come; returns how many. The last column is the body."""
    shown = len(columns) if bodies else len(columns) - 1
    found: list[Message] = []
    count = 0
    while count < limit and (message := await anext(pages, None)) is not None:
        count += 1
        if output.is_json:
            output.line(messages.fields(message))
        else:
            found.append(message)
    output.items(found, columns[:shown], lambda message: row(message)[:shown], messages.fields)
    if found and count == limit and await anext(pages, None) is not None:
        output.remark(f"These are the first {limit:,}; --limit shows more.")
    return count
