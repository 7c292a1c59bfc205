"""Runs a scenario against several brokers by turns, each time a fresh one, and sums the runs up."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import uvloop

from bench.machine import percentile
from bench.peers.peer import Peer
from bench.scenarios import SECONDS, Result

RUNS = int(os.environ.get("SMISTA_TEST_BENCH_RUNS", "3"))
"""Of each broker, by turns; the middle one is shown, since a single run may meet a slow disk."""
LIMIT_S = 180 + 10 * SECONDS
"""How long a broker may take for a scenario."""

Found = TypeVar("Found")


def by_turns(
    peers: Sequence[type[Peer]],
    scenario: Callable[[Peer], Coroutine[Any, Any, Found]],
    *,
    runs: int = RUNS,
    limit_s: float = LIMIT_S,
) -> dict[str, list[Found]]:
    """What each broker gave in the runs in which it finished."""
    found: dict[str, list[Found]] = {peer.name: [] for peer in peers}
    for _ in range(runs):
        for kind in peers:
            with kind.running() as peer:
                try:
                    found[kind.name].append(uvloop.run(_attended(scenario(peer), limit_s)))
                except (TimeoutError, ConnectionError, AssertionError) as error:
                    why = str(error) or f"it did not finish within {limit_s:.0f} s"
                    print(f"  {kind.name}: {why}", file=sys.stderr, flush=True)
    return found


async def _attended(work: Coroutine[Any, Any, Found], limit_s: float) -> Found:
    """A link that fails fails the run: its exception would otherwise only be told by the loop."""
    failures: list[str] = []
    task = asyncio.ensure_future(work)

    def fail(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(f"{context.get('message')}: {context.get('exception')!r:.500}")
        task.cancel()

    asyncio.get_running_loop().set_exception_handler(fail)
    try:
        return await asyncio.wait_for(task, limit_s)
    except asyncio.CancelledError:
        raise ConnectionError("; ".join(failures) or "cancelled") from None


def middle(results: list[Result]) -> Result:
    return sorted(results, key=lambda result: result.rate)[len(results) // 2]


def show(results: dict[str, list[Result]]) -> None:
    """A line for each broker, compared with the first."""
    ours = next(iter(results.values()))
    for name, theirs in results.items():
        if not theirs:
            print(f"  {name:<20} -", flush=True)
            continue
        times = f"; {middle(ours).rate / middle(theirs).rate:.2f} times" if theirs is not ours and ours else ""
        print(f"  {name:<20} {summary(theirs)}{times}", flush=True)


def summary(results: list[Result]) -> str:
    shown = middle(results)
    rates = sorted(result.rate for result in results)
    cpu_us = sorted(result.cpu_us for result in results)
    return (
        f"{shown.rate:>9,.0f} msg/s ({rates[0]:,.0f} to {rates[-1]:,.0f}, {len(rates)} runs), "
        f"{cpu_us[len(cpu_us) // 2]:.1f} us of CPU each ({cpu_us[0]:.1f} to {cpu_us[-1]:.1f}); "
        f"confirm {_percentiles(shown.confirm)}; delivery {_percentiles(shown.delivery)}"
    )


def _percentiles(latencies: list[float]) -> str:
    ordered = sorted(latencies)
    if not ordered:
        return "-"
    return f"p50 {percentile(ordered, 0.5) * 1e3:.1f}, p99 {percentile(ordered, 0.99) * 1e3:.1f} ms"
