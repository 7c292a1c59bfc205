"""`smista export`: writes a queue's messages as lines of JSON, each as `browse --json` prints it."""

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
from smista.command_line import switch
from smista.text import count

if TYPE_CHECKING:
    from smista.client import AsyncClient

commands = typer.Typer()

PAGE_SIZE = 1_000
FRAME_BYTES = 1 << 17
"""The most that a request has beside its body."""


@client_command(commands)
async def export(
    client: AsyncClient,
    output: Output,
    queue: Queue,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write; - is standard output, *.gz is compressed.")
    ],
    filters: Filters,
    state: State = None,
    is_forced: Annotated[bool, switch("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write the messages of a queue to a file, one JSON object per line; changes nothing.

    Exports the messages that exist when it starts, in any state.
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
        note(f"{count(lost, 'message')} came without a body, which the broker's log has lost.")
    limit = client.frame_bytes_max
    if limit is not None and largest + FRAME_BYTES > limit:
        note(
            f"The largest body has {largest:,} bytes: to import it, the broker must take larger requests than the "
            f"{limit:,} bytes of this one; see `smista serve --websocket-frame-bytes-max`."
        )
