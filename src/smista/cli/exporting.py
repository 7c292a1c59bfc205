"""`smista export`: a queue's messages as lines of JSON. A line is a message as `browse --json` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from smista.cli import messages
from smista.cli.arguments import Filters, Queue, State
from smista.cli.connected import client_command
from smista.cli.output import Output, note
from smista.cli.progress import progress
from smista.cli.target import is_standard_output, written
from smista.cli.text import count

if TYPE_CHECKING:
    from smista.client import AsyncClient

commands = typer.Typer()

PAGE_SIZE = 1_000
FRAME_BYTES = 1 << 17
"""What a request has beside its body, at most."""


@client_command(commands)
async def export(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; - is standard output, gzipped if *.gz.")],
    filters: Filters,
    state: State = None,
    is_forced: Annotated[
        bool, typer.Option("--force", help="Replace a file that is there.", show_default=False)
    ] = False,
) -> None:
    """Write the messages of a queue into a file, one JSON object per line; nothing is changed.

    Those that are there when it starts, in whatever state they are.
    """
    wanted = filters.wanted()
    if wanted["created_before_ms"] is None:
        wanted["created_before_ms"] = (await client.info()).now_ms + 1
    present = await client.stats(queue)
    pages = client.browse(queue, state=state, page_size=PAGE_SIZE, **wanted)
    exported = lost = largest = 0
    with written(file, is_forced=is_forced) as stream, progress("Exporting", present.depth + present.dead) as done:
        while page := await pages.next_page():
            for message in page:
                stream.write(msgspec.json.encode(messages.fields(message)) + b"\n")
                lost += message.body is None
                largest = max(largest, len(message.body or b""))
            exported += len(page)
            done(exported)
    if not is_standard_output(file):
        output.say(f"Exported {count(exported, 'message')} to {file}.", queue=queue, exported=exported, lost=lost)
    if lost:
        note(f"{count(lost, 'message')} came without a body: the broker's log has lost it.")
    limit = client.frame_bytes_max
    if limit is not None and largest + FRAME_BYTES > limit:
        note(
            f"The largest body has {largest:,} bytes: `smista import` needs a broker that takes more in one request "
            f"than the {limit:,} of this one, by `smista serve --websocket-frame-bytes-max`."
        )
