"""Queues: list, statistics, purge, pause, resume, delete. `settings.py` declares and alters them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from smista.cli.arguments import IsSure, Prefix, Queue
from smista.cli.connected import client_command
from smista.cli.log_space import why_kept
from smista.cli.output import Output, confirm
from smista.cli.table import Column, Row
from smista.command_line import switch
from smista.durations import shown_duration
from smista.text import count, shown_bytes

if TYPE_CHECKING:
    from smista.client import AsyncClient, ConnectionRoom, QueueStats

commands = typer.Typer()

COLUMNS = [
    Column("queue", is_flexible=True),
    *(Column(heading, is_number=True) for heading in ("ready", "scheduled", "in flight", "dead", "bytes", "consumers")),
    Column("oldest", is_number=True),
    Column(""),
]


def row(stats: QueueStats) -> Row:
    oldest = shown_duration(stats.oldest_age_ms) if stats.ready else None
    return [
        stats.queue,
        stats.ready,
        stats.scheduled,
        stats.in_flight,
        stats.dead,
        shown_bytes(stats.body_bytes),
        stats.consumers,
        oldest,
        "paused" if stats.is_paused else "",
    ]


@client_command(commands)
async def queues(
    client: AsyncClient,
    output: Output,
    prefix: Prefix = "",
) -> None:
    """List the queues and their contents."""
    if not output.items(await client.all_stats(prefix=prefix), COLUMNS, row, msgspec.to_builtins):
        output.remark("There is no such queue." if prefix else "There are no queues.")


@client_command(commands)
async def stats(client: AsyncClient, output: Output, queue: Queue) -> None:
    """Show the statistics of a queue."""
    fields = msgspec.to_builtins(await client.stats(queue))
    output.pairs([(name.replace("_", " "), value) for name, value in fields.items()], fields)


@client_command(commands)
async def delete(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    if_empty: Annotated[bool, switch(help="Only if it holds no messages.")] = False,
    if_unused: Annotated[bool, switch(help="Only if it has no consumers.")] = False,
    waiting_only: Annotated[bool, switch(help="With --if-empty, whatever is in flight or dead.")] = False,
    is_sure: IsSure = False,
) -> None:
    """Delete a queue with its messages and bindings."""
    confirm(f"Delete queue {queue} with all its messages?", is_sure=is_sure)
    deleted = await client.delete_queue(queue, if_empty=if_empty, if_unused=if_unused, waiting_only=waiting_only)
    output.say(f"Deleted queue {queue} and {count(deleted, 'message')}.", queue=queue, deleted=deleted)


@client_command(commands)
async def purge(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    ready_only: Annotated[bool, switch(help="Keep messages that are scheduled, in flight or dead.")] = False,
    is_sure: IsSure = False,
) -> None:
    """Delete the messages of a queue."""
    confirm(f"Delete {'the ready' if ready_only else 'all'} messages of queue {queue}?", is_sure=is_sure)
    purged = await client.purge(queue, ready_only=ready_only)
    output.say(f"Purged {count(purged, 'message')} from queue {queue}.", queue=queue, purged=purged)


@client_command(commands)
async def pause(client: AsyncClient, output: Output, queue: Queue) -> None:
    """Deliver nothing from a queue until it is resumed; publishing goes on."""
    await client.pause(queue)
    output.say(f"Queue {queue} is paused.", queue=queue, is_paused=True)


@client_command(commands)
async def resume(client: AsyncClient, output: Output, queue: Queue) -> None:
    """Deliver again from a paused queue."""
    await client.resume(queue)
    output.say(f"Queue {queue} is resumed.", queue=queue, is_paused=False)


@client_command(commands)
async def info(client: AsyncClient, output: Output) -> None:
    """Show the broker's version, contents and limits."""
    found = await client.info()
    fields = msgspec.to_builtins(found)
    pairs = [
        ("version", found.version),
        ("namespaces", ", ".join(found.namespaces)),
        ("queues", found.queues),
        ("messages", found.messages),
        ("log", shown_bytes(found.log_bytes)),
        ("connections", _shown_room(found.connections)),
        ("publishes are", "taken" if found.refusal is None else f"refused: {found.refusal}"),
    ]
    output.pairs(pairs, fields)
    if not output.is_json:
        print(f"\nThe log: {why_kept(found.log, found.now_ms)}")


def _shown_room(room: ConnectionRoom) -> str:
    limits = []
    if room.connections_max is not None:
        limits.append(f"{room.connections_max:,} for each protocol (connections_max)")
    if room.possible is not None:
        limits.append(f"{room.possible:,} in all (limit of open files)")
    return f"{room.open:,} open" + (f"; at most {', '.join(limits)}" if limits else "")
