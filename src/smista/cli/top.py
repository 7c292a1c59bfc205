"""`smista top`: watches the queues and their rates."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from smista.cli.arguments import Prefix
from smista.cli.connected import client_command
from smista.cli.output import Output
from smista.cli.table import print_table
from smista.cli.top_view import COLUMNS, Frame, Rates, View, row
from smista.command_line import duration, switch

if TYPE_CHECKING:
    from smista.client import AsyncClient, QueueStats

commands = typer.Typer()

REDRAW_S = 0.25
"""How often the screen is redrawn while no frame comes and no key is pressed."""


@client_command(commands)
async def top(
    client: AsyncClient,
    output: Output,
    prefix: Prefix = "",
    interval_ms: Annotated[int, duration("--interval", "-i", help="How often to refresh.", shown="1s")] = 1_000,
    is_once: Annotated[bool, switch("--once", help="Print one frame and exit.")] = False,
) -> None:
    """Watch the queues: their contents, and messages in and out per second.

    On a terminal, q quits and ? lists the keys for sorting and scrolling.
    """
    interval_s = max(interval_ms, 50) / 1000
    if not (output.is_json or is_once) and sys.stdout.isatty():
        await _watch(client, prefix, interval_s)
        return
    async for frame in _frames(client, prefix, interval_s):
        _print(output, frame)
        if is_once:
            return


async def _watch(client: AsyncClient, prefix: str, interval_s: float) -> None:
    """Draw on the whole terminal until q is pressed. Waits for a broker that is away."""
    from smista.cli.keys import pressed
    from smista.cli.screen import Screen

    # Lost connections are shown on the screen; a logged line would be written across it.
    logging.getLogger("smista.client").addHandler(logging.NullHandler())
    view, changed = View(), asyncio.Event()

    def press(key: str) -> None:
        view.press(key)
        changed.set()

    refreshing = asyncio.create_task(_refresh(client, prefix, interval_s, view, changed))
    refreshing.add_done_callback(lambda _: changed.set())
    try:
        with Screen() as screen, pressed(press):
            while not view.is_over and not refreshing.done():
                if not client.is_connected:
                    view.went_away(time.monotonic())
                screen.draw(view.content(screen.width, screen.height, time.monotonic()))
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), REDRAW_S)
        if refreshing.done():
            refreshing.result()
    finally:
        refreshing.cancel()


async def _refresh(client: AsyncClient, prefix: str, interval_s: float, view: View, changed: asyncio.Event) -> None:
    """Pass frames to the view; raises errors that are not about the connection."""
    from smista.client import ConnectionFailed, ConnectionLost
    from smista.errors import BrokerClosed, BrokerStopped, OutcomeUnknown

    while True:
        try:
            async for frame in _frames(client, prefix, interval_s):
                view.show(frame)
                changed.set()
        except (ConnectionFailed, ConnectionLost, BrokerClosed, BrokerStopped, OutcomeUnknown):
            view.went_away(time.monotonic())
            await asyncio.sleep(interval_s)


async def _frames(client: AsyncClient, prefix: str, interval_s: float) -> AsyncIterator[Frame]:
    """A frame per interval, with the rates since the previous one."""
    before, at_s = await _stats(client, prefix)
    while True:
        await asyncio.sleep(interval_s)
        now, now_s = await _stats(client, prefix)
        queues = [(stats, _rates(before.get(stats.queue), stats, now_s - at_s)) for stats in now.values()]
        yield Frame(await client.info(), queues)
        before, at_s = now, now_s


async def _stats(client: AsyncClient, prefix: str) -> tuple[dict[str, QueueStats], float]:
    found = await client.all_stats(prefix=prefix)
    return {stats.queue: stats for stats in found}, time.monotonic()


def _rates(before: QueueStats | None, now: QueueStats, passed_s: float) -> Rates:
    if before is None or now.published_total < before.published_total:
        return Rates()  # a new queue, or another one of the same name
    return Rates(
        (now.published_total - before.published_total) / passed_s,
        (now.delivered_total - before.delivered_total) / passed_s,
        (now.acknowledged_total - before.acknowledged_total) / passed_s,
        (now.nacked_total + now.timed_out_total - before.nacked_total - before.timed_out_total) / passed_s,
    )


def _print(output: Output, frame: Frame) -> None:
    if output.is_json:
        for stats, rates in frame.queues:
            output.line(
                {
                    **msgspec.to_builtins(stats),
                    **{f"{name}_per_s": round(value, 1) for name, value in rates._asdict().items()},
                }
            )
        return
    print(frame.heading)
    print_table(COLUMNS, [row(stats, rates) for stats, rates in frame.queues])
    sys.stdout.flush()
