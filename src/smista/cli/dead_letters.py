"""Dead letters: seeing them, sending them back, throwing them away. `smista dlq ...`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from smista.cli import messages
from smista.cli.arguments import Bodies, Filters, IsSure, Limit, Queue
from smista.cli.completion import queue_names
from smista.cli.connected import client_command
from smista.cli.help import Group
from smista.cli.looking import page_size, show
from smista.cli.output import Output, confirm
from smista.cli.progress import progress
from smista.cli.table import Column, Row
from smista.cli.text import count, preview, shortened

if TYPE_CHECKING:
    from smista.client import AsyncClient, Message

commands = typer.Typer(cls=Group, help="Dead letters: list, redrive, purge.")

AT_ONCE = 1_000
"""How many one request sends back, so that progress can be shown in between."""

LOOKED_IN_SHOWN = 8
MessageIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="MESSAGE_ID", help="Only these; without any, all that the filters leave."),
]
KeptIn = Annotated[
    str | None,
    typer.Option(
        "--kept-in",
        metavar="QUEUE",
        help="Look in this queue, where dead letters of QUEUE went before.",
        autocompletion=queue_names,
    ),
]

COLUMNS = [
    Column("id"),
    Column("reason"),
    Column("source"),
    Column("deliveries", is_number=True),
    Column("dead for", is_number=True),
    Column("last error", is_flexible=True),
    Column("body", is_flexible=True),
]


def row(message: Message) -> Row:
    if not message.deaths:
        return [message.id, None, None, message.delivery_count, None, None, preview(message.body, 40)]
    death = message.deaths[-1]
    failures = death.failures or message.failures
    error = shortened(failures[-1].error) if failures and failures[-1].error else None
    return [
        message.id,
        death.reason,
        death.queue,
        death.delivery_count,
        messages.age(death.at_ms),
        error,
        preview(message.body, 40),
    ]


@client_command(commands, "list")
async def list_(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    filters: Filters,
    kept_in: KeptIn = None,
    limit: Limit = 100,
    bodies: Bodies = True,
) -> None:
    """Show the dead letters of a queue, or all that is in a dead-letter queue."""
    pages = client.dead_letters(queue, kept_in=kept_in, page_size=page_size(limit), bodies=bodies, **filters.wanted())
    found = await show(output, pages, limit, COLUMNS, row, bodies=bodies)
    if found:
        await _say_where(client, output, queue, kept_in, is_any=True)
        return
    nothing = output.nothing(f"Queue {queue} has no such dead letters.")
    await _say_where(client, output, queue, kept_in, is_any=False)
    raise nothing


async def _say_where(client: AsyncClient, output: Output, queue: str, kept_in: str | None, *, is_any: bool) -> None:
    """Tell people in which queues the dead letters were looked for, since some may have gone elsewhere before."""
    if output.is_json:
        return
    names = [kept_in] if kept_in is not None else await client.dead_letter_places(queue)
    shown = names if len(names) <= LOOKED_IN_SHOWN else [*names[:LOOKED_IN_SHOWN], "others"]
    said = " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    output.remark(f"Looked in {said}." if is_any else f"Looked in {said}; --kept-in names another queue.")


@client_command(commands)
async def redrive(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    filters: Filters,
    message_ids: MessageIds = None,
    kept_in: KeptIn = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Send them there, not where they died.", autocompletion=queue_names),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="COUNT", min=1, help="At most so many.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="NUMBER", min=0.001, help="So many a second, not faster.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.", show_default=False)] = False,
) -> None:
    """Send dead letters back to the queues they died in."""
    wanted = filters.wanted()
    total = await client.redrive(
        queue, message_ids=message_ids, kept_in=kept_in, to=to, limit=limit, dry_run=True, **wanted
    )
    if not total:
        await _say_where(client, output, queue, kept_in, is_any=False)
    if dry_run:
        output.say(f"Would redrive {count(total, 'message')}.", queue=queue, redriven=total, dry_run=True)
        return
    at_once = AT_ONCE if rate is None else max(1, min(AT_ONCE, round(rate)))
    redriven = 0
    with progress("Redriving", total) as done:
        # Not more than there were at the beginning: what dies again meanwhile is not sent round in a circle.
        while redriven < total:
            moved = await client.redrive(
                queue,
                message_ids=message_ids,
                kept_in=kept_in,
                to=to,
                limit=min(at_once, total - redriven),
                per_second=rate,
                **wanted,
            )
            redriven += moved
            done(redriven)
            if not moved:
                break
    target = "" if to is None else f" to queue {to}"
    output.say(f"Redrove {count(redriven, 'message')}{target}.", queue=queue, redriven=redriven, dry_run=False)


@client_command(commands)
async def purge(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    filters: Filters,
    message_ids: MessageIds = None,
    kept_in: KeptIn = None,
    is_sure: IsSure = False,
) -> None:
    """Throw away the dead letters of a queue: those named, those that the filters leave, or all."""
    wanted = filters.wanted()
    is_all = not message_ids and all(value is None for value in wanted.values())
    confirm(f"Throw away {'all' if is_all else 'these'} dead letters of queue {queue}?", is_sure=is_sure)
    purged = await client.purge_dead_letters(queue, message_ids=message_ids, kept_in=kept_in, **wanted)
    output.say(f"Purged {count(purged, 'dead letter')} of queue {queue}.", queue=queue, purged=purged)
    if not purged:
        await _say_where(client, output, queue, kept_in, is_any=False)
