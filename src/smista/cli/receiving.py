"""Receiving: `get`; settling: `ack`, `nack`, `release`, `extend`."""

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
from smista.cli.output import Output, note
from smista.command_line import ExitCode, WrongUsage, duration, switch
from smista.errors import BrokerError
from smista.text import count

if TYPE_CHECKING:
    from smista.client import AsyncClient, Delivery

commands = typer.Typer()

WAIT_MS_MAX = 20_000
"""The longest that a broker lets one request wait."""
AT_ONCE = 500
"""Requests under way at a time."""


@client_command(commands)
async def get(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    number: Annotated[int, typer.Option("--number", "-n", metavar="COUNT", min=1, help="At most this many.")] = 1,
    wait_ms: Annotated[int, duration("--wait", "-w", help="How long to wait for the first message.")] = 0,
    lease_ms: Lease = None,
    is_acknowledged: Annotated[bool, switch("--ack", help="Acknowledge the messages once they are printed.")] = False,
    bodies_only: Annotated[bool, switch("--body", help="Print only the bodies.")] = False,
) -> None:
    """Receive messages under a lease, and print them with their receipts.

    Settle them with `smista ack RECEIPT` (or nack, release) before the lease ends, else they are redelivered; or use
    --ack.
    """
    found = 0
    async for batch in _batches(client, queue, number, wait_ms=wait_ms, lease_ms=lease_ms):
        found += len(batch)
        try:
            for delivery in batch:
                _print(output, delivery, bodies_only=bodies_only)
            if is_acknowledged:
                # Acknowledge only what was printed and flushed: if the reader is gone, no message may be lost.
                sys.stdout.flush()
        except OSError:
            if is_acknowledged:
                # Nobody has the receipts. What cannot be released is redelivered when its lease ends.
                await asyncio.gather(*(delivery.release() for delivery in batch), return_exceptions=True)
            raise
        if is_acknowledged:
            await asyncio.gather(*(delivery.ack() for delivery in batch))
    if not found and (await client.stats(queue)).is_paused:
        # Also with --json: a program must be able to tell a paused queue from an empty one.
        note(f"Queue {queue} is paused and delivers nothing; resume it with `smista resume {queue}`.")
        raise typer.Exit(ExitCode.NOTHING)
    if not found:
        raise output.nothing(f"Queue {queue} has no message that is ready.")


async def _batches(
    client: AsyncClient, queue: str, number: int, *, wait_ms: int, lease_ms: int | None
) -> AsyncIterator[list[Delivery]]:
    """Up to `number` messages, as many at a time as the queue delivers; ends when there are no more."""
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
        help="Receipts printed by `get`. Default: lines of standard input, receipts or the output of `get --json`.",
    ),
]
OfQueue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="QUEUE",
        help="Name messages of this queue by id instead of by receipt, whoever holds them.",
        autocompletion=queue_names,
    ),
]
Settle = Callable[[str], Awaitable[object]]


@client_command(commands)
async def ack(client: AsyncClient, output: Output, receipts: Receipts = None, queue: OfQueue = None) -> None:
    """Acknowledge deliveries: their messages are done and are removed."""
    settle: Settle = client.ack if queue is None else lambda name: client.acknowledge_message(queue, name)
    await _settle_all(output, "Acknowledged", settle, receipts, queue)


@client_command(commands)
async def nack(
    client: AsyncClient,
    output: Output,
    receipts: Receipts = None,
    queue: OfQueue = None,
    requeue: Annotated[
        bool, typer.Option("--requeue/--dead-letter", help="Retry them, or dead-letter them at once.")
    ] = True,
    delay: Delay = None,
    error: Annotated[str, typer.Option(metavar="WORDS", help="The reason; shown with dead letters.")] = "",
) -> None:
    """Mark deliveries as failed: their messages are retried, or become dead letters."""

    async def settle(name: str) -> str:
        if queue is None:
            return await client.nack(name, requeue=requeue, delay_ms=delay, error=error)
        return await client.nack_message(queue, name, requeue, delay_ms=delay, error=error)

    await _settle_all(output, "Nacked", settle, receipts, queue)


@client_command(commands)
async def release(client: AsyncClient, output: Output, receipts: Receipts = None, queue: OfQueue = None) -> None:
    """Return messages to their places in the queue, not counted as failures."""
    settle: Settle = client.release if queue is None else lambda name: client.release_message(queue, name)
    await _settle_all(output, "Released", settle, receipts, queue)


@client_command(commands)
async def extend(
    client: AsyncClient,
    output: Output,
    receipts: Receipts = None,
    lease_ms: Annotated[int, duration("--lease", help="When the leases end, from now.", shown="30s")] = 30_000,
    queue: OfQueue = None,
) -> None:
    """Extend the leases of deliveries."""

    async def settle(name: str) -> None:
        if queue is None:
            await client.extend(name, lease_ms)
        else:
            await client.extend_message(queue, name, lease_ms)

    await _settle_all(output, "Extended", settle, receipts, queue)


async def _settle_all(output: Output, verb: str, settle: Settle, receipts: list[str] | None, queue: str | None) -> None:
    """Settle each; an error is printed and does not stop the others, but ends the command with exit code 1."""
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
    outcome = "".join(f", {number:,} {action.replace('_', '-')}" for action, number in sorted(actions.items()))
    output.say(f"{verb} {count(done, 'message')}{outcome}.", done=done, failed=failed, **actions)
    if failed:
        raise typer.Exit(ExitCode.REFUSED)


async def _named(receipts: list[str] | None, queue: str | None) -> AsyncIterator[str]:
    if receipts:
        for receipt in receipts:
            yield receipt
        return
    if sys.stdin.isatty():
        raise WrongUsage("There is no receipt; give some, or pipe in the output of `smista get --json`.")
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
        raise WrongUsage(f"{line[:80]!r} has no {field}; pipe in the output of `smista get --json`.") from None


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
    """Delete messages by their ids, in any state.

    A consumer that holds one finds its receipt stale.
    """
    for message_id in message_ids:
        await client.delete_message(queue, message_id)
    output.say(f"Deleted {count(len(message_ids), 'message')}.", queue=queue, deleted=len(message_ids))
