"""`smista import`: publishes the messages of an export.

A message keeps its body, headers and other properties, priority and group, and the rest of its delay and time to live.
Its history is not restored: id, deliveries, failures, dead-letterings, and the exchange it came through.

An import may be repeated. Each message has a deduplication id made from its exported id, so within the queue's
`dedup_window_ms` none is stored twice, whether the first import was complete or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import UNSET, Raw, UnsetType

from smista.cli import sources
from smista.cli.completion import queue_names
from smista.cli.connected import client_command
from smista.cli.output import Output, note
from smista.cli.progress import progress
from smista.cli.publishing import report
from smista.command_line import WrongUsage, switch
from smista.errors import BrokerError
from smista.message_properties import MessageProperties, is_json
from smista.text import count, were

if TYPE_CHECKING:
    from smista.client import AsyncClient, Publication, Published

commands = typer.Typer()

BLOCK_COUNT = 2_000
BLOCK_BYTES = 4 << 20
"""How much is published before the next lines are read."""
USUAL_BODY_BYTES = 1 << 20
"""The largest body that a queue takes by default."""
ID_PREFIX = "export:"


class Line(MessageProperties, kw_only=True):
    """A message of an export; other fields are ignored."""

    message_id: str
    queue: str = ""
    message: Raw | UnsetType = UNSET
    body: bytes | UnsetType = UNSET
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    group: str | None = None
    ttl_ms: int | None = None
    max_retries: int | None = None
    properties: bytes | None = None
    """Instead of the others, for messages of AMQP and SQS."""
    state: str = ""
    ready_at_ms: int | None = None
    expires_at_ms: int | None = None


_KEPT = ("priority", "group", "max_retries")
_decode = msgspec.json.Decoder(Line).decode


@client_command(commands, "import")
async def import_(
    client: AsyncClient,
    output: Output,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file written by `export`; - is standard input.")],
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE",
            help="Publish everything to this queue, not to the original ones.",
            autocompletion=queue_names,
        ),
    ] = None,
    skip: Annotated[int, typer.Option(metavar="COUNT", min=0, help="Skip this many lines at the start.")] = 0,
    is_declared: Annotated[bool, switch("--declare", help="Declare queues that do not exist.")] = False,
) -> None:
    """Publish exported messages to queues.

    May be repeated: within the queue's dedup window no message is stored twice.
    """
    importing = Importing(client, queue, is_declared=is_declared)
    started_s = time.perf_counter()
    with sources.opened(file) as stream, progress("Importing") as done:
        try:
            await importing.put_all(stream, skip, done)
        except BrokerError as error:
            error.add_note(importing.so_far(error))
            raise
        except WrongUsage as error:
            error.message += f" {importing.so_far(error)}"
            raise
        except BaseException as error:
            note(importing.so_far(error))
            raise
    took_s = time.perf_counter() - started_s
    if importing.expired:
        note(f"Left out {count(importing.expired, 'message')} that had expired.")
    if importing.lost:
        note(f"Left out {count(importing.lost, 'message')} without a body.")
    where = "to their queues" if queue is None else f"to queue {queue}"
    report(output, where, importing.summary, took_s, each="Line", expired=importing.expired, lost=importing.lost)


class BadLine(WrongUsage):
    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"Line {number} {problem}")
        self.number = number


class Importing:
    """Publishes lines block by block, and counts the lines that are done."""

    def __init__(self, client: AsyncClient, target: str | None, *, is_declared: bool) -> None:
        from smista.client import PutSummary

        self._client = client
        self._target = target
        self._is_declared = is_declared
        self._seen: set[str] = set()
        self._made: set[str] = set()
        """Queues declared here, which take bodies of the default size only."""
        self._block: list[tuple[int, str, Publication]] = []
        """Read and to be published next: line, queue and message."""
        self._block_bytes = 0
        self.summary = PutSummary()
        self.line_count = 0
        """Lines that are done, including those skipped."""
        self.expired = 0
        self.lost = 0

    def so_far(self, error: BaseException) -> str:
        """How much is done, and how to continue."""
        accepted, duplicates = self.summary.accepted, self.summary.duplicates
        text = f"{count(accepted, 'message')} {were(accepted)} published"
        text += f", {duplicates:,} {were(duplicates)} there already." if duplicates else "."
        if isinstance(error, BadLine):
            if self.line_count:
                text += f" Lines 1 to {self.line_count} are done;" if self.line_count > 1 else " Line 1 is done;"
            return f"{text} --skip {error.number} leaves line {error.number} out."
        if self.line_count:
            text += f" Lines 1 to {self.line_count} are done; repeat it, or go on with --skip {self.line_count}."
        return text

    async def put_all(self, stream: IO[bytes], skip: int, on_progress: Callable[[int], None]) -> None:
        number = 0
        try:
            async for text in sources.lines_of(stream):
                number += 1
                if number > skip:
                    self._read(number, text)
                if len(self._block) >= BLOCK_COUNT or self._block_bytes >= BLOCK_BYTES:
                    await self._put_up_to(number)
                    on_progress(number)
        except WrongUsage as error:
            # The rest cannot be read; what was read before is published nevertheless.
            await self._put_up_to(error.number - 1 if isinstance(error, BadLine) else number)
            raise
        if skip > number:
            raise WrongUsage(f"--skip {skip} is beyond the end: there are {count(number, 'line')}.")
        await self._put_up_to(number)

    def _read(self, number: int, text: bytes) -> None:
        if not text.strip():
            return
        try:
            line = _decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadLine(number, f"is not a line of an export: {error}.") from None
        queue = self._target or line.queue
        if not queue:
            raise BadLine(number, "does not name its queue; give one after the file.")
        publication = self._publication(number, line)
        if publication is not None:
            self._block.append((number, queue, publication))
        self._block_bytes += len(text)

    async def _put_up_to(self, number: int) -> None:
        by_queue: dict[str, list[tuple[int, Publication]]] = {}
        for line_number, queue, publication in self._block:
            by_queue.setdefault(queue, []).append((line_number, publication))
        for queue, numbered in by_queue.items():
            await self._see_that_it_takes(queue, max(len(publication.body or b"") for _, publication in numbered))
            await self._put(queue, numbered)
        self._block, self._block_bytes = [], 0
        self.line_count = number

    async def _put(self, queue: str, numbered: list[tuple[int, Publication]]) -> None:
        from smista.client.errors import another

        def count_one(place: int, outcome: Published | BrokerError) -> None:
            if isinstance(outcome, BrokerError):
                self.summary.refused += 1
                # By its line, so that the user can find it.
                self.summary.errors.append((numbered[place][0] - 1, outcome))
            else:
                self.summary.duplicates += outcome.is_duplicate
                self.summary.accepted += not outcome.is_duplicate

        try:
            await self._client.put_many(queue, [publication for _, publication in numbered], on_result=count_one)
        except BrokerError as error:
            # Without its notes, which count only this part of a block.
            raise another(error) from None

    async def _see_that_it_takes(self, queue: str, size: int) -> None:
        if self._is_declared and queue not in self._seen:
            if await self._client.declare_queue(queue, if_exists="keep"):
                self._made.add(queue)
            self._seen.add(queue)
        limit = self._client.frame_bytes_max
        if size > USUAL_BODY_BYTES and queue in self._made and limit is not None:
            await self._client.alter_queue(queue, body_bytes_max=limit)
            self._made.discard(queue)

    def _publication(self, number: int, line: Line) -> Publication | None:
        """The message to publish; None if it has no body or has expired."""
        from smista.client import Publication

        body = _body(number, line)
        if body is None:
            self.lost += 1
            return None
        # The properties of another protocol include all of these, and more, such as the types of AMQP's headers.
        names = (*_KEPT, *(MessageProperties.__struct_fields__ if line.properties is None else ("properties",)))
        properties = {name: value for name in names if (value := getattr(line, name)) is not None}
        if line.state == "scheduled" and line.ready_at_ms is not None:
            properties["deliver_at_ms"] = line.ready_at_ms
        if line.ttl_ms is not None:
            properties["ttl_ms"] = line.ttl_ms
            if line.state == "ready" and line.expires_at_ms is not None:
                # Its time went on while in the file; that of a scheduled message has not begun.
                properties["ttl_ms"] = min(line.ttl_ms, line.expires_at_ms - round(time.time() * 1000))
                if properties["ttl_ms"] <= 0:
                    self.expired += 1
                    return None
        return Publication(body=body, deduplication_id=ID_PREFIX + line.message_id, **properties)


def _body(number: int, line: Line) -> bytes | None:
    if line.body is not UNSET:
        return line.body
    if line.message is UNSET:
        return None
    raw = bytes(line.message)
    if is_json(line.content_type):
        return raw
    try:
        return msgspec.json.decode(raw, type=str).encode()
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise BadLine(number, "has a message that is not text, and a content type that is not JSON.") from None
