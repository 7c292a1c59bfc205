"""`smista import`: what `smista export` wrote, back into queues.

Of a message its body, headers and other properties come back, as its protocol keeps them, its priority, group, and what
is left of its delay and time to live. What has happened to it does not: deliveries, failures, deaths, the exchange it
came through, its id.

Importing may be repeated. A message is put under a deduplication id made from the id it was exported with, so within
the queue's `dedup_window_ms` nothing is doubled, whether the first time was broken off or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET, Raw, UnsetType

from smista.cli import sources
from smista.cli.completion import queue_names
from smista.cli.connected import client_command
from smista.cli.exits import WrongUsage
from smista.cli.messages import is_json
from smista.cli.output import Output, note
from smista.cli.progress import progress
from smista.cli.publishing import report
from smista.cli.text import count, were
from smista.errors import BrokerError

if TYPE_CHECKING:
    from smista.client import AsyncClient, Publication, Published

commands = typer.Typer()

BLOCK_COUNT = 2_000
BLOCK_BYTES = 4 << 20
"""What is put before the next lines are read."""
USUAL_BODY_BYTES = 1 << 20
"""What a queue takes whose settings say nothing of it, unless its broker was told otherwise."""
ID_PREFIX = "export:"


class Line(msgspec.Struct):
    """A message of an export; fields that are not named here are passed over."""

    message_id: str
    queue: str = ""
    message: Raw | UnsetType = UNSET
    body: bytes | UnsetType = UNSET
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    headers: dict[str, Any] | None = None
    group: str | None = None
    ttl_ms: int | None = None
    max_retries: int | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    app_id: str | None = None
    user_id: str | None = None
    external_id: str | None = None
    timestamp_ms: int | None = None
    properties: bytes | None = None
    state: str = ""
    ready_at_ms: int | None = None
    expires_at_ms: int | None = None


_KEPT = ("priority", "group", "max_retries")
_PROPERTIES = (
    "headers", "content_type", "content_encoding", "correlation_id", "reply_to", "type", "app_id", "user_id",
    "external_id", "timestamp_ms",
)  # fmt: skip
_decode = msgspec.json.Decoder(Line).decode


@client_command(commands, "import")
async def import_(
    client: AsyncClient,
    output: Output,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `export` wrote; - is standard input.")],
    queue: Annotated[
        str | None,
        typer.Argument(metavar="QUEUE", help="Put all of it here, not where it was.", autocompletion=queue_names),
    ] = None,
    skip: Annotated[int, typer.Option(metavar="COUNT", min=0, help="Leave out the first so many lines.")] = 0,
    is_declared: Annotated[
        bool, typer.Option("--declare", help="Make queues that are not there.", show_default=False)
    ] = False,
) -> None:
    """Put messages that were exported into queues.

    May be repeated: what is there already is not stored again, within the queue's dedup window.
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
    """Puts lines block by block, and knows how many lines are done."""

    def __init__(self, client: AsyncClient, target: str | None, *, is_declared: bool) -> None:
        from smista.client import PutSummary

        self._client = client
        self._target = target
        self._is_declared = is_declared
        self._seen: set[str] = set()
        self._made: set[str] = set()
        """The queues that were made here, and take bodies of the usual size only."""
        self._block: list[tuple[int, str, Publication]] = []
        """What was read and is put next: line, queue and message."""
        self._block_bytes = 0
        self.summary = PutSummary()
        self.line_count = 0
        """Lines that need not be looked at again, those skipped among them."""
        self.expired = 0
        self.lost = 0

    def so_far(self, error: BaseException) -> str:
        """What is done, and how to go on."""
        accepted, duplicates = self.summary.accepted, self.summary.duplicates
        said = f"{count(accepted, 'message')} {were(accepted)} published"
        said += f", {duplicates:,} {were(duplicates)} there already." if duplicates else "."
        if isinstance(error, BadLine):
            if self.line_count:
                said += f" Lines 1 to {self.line_count} are done;" if self.line_count > 1 else " Line 1 is done;"
            return f"{said} --skip {error.number} leaves line {error.number} out."
        if self.line_count:
            said += f" Lines 1 to {self.line_count} are done; repeat it, or go on with --skip {self.line_count}."
        return said

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
            # A line that cannot be read, or no more lines: what was read before is put all the same.
            await self._put_up_to(error.number - 1 if isinstance(error, BadLine) else number)
            raise
        if skip > number:
            raise WrongUsage(f"--skip {skip} leads beyond the end: there are {count(number, 'line')}.")
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
            raise BadLine(number, "does not say which queue it is from; name one after the file.")
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
                # By its line, so that it can be found.
                self.summary.errors.append((numbered[place][0] - 1, outcome))
            else:
                self.summary.duplicates += outcome.is_duplicate
                self.summary.accepted += not outcome.is_duplicate

        try:
            await self._client.put_many(queue, [publication for _, publication in numbered], on_result=count_one)
        except BrokerError as error:
            # Without its notes, which count this part of a block only.
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
        """None for what has no body or no time left."""
        from smista.client import Publication

        body = _body(number, line)
        if body is None:
            self.lost += 1
            return None
        # Another protocol's own say all that these do, and more: the types of AMQP's headers, for one.
        names = (*_KEPT, *_PROPERTIES) if line.properties is None else (*_KEPT, "properties")
        properties = {name: value for name in names if (value := getattr(line, name)) is not None}
        if line.state == "scheduled" and line.ready_at_ms is not None:
            properties["deliver_at_ms"] = line.ready_at_ms
        if line.ttl_ms is not None:
            properties["ttl_ms"] = line.ttl_ms
            if line.state == "ready" and line.expires_at_ms is not None:
                # Its time runs on in the file; that of a scheduled one has not begun.
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
