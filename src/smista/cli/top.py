"""`smista top`: the queues and what moves through them, as it happens."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from smista.cli.completion import queue_names
from smista.cli.connected import client_command
from smista.cli.durations import duration_ms, shown_duration
from smista.cli.output import Output
from smista.cli.table import Column, Row, drawn, print_table
from smista.cli.text import count, safe, shown_bytes

if TYPE_CHECKING:
    from smista.client import AsyncClient, BrokerInfo, QueueStats

commands = typer.Typer()

COLUMNS = [
    Column("queue", is_flexible=True),
    *(Column(heading, is_number=True) for heading in ("ready", "in flight", "scheduled", "dead")),
    *(Column(heading, is_number=True) for heading in ("in/s", "out/s", "failed/s", "oldest", "consumers")),
    Column(""),
]


class Rates(NamedTuple):
    """Messages a second."""

    published: float = 0.0
    delivered: float = 0.0
    acked: float = 0.0
    failed: float = 0.0


class Frame(NamedTuple):
    info: BrokerInfo
    queues: list[tuple[QueueStats, Rates]]

    @property
    def heading(self) -> str:
        refusal = "" if self.info.refusal is None else f"  PUBLISHES REFUSED: {self.info.refusal}"
        return safe(
            f"smista {self.info.version}  {count(self.info.queues, 'queue')}  "
            f"{count(self.info.messages, 'message')}  log {shown_bytes(self.info.log_bytes)}{refusal}"
        )


@client_command(commands)
async def top(
    client: AsyncClient,
    output: Output,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only queues whose names begin so.", autocompletion=queue_names)
    ] = "",
    interval_ms: Annotated[
        int,
        typer.Option(
            "--interval", "-i", parser=duration_ms, metavar="DURATION", help="How often to look.", show_default="1s"
        ),
    ] = 1_000,
    is_once: Annotated[bool, typer.Option("--once", help="Print one frame and end.", show_default=False)] = False,
) -> None:
    """Watch the queues: what is in them, what comes and goes per second. Ctrl-C ends it."""
    frames = _frames(client, prefix, max(interval_ms, 50) / 1000)
    if output.is_json or is_once or not sys.stdout.isatty():
        async for frame in frames:
            _print(output, frame)
            if is_once:
                return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        async for frame in frames:
            rows = [_row(stats, rates) for stats, rates in _by_traffic(frame)]
            table = drawn(COLUMNS, rows, live.console.width)
            live.update(Group(Text(frame.heading, style="bold"), table), refresh=True)


async def _frames(client: AsyncClient, prefix: str, interval_s: float) -> AsyncIterator[Frame]:
    """What there is, once per interval, with what moved since the last time."""
    before, at_s = await _looked(client, prefix)
    while True:
        await asyncio.sleep(interval_s)
        now, now_s = await _looked(client, prefix)
        queues = [(stats, _rates(before.get(stats.queue), stats, now_s - at_s)) for stats in now.values()]
        yield Frame(await client.info(), queues)
        before, at_s = now, now_s


async def _looked(client: AsyncClient, prefix: str) -> tuple[dict[str, QueueStats], float]:
    found = await client.all_stats(prefix=prefix)
    return {stats.queue: stats for stats in found}, time.monotonic()


def _rates(before: QueueStats | None, now: QueueStats, passed_s: float) -> Rates:
    if before is None or now.published_total < before.published_total:
        return Rates()  # it is new, or another one of the same name
    return Rates(
        (now.published_total - before.published_total) / passed_s,
        (now.consumed_total - before.consumed_total) / passed_s,
        (now.acked_total - before.acked_total) / passed_s,
        (now.nacked_total + now.timed_out_total - before.nacked_total - before.timed_out_total) / passed_s,
    )


def _by_traffic(frame: Frame) -> list[tuple[QueueStats, Rates]]:
    """The busiest first, since a screen may not have room for all."""
    return sorted(frame.queues, key=lambda each: (-sum(each[1]), -each[0].depth, each[0].queue))


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
    print_table(COLUMNS, [_row(stats, rates) for stats, rates in frame.queues])
    sys.stdout.flush()


def _row(stats: QueueStats, rates: Rates) -> Row:
    return [
        stats.queue,
        stats.ready,
        stats.in_flight,
        stats.scheduled,
        stats.dead,
        *map(_shown_rate, (rates.published, rates.delivered, rates.failed)),
        shown_duration(stats.oldest_message_age_secs * 1000) if stats.ready else None,
        stats.consumers,
        "paused" if stats.is_paused else "",
    ]


def _shown_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"
