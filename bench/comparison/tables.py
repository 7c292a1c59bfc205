"""A report as tables of Markdown, for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from bench.comparison.report import Drift, Rate, Report, Spread, drift, spread
from bench.scenarios import Backlog

BEGIN, END = "<!-- figures of bench-peers -->", "<!-- end of the figures -->"

T = TypeVar("T")


def write(found: Report, page: Path) -> None:
    """Put the tables in place of those that stand between the marks."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no lines '{BEGIN}' and '{END}' to put the figures between.")
    page.write_text(f"{before}{BEGIN}\n\n{markdown(found)}\n{END}{after}")


def markdown(found: Report) -> str:
    parts = [
        f"{found.date}, commit {found.commit}, {found.machine}.\n",
        f"    {found.command}\n",
        _table(
            ("broker", "version", "durability", "connections"),
            ((peer.name, peer.version, peer.durability, str(peer.connections)) for peer in found.peers),
        ),
    ]
    parts += [_rates(f"End to end, {row}", runs) for row, runs in found.rates.items()]
    parts += [_latencies(f"Latencies at {row}", runs) for row, runs in found.latencies.items()]
    if found.backlogs:
        parts.append(_backlogs(found.backlogs))
    if found.soaks:
        parts.append(_soaks({name: drift(samples) for name, samples in found.soaks.items()}))
    return "\n".join(parts)


def _rates(title: str, by_peer: dict[str, list[Rate]]) -> str:
    heads = ("broker", "msg/s (range of the runs)", "CPU of the broker, us each")
    rows = (
        (name, shown(runs, lambda run: run.rate), shown(runs, lambda run: run.cpu_us, ".1f"))
        for name, runs in by_peer.items()
    )
    return f"### {title}\n\n{_table(heads, rows)}"


def _latencies(title: str, by_peer: dict[str, list[Rate]]) -> str:
    heads = (
        "broker",
        *(f"{what} {share}, ms" for what in ("confirm", "delivery") for share in ("p50", "p99", "p99.9")),
    )
    rows = (
        (name, *(shown(runs, value, ".1f") for value in _percentiles()), shown(runs, lambda run: run.cpu_us, ".0f"))
        for name, runs in by_peer.items()
    )
    return f"### {title}\n\n{_table((*heads, 'CPU, us each'), rows)}"


def _percentiles() -> Iterable[Callable[[Rate], float]]:
    for share in ("p50", "p99", "p99.9"):
        yield lambda run, share=share: run.confirm_ms.get(share, 0.0)  # type: ignore[misc]  # it cannot tell
    for share in ("p50", "p99", "p99.9"):
        yield lambda run, share=share: run.delivery_ms.get(share, 0.0)  # type: ignore[misc]  # it cannot tell


def _backlogs(by_peer: dict[str, list[Backlog]]) -> str:
    heads = ("broker", "messages", "filled, msg/s", "memory, B each", "restarted, s", "drained, msg/s")
    rows = (
        (
            name,
            shown(runs, lambda run: run.messages),
            shown(runs, lambda run: run.fill_rate),
            shown(runs, lambda run: run.bytes_each),
            shown(runs, lambda run: run.restart_s, ".1f"),
            shown(runs, lambda run: run.drain_rate),
        )
        for name, runs in by_peer.items()
    )
    return f"### Backlog, restart, drain\n\n{_table(heads, rows)}"


def _soaks(by_peer: dict[str, Drift | None]) -> str:
    heads = ("broker", "rate", "p99 of deliveries", "memory")
    rows = (
        (name, *(f"{getattr(found, field):.2f}" if found else "-" for field in ("rate", "p99", "memory")))
        for name, found in by_peer.items()
    )
    return f"### Soak: the last fifth over the first\n\n{_table(heads, rows)}"


def shown(runs: Sequence[T], value: Callable[[T], float], form: str = ",.0f") -> str:
    return of_spread(spread(runs, value), form)


def of_spread(found: Spread | None, form: str) -> str:
    if found is None:
        return "-"
    middle, least, most = (format(each, form) for each in (found.middle, found.least, found.most))
    return middle if least == most else f"{middle} ({least} to {most})"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
