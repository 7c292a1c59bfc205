"""Publishing: `put` to a queue, `publish` through an exchange."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smista.cli import sources
from smista.cli.arguments import Delay, Exchange, Headers, Queue, named_values
from smista.cli.connected import client_command
from smista.cli.options import OptionGroup
from smista.cli.output import Output, note
from smista.cli.progress import progress
from smista.command_line import ExitCode, WrongUsage, duration, future_ms, past_ms, switch
from smista.text import count, were

if TYPE_CHECKING:
    from smista.client import AsyncClient, PutSummary

commands = typer.Typer()

ERRORS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Input(OptionGroup):
    """Where the bodies come from."""

    bodies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BODY",
            help="The bodies. JSON objects and arrays are stored as JSON, anything else as text, unless --format is "
            "given. Default: the lines of --file or standard input.",
        ),
    ] = None
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Read bodies from a file; - is standard input.")
    ] = None
    format: Annotated[
        sources.Format | None,
        typer.Option(
            "--format",
            help="The format of the input: lines, JSON lines, a JSON array, or one body; default: by the file's name.",
        ),
    ] = None

    def is_single(self) -> bool:
        """Whether there is certainly exactly one body."""
        return len(self.bodies or ()) == 1 or (not self.bodies and self.format == "raw")

    def check(self) -> None:
        """Raise `WrongUsage` if there is no input, or both bodies and a file."""
        if self.bodies and self.file is not None:
            raise WrongUsage("Give bodies or --file, not both.")
        if not self.bodies and self.file is None and sys.stdin.isatty():
            raise WrongUsage("There is no body; give one, or --file, or --file - to type lines.")

    async def read(self) -> AsyncIterator[sources.Body]:
        if self.bodies:
            for body in sources.from_arguments(self.bodies, self.format):
                yield body
            return
        path = self.file or "-"
        async for body in sources.from_file(path, self.format or sources.format_of(path)):
            yield body


@dataclass(frozen=True, slots=True)
class MessageOptions(OptionGroup):
    """The properties of a message beside its body."""

    priority: Annotated[
        int | None,
        typer.Option("--priority", "-p", metavar="NUMBER", help="From 0 to 255; the highest is delivered first."),
    ] = None
    delay_ms: Delay = None
    deliver_at_ms: Annotated[
        int | None,
        typer.Option("--at", parser=future_ms, metavar="INSTANT", help="Deliver it at that time, not before."),
    ] = None
    ttl_ms: Annotated[int | None, duration("--ttl", help="Time to live, after which it expires.")] = None
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Its group, within which an ordered queue keeps the order.")
    ] = None
    dedup_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Its deduplication id: it is stored once, however often it is put. Several get ID-1, ID-2 and so on.",
        ),
    ] = None
    max_retries: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT", help="How often to redeliver it after a failure; default: the queue's max retries."
        ),
    ] = None
    headers: Headers = None
    content_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="The type of the body, such as application/json or text/plain.")
    ] = None
    content_encoding: Annotated[
        str | None, typer.Option(metavar="CODING", help="How the body is encoded, such as gzip.")
    ] = None
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The id of the request it answers or belongs to.")
    ] = None
    reply_to: Annotated[str | None, typer.Option(metavar="QUEUE", help="The queue for an answer.")] = None
    type: Annotated[str | None, typer.Option(metavar="NAME", help="The kind of message.")] = None
    app_id: Annotated[str | None, typer.Option(metavar="NAME", help="The program that made it.")] = None
    user_id: Annotated[str | None, typer.Option(metavar="NAME", help="The user who made it.")] = None
    external_id: Annotated[str | None, typer.Option(metavar="ID", help="Its id in another system.")] = None
    timestamp_ms: Annotated[
        int | None, typer.Option("--timestamp", parser=past_ms, metavar="INSTANT", help="When it was made.")
    ] = None

    def properties(self) -> dict[str, Any]:
        """Those that were given, by the client's names, without the deduplication id."""
        given = asdict(self) | {"headers": named_values(self.headers, "--header"), "dedup_id": None}
        return {name: value for name, value in given.items() if value is not None}


@client_command(commands)
async def put(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    source: Input,
    options: MessageOptions,
    is_declared: Annotated[bool, switch("--declare", help="Declare the queue if it does not exist.")] = False,
) -> None:
    """Publish messages to a queue.

    The bodies are arguments, the lines of a file, or standard input.
    """
    source.check()
    if is_declared:
        await client.declare_queue(queue, if_exists="keep")
    with _advised(options.dedup_id):
        if source.is_single():
            await _put_one(client, output, queue, source, options)
        else:
            await _put_many(client, output, queue, source, options)


@contextlib.contextmanager
def _advised(dedup_id: str | None) -> Iterator[None]:
    """Where the outcome is unknown, add how to avoid a duplicate. Every command is a client of its own, so the broker
    does not recognise a message that the next command sends again."""
    from smista.client import ConnectionLost

    try:
        yield
    except ConnectionLost as error:
        error.add_note(
            "It may have been stored: without --dedup-id, check with `smista browse` before you put it again."
            if dedup_id is None
            else "Put it again with the same --dedup-id: it is stored once."
        )
        raise


async def _put_one(client: AsyncClient, output: Output, queue: str, source: Input, options: MessageOptions) -> None:
    [body] = [body async for body in source.read()]
    done = await client.publish(queue, body, deduplication_id=options.dedup_id, **options.properties())
    output.say(
        f"Queue {queue} has it already, as {done.id}."
        if done.is_duplicate
        else f"Published {done.id} to queue {queue}, position {done.position}.",
        queue=queue,
        message_id=done.id,
        position=done.position,
        duplicate=done.is_duplicate,
    )


async def _put_many(client: AsyncClient, output: Output, queue: str, source: Input, options: MessageOptions) -> None:
    started_s = time.perf_counter()
    with progress("Publishing") as done:
        try:
            summary = await client.put_many(queue, _messages(source, options), on_progress=done)
        except WrongUsage as error:
            # The input cannot be read. What came before is published; a note of the error has how many.
            error.message = " ".join([error.message, *getattr(error, "__notes__", ())])
            raise
    report(output, f"to queue {queue}", summary, time.perf_counter() - started_s, queue=queue)


async def _messages(source: Input, options: MessageOptions) -> AsyncIterator[Any]:
    """The messages to put: bare bodies if they have no properties, which is faster."""
    from smista.client import Publication

    properties = options.properties()
    number = 0
    async for body in source.read():
        number += 1
        if options.dedup_id is not None:
            properties["deduplication_id"] = f"{options.dedup_id}-{number}"
        yield Publication(body, **properties) if properties else body


def report(
    output: Output, where: str, summary: PutSummary, took_s: float, *, each: str = "Message", **fields: object
) -> None:
    """Print the outcome of many; ends the command with exit code 1 if some were refused."""
    speed = f" in {took_s:.1f} s ({summary.count / took_s:,.0f}/s)" if took_s > 0.1 else ""
    sentence = f"Published {count(summary.accepted, 'message')} {where}{speed}."
    if summary.duplicates:
        sentence += f" {summary.duplicates:,} {were(summary.duplicates)} there already."
    if summary.refused:
        sentence += f" {summary.refused:,} {were(summary.refused)} refused."
    output.say(
        sentence,
        **fields,
        accepted=summary.accepted,
        duplicates=summary.duplicates,
        refused=summary.refused,
        seconds=round(took_s, 3),
    )
    for index, error in summary.errors[:ERRORS_SHOWN]:
        note(f"Error: {each} {index + 1}: {error} [{error.code}]")
    if summary.refused > ERRORS_SHOWN:
        note(f"... and {summary.refused - ERRORS_SHOWN:,} more.")
    if summary.refused:
        raise typer.Exit(ExitCode.REFUSED)


@client_command(commands)
async def publish(
    client: AsyncClient,
    output: Output,
    exchange: Exchange,
    routing_key: Annotated[str, typer.Argument(metavar="KEY", help="The routing key.")],
    source: Input,
    options: MessageOptions,
    extra_key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A further routing key. Repeatable.")
    ] = None,
) -> None:
    """Publish messages to an exchange, which routes them to queues."""
    source.check()
    # Also if there is nothing to publish, so that a misspelt exchange is reported.
    await client.route(exchange, routing_key)
    properties = options.properties()
    number = lost = 0
    async for body in _counted(source.read()):
        number += 1
        dedup_id = options.dedup_id
        if dedup_id is not None and not source.is_single():
            dedup_id = f"{dedup_id}-{number}"
        with _advised(dedup_id):
            routed = await client.publish_to_exchange(
                exchange, routing_key, body, extra_keys=extra_key or (), deduplication_id=dedup_id, **properties
            )
        lost += not routed
        queues = [{"queue": each.queue, "message_id": each.id, "position": each.position} for each in routed]
        reached = ", ".join(f"{each.queue} ({each.id})" for each in routed) or "no queue"
        output.say(f"Published to {reached}.", exchange=exchange, routed=queues)
    if lost:
        raise output.nothing(f"{count(lost, 'message')} of {number:,} matched no binding and went nowhere.")


async def _counted(bodies: AsyncIterator[sources.Body]) -> AsyncIterator[sources.Body]:
    """The bodies; the error for one that cannot be read has how many were published before."""
    number = 0
    try:
        async for body in bodies:
            yield body
            number += 1
    except WrongUsage as error:
        if number:
            error.message += f" {count(number, 'message')} before that {were(number)} published."
        raise
