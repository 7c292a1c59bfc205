"""Dead letters: list, redrive, redrives, cancel, purge. `smista dlq ...`"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from smista.cli import messages
from smista.cli.arguments import AnyQueue, Bodies, Filters, IsSure, Limit, Queue
from smista.cli.browsing import page_size, show
from smista.cli.completion import queue_names
from smista.cli.connected import client_command
from smista.cli.help import Group
from smista.cli.output import Output, confirm
from smista.cli.progress import progress
from smista.cli.table import Column, Row
from smista.command_line import switch
from smista.text import count, preview, shortened

if TYPE_CHECKING:
    from smista.client import AsyncClient, Message
    from smista.client.answers import Redrive

commands = typer.Typer(cls=Group, help="Dead letters: list, redrive, purge; redrives: list, cancel.")

AT_ONCE = 1_000
"""How many one request redrives, so that progress can be shown in between."""
FOLLOWED_EVERY_S = 0.2
"""How often a redrive with a rate is looked at."""

QUEUES_SHOWN_MAX = 8
MessageIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="MESSAGE_ID", help="Only these; default: all that pass the filters."),
]
KeptIn = Annotated[
    str | None,
    typer.Option(
        "--kept-in",
        metavar="QUEUE",
        help="Search this queue, an earlier dead-letter queue of QUEUE.",
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


REDRIVE_COLUMNS = [
    Column("job"),
    Column("queue"),
    Column("state"),
    Column("redriven", is_number=True),
    Column("of", is_number=True),
    Column("rate", is_number=True),
    Column("to"),
    Column("age", is_number=True),
    Column("error", is_flexible=True),
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
    """List the dead letters of a queue, or all messages of a dead-letter queue."""
    pages = client.dead_letters(queue, kept_in=kept_in, page_size=page_size(limit), bodies=bodies, **filters.wanted())
    found = await show(output, pages, limit, COLUMNS, row, bodies=bodies)
    if found:
        await _note_searched(client, output, queue, kept_in, is_any=True)
        return
    nothing = output.nothing(f"Queue {queue} has no such dead letters.")
    await _note_searched(client, output, queue, kept_in, is_any=False)
    raise nothing


async def _note_searched(client: AsyncClient, output: Output, queue: str, kept_in: str | None, *, is_any: bool) -> None:
    """Name the queues that were searched, since dead letters may be in an earlier dead-letter queue."""
    if output.is_json:
        return
    names = [kept_in] if kept_in is not None else await client.dead_letter_places(queue)
    shown = names if len(names) <= QUEUES_SHOWN_MAX else [*names[:QUEUES_SHOWN_MAX], "others"]
    listed = " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    output.remark(f"Searched {listed}." if is_any else f"Searched {listed}; use --kept-in to search another queue.")


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
        typer.Option(
            metavar="QUEUE", help="Send them to this queue, not to the one they came from.", autocompletion=queue_names
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="COUNT", min=1, help="At most this many.")
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="NUMBER", min=0.001, help="At most this many a second.")] = None,
    dry_run: Annotated[bool, switch("--dry-run", help="Count them without sending any.")] = False,
) -> None:
    """Send dead letters back to the queues they came from."""
    wanted = filters.wanted()
    total = await client.redrive(
        queue, message_ids=message_ids, kept_in=kept_in, to=to, limit=limit, dry_run=True, **wanted
    )
    if not total:
        await _note_searched(client, output, queue, kept_in, is_any=False)
    if dry_run:
        output.say(f"Would redrive {count(total, 'message')}.", queue=queue, redriven=total, dry_run=True)
        return
    redriven = 0
    with progress("Redriving", total) as done:
        if rate is not None and total:
            started = await client.start_redrive(
                queue, message_ids=message_ids, kept_in=kept_in, to=to, limit=limit, per_second=rate, **wanted
            )
            output.remark(
                f"Redrive {started.job} goes on in the broker, also without this command. "
                f"To end it: smista dlq cancel {started.queue} {started.job}"
            )
            redriven = await _followed(client, started, done)
        # At most as many as at the start, so that messages dead-lettered again meanwhile do not go round in circles.
        while rate is None and redriven < total:
            moved = await client.redrive(
                queue,
                message_ids=message_ids,
                kept_in=kept_in,
                to=to,
                limit=min(AT_ONCE, total - redriven),
                **wanted,
            )
            redriven += moved
            done(redriven)
            if not moved:
                break
    target = "" if to is None else f" to queue {to}"
    output.say(f"Redrove {count(redriven, 'message')}{target}.", queue=queue, redriven=redriven, dry_run=False)


async def _followed(client: AsyncClient, started: Redrive, done: Callable[[int], None]) -> int:
    """Until a redrive has ended; how many messages it has sent back."""
    from smista.client.errors import error_from

    redriven = 0
    while found := [one for one in await client.redrives(started.queue) if one.job == started.job]:
        [redrive] = found
        redriven = redrive.redriven
        done(redriven)
        if redrive.code is not None:
            raise error_from(redrive.code, redrive.error or "")
        if redrive.state != "running":
            break
        await asyncio.sleep(FOLLOWED_EVERY_S)
    return redriven


@client_command(commands)
async def redrives(client: AsyncClient, output: Output, queue: AnyQueue = None) -> None:
    """List the redrives with a rate, of a queue or of all, that are running, and the latest that have ended."""
    found = await client.redrives(queue)
    is_any = output.items(
        found,
        REDRIVE_COLUMNS,
        lambda redrive: [
            redrive.job,
            redrive.queue,
            redrive.state,
            redrive.redriven,
            redrive.expected,
            redrive.per_second,
            redrive.to,
            messages.age(redrive.started_at_ms),
            redrive.error,
        ],
        msgspec.to_builtins,
    )
    if not is_any:
        output.remark(
            "There are no redrives with a rate."
            if queue is None
            else f"Queue {queue} has no redrives; they belong to the queue that was named when they were started."
        )


@client_command(commands)
async def cancel(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The id of the redrive, as `dlq redrives` shows it.")],
) -> None:
    """End a redrive with a rate; what it has sent back stays there."""
    redrive = await client.cancel_redrive(queue, job)
    output.say(
        f"Cancelled; {count(redrive.redriven, 'message')} had been redriven.", queue=queue, redriven=redrive.redriven
    )


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
    """Delete dead letters of a queue: those named, those that pass the filters, or all."""
    wanted = filters.wanted()
    is_all = not message_ids and all(value is None for value in wanted.values())
    confirm(f"Delete {'all' if is_all else 'these'} dead letters of queue {queue}?", is_sure=is_sure)
    purged = await client.purge_dead_letters(queue, message_ids=message_ids, kept_in=kept_in, **wanted)
    output.say(f"Purged {count(purged, 'dead letter')} of queue {queue}.", queue=queue, purged=purged)
    if not purged:
        await _note_searched(client, output, queue, kept_in, is_any=False)
