"""Taking messages out: `get`, and what becomes of them: `ack`, `nack`, `release`, `extend`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from smista.cli import messages, sources
from smista.cli.arguments import Delay, Lease, MessageIds, Queue
from smista.cli.completion import queue_names
from smista.cli.connected import client_command
from smista.cli.durations import duration_ms
from smista.cli.exits import ExitCode, WrongUsage
from smista.cli.output import Output, note
from smista.cli.text import count
from smista.errors import BrokerError

if TYPE_CHECKING:
    from smista.client import AsyncClient, Delivery

commands = typer.Typer()

WAIT_MS_MAX = 20_000
"""The longest a broker lets one request wait."""
AT_ONCE = 500
"""Receipts that are under way at a time."""


@client_command(commands)
async def get(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    number: Annotated[int, typer.Option("--number", "-n", metavar="COUNT", min=1, help="At most this many.")] = 1,
    wait_ms: Annotated[
        int,
        typer.Option(
            "--wait",
            "-w",
            parser=duration_ms,
            metavar="DURATION",
            help="Wait so long for the first.",
            show_default=False,
        ),
    ] = 0,
    lease_ms: Lease = None,
    is_acked: Annotated[
        bool, typer.Option("--ack", help="Acknowledge what was printed: it is gone then.", show_default=False)
    ] = False,
    bodies_only: Annotated[
        bool, typer.Option("--body", help="Print the bodies and nothing else.", show_default=False)
    ] = False,
) -> None:
    """Take messages out of a queue under a lease, and print them with their receipts.

    Settle them by `smista ack RECEIPT` (or nack, release), else they come back when the lease ends; or use --ack.
    """
    found = 0
    async for batch in _batches(client, queue, number, wait_ms=wait_ms, lease_ms=lease_ms):
        found += len(batch)
        try:
            for delivery in batch:
                _print(output, delivery, bodies_only=bodies_only)
            if is_acked:
                # Only after all of it was printed, and has left us: a reader that goes away must not cost a message.
                sys.stdout.flush()
        except OSError:
            if is_acked:
                # Nobody has a receipt to settle it by. What could not be released comes back when its lease ends.
                await asyncio.gather(*(delivery.release() for delivery in batch), return_exceptions=True)
            raise
        if is_acked:
            await asyncio.gather(*(delivery.ack() for delivery in batch))
    if not found and (await client.stats(queue)).is_paused:
        # Also to a program: nothing comes, however long it asks, and that is no empty queue.
        note(f"Queue {queue} is paused and hands out nothing; go on by `smista resume {queue}`.")
        raise typer.Exit(ExitCode.NOTHING)
    if not found:
        raise output.nothing(f"Queue {queue} has no message that is ready.")


async def _batches(
    client: AsyncClient, queue: str, number: int, *, wait_ms: int, lease_ms: int | None
) -> AsyncIterator[list[Delivery]]:
    """Up to `number` messages, as many at a time as the queue hands out; ends when no more are there."""
    at_once = 1 if number == 1 else min(AT_ONCE, (await client.queue_settings(queue)).max_prefetch)
    ends_at_s = time.monotonic() + wait_ms / 1000
    left = number
    while left:
        wait_left_ms = max(0, round((ends_at_s - time.monotonic()) * 1000)) if left == number else 0
        batch = await client.receive(
            queue, min(left, at_once), wait_ms=min(wait_left_ms, WAIT_MS_MAX), lease_ms=lease_ms, consumer="smista get"
        )
        left -= len(batch)
        if batch:
            yield batch
        elif wait_left_ms <= WAIT_MS_MAX:
            return


def _print(output: Output, delivery: Delivery, *, bodies_only: bool) -> None:
    if bodies_only:
        output.raw(delivery.body)
    elif output.is_json:
        output.line(messages.delivery_fields(delivery))
    else:
        print("\n".join(messages.described(delivery)))


# -- settling ---------------------------------------------------------------------------------------------------------

Receipts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECEIPT",
        help="What `get` printed. Without any, lines of standard input: receipts, or what `get --json` prints.",
    ),
]
OfQueue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="QUEUE",
        help="Name messages of this queue by their ids, not by receipts; for whoever holds them.",
        autocompletion=queue_names,
    ),
]
Settle = Callable[[str], Awaitable[object]]


@client_command(commands)
async def ack(client: AsyncClient, output: Output, receipts: Receipts = None, queue: OfQueue = None) -> None:
    """Acknowledge deliveries: they succeeded, their messages are done."""
    settle: Settle = client.ack if queue is None else lambda name: client.acknowledge_message(queue, name)
    await _settle_all(output, "Acknowledged", settle, receipts, queue)


@client_command(commands)
async def nack(
    client: AsyncClient,
    output: Output,
    receipts: Receipts = None,
    queue: OfQueue = None,
    requeue: Annotated[
        bool, typer.Option("--requeue/--dead-letter", help="Retry them, or set them aside at once.")
    ] = True,
    delay: Delay = None,
    error: Annotated[str, typer.Option(metavar="WORDS", help="Why; shown with dead letters.")] = "",
) -> None:
    """Say that deliveries failed: their messages are retried, or become dead letters."""

    async def settle(name: str) -> str:
        if queue is None:
            return await client.nack(name, requeue=requeue, delay_ms=delay, error=error)
        return await client.nack_message(queue, name, requeue, delay_ms=delay, error=error)

    await _settle_all(output, "Nacked", settle, receipts, queue)


@client_command(commands)
async def release(client: AsyncClient, output: Output, receipts: Receipts = None, queue: OfQueue = None) -> None:
    """Give deliveries back to their places, not counted as failures."""
    settle: Settle = client.release if queue is None else lambda name: client.release_message(queue, name)
    await _settle_all(output, "Released", settle, receipts, queue)


@client_command(commands)
async def extend(
    client: AsyncClient,
    output: Output,
    receipts: Receipts = None,
    lease_ms: Annotated[
        int,
        typer.Option(
            "--lease",
            parser=duration_ms,
            metavar="DURATION",
            help="The leases end so long from now.",
            show_default="30s",
        ),
    ] = 30_000,
    queue: OfQueue = None,
) -> None:
    """Hold deliveries for longer."""

    async def settle(name: str) -> None:
        if queue is None:
            await client.extend(name, lease_ms)
        else:
            await client.extend_message(queue, name, lease_ms)

    await _settle_all(output, "Extended", settle, receipts, queue)


async def _settle_all(output: Output, verb: str, settle: Settle, receipts: list[str] | None, queue: str | None) -> None:
    """Settle each; one that fails is told and does not keep the others, but ends the command with 1."""
    done = failed = 0
    actions: dict[str, int] = {}
    async for batch in _in_batches(_named(receipts, queue)):
        outcomes = await asyncio.gather(*(settle(name) for name in batch), return_exceptions=True)
        for name, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BrokerError):
                failed += 1
                note(f"Error: {name}: {outcome} [{outcome.code}]")
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                done += 1
                if isinstance(outcome, str):
                    actions[outcome] = actions.get(outcome, 0) + 1
    said = "".join(f", {number:,} {action.replace('_', '-')}" for action, number in sorted(actions.items()))
    output.say(f"{verb} {count(done, 'message')}{said}.", done=done, failed=failed, **actions)
    if failed:
        raise typer.Exit(ExitCode.REFUSED)


async def _named(receipts: list[str] | None, queue: str | None) -> AsyncIterator[str]:
    if receipts:
        for receipt in receipts:
            yield receipt
        return
    if sys.stdin.isatty():
        raise WrongUsage("There is no receipt; name some, or pipe in what `smista get --json` prints.")
    async for line in sources.lines_of(sys.stdin.buffer):
        if line.strip():
            yield _name_in(line.strip(), "receipt" if queue is None else "message_id")


def _name_in(line: bytes, field: str) -> str:
    """A bare receipt or message id, or a message as `--json` prints it."""
    try:
        if line.startswith(b"{"):
            return str(msgspec.json.decode(line)[field])
        return line.decode()
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError):
        raise WrongUsage(f"{line[:80]!r} has no {field}; pipe in what `smista get --json` prints.") from None


async def _in_batches(names: AsyncIterator[str]) -> AsyncIterator[list[str]]:
    batch: list[str] = []
    async for name in names:
        batch.append(name)
        if len(batch) == AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


@client_command(commands)
async def delete_message(client: AsyncClient, output: Output, queue: Queue, message_ids: MessageIds) -> None:
    """Remove messages by their ids, in whatever state they are.

    Also one that a consumer holds: when it is done with it, it finds that the message is gone.
    """
    for message_id in message_ids:
        await client.delete_message(queue, message_id)
    output.say(f"Deleted {count(len(message_ids), 'message')}.", queue=queue, deleted=len(message_ids))
