"""A report as one page of HTML with plots in SVG. Nothing is loaded from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from bench.comparison.report import Report, Spread, spread
from bench.comparison.tables import of_spread
from bench.scenarios import Sample

WIDTH, LABEL, BAR, GAP = 900, 190, 18, 6
PLOT_HEIGHT = 180
COLOURS = ("#2060c0", "#c04020", "#208040", "#806000", "#8040a0", "#008090", "#c02080", "#606060", "#40a000")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
svg { display: block; max-width: 100% } text { font: 13px system-ui, sans-serif; fill: currentColor }
table { border-collapse: collapse } td, th { border-bottom: 1px solid #ccc; padding: .2em .8em; text-align: left }
"""


def page(found: Report) -> str:
    parts = [
        "<h1>Smista beside its peers</h1>",
        f"<p>{_text(found.date)}, commit {_text(found.commit)}, {_text(found.machine)}.</p>",
        f"<pre>{_text(found.command)}</pre>",
        _peers(found),
        "<p>Bars show the middle of the runs, lines their range.</p>",
    ]
    for row, by_peer in found.rates.items():
        parts.append(f"<h2>End to end, {_text(row)}</h2>")
        parts.append(_bars("msg/s", {name: spread(runs, lambda run: run.rate) for name, runs in by_peer.items()}))
        cpu = {name: spread(runs, lambda run: run.cpu_us) for name, runs in by_peer.items()}
        parts.append(_bars("us of CPU of the broker for each message", cpu, ".1f"))
    for row, by_peer in found.latencies.items():
        parts.append(f"<h2>Latencies at {_text(row)}</h2>")
        for share in ("p50", "p99", "p99.9"):
            for what in ("confirm", "delivery"):
                values = {
                    name: spread([getattr(run, f"{what}_ms").get(share, 0.0) for run in runs], float)
                    for name, runs in by_peer.items()
                }
                parts.append(_bars(f"{what}, {share}, ms", values, ".2f"))
    if found.backlogs:
        parts.append("<h2>Backlog, restart, drain</h2>")
        for field, unit in {
            "fill_rate": "filled, msg/s",
            "bytes_each": "memory, B for each message",
            "restart_s": "restarted, s to the first delivery",
            "drain_rate": "drained, msg/s",
        }.items():
            spreads = {
                name: spread([getattr(run, field) for run in runs], float) for name, runs in found.backlogs.items()
            }
            parts.append(_bars(unit, spreads, ",.1f"))
    if found.soaks:
        parts.append("<h2>Soak</h2>")
        parts.append(_lines("msg/s", found.soaks, lambda sample: sample.rate))
        parts.append(_lines("p99 of deliveries, ms", found.soaks, lambda sample: sample.p99_ms))
        parts.append(_lines("memory, MB", found.soaks, lambda sample: sample.memory_bytes / 1e6))
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>Smista beside its peers</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _text(value: str) -> str:
    return html.escape(value)


def _peers(found: Report) -> str:
    rows = "".join(
        f"<tr><td>{_text(peer.name)}</td><td>{_text(peer.version)}</td><td>{_text(peer.durability)}</td></tr>"
        for peer in found.peers
    )
    return f"<table><tr><th>broker</th><th>version</th><th>durability</th></tr>{rows}</table>"


def _bars(title: str, values: dict[str, Spread | None], form: str = ",.0f") -> str:
    there = {name: value for name, value in values.items() if value is not None}
    most = max((value.most for value in there.values()), default=0.0) or 1.0
    room = WIDTH - LABEL - 220
    drawn = []
    for number, (name, value) in enumerate(there.items()):
        top = number * (BAR + GAP)
        middle, least, end = (LABEL + each / most * room for each in (value.middle, value.least, value.most))
        colour = COLOURS[0] if name.startswith("smista") else "#909090"
        drawn.append(
            f'<text x="0" y="{top + 14}">{_text(name)}</text>'
            f'<rect x="{LABEL}" y="{top}" width="{middle - LABEL:.1f}" height="{BAR}" fill="{colour}"/>'
            f'<path d="M{least:.1f} {top + BAR / 2}H{end:.1f}" stroke="black" stroke-width="2"/>'
            f'<text x="{end + 8:.1f}" y="{top + 14}">{of_spread(value, form)}</text>'
        )
    return _figure(title, drawn, len(there) * (BAR + GAP))


def _lines(title: str, soaks: dict[str, list[Sample]], value: Callable[[Sample], float]) -> str:
    every = [sample for samples in soaks.values() for sample in samples]
    most = max(map(value, every), default=0.0) or 1.0
    longest = max((sample.at_s for sample in every), default=0.0) or 1.0
    drawn = [
        f'<text x="0" y="12">{most:,.0f}</text><text x="{WIDTH - 60}" y="{PLOT_HEIGHT + 16}">{longest:,.0f} s</text>'
    ]
    for number, (name, samples) in enumerate(soaks.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(_point(sample, value(sample) / most, longest) for sample in samples)
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{WIDTH - 180}" y="{number * 18 + 14}" style="fill:{colour}">{_text(name)}</text>'
        )
    return _figure(title, drawn, max(PLOT_HEIGHT + 24, len(soaks) * 18 + 10))


def _point(sample: Sample, share: float, longest: float) -> str:
    return f"{60 + sample.at_s / longest * (WIDTH - 260):.1f},{PLOT_HEIGHT * (1 - share):.1f}"


def _figure(title: str, drawn: Sequence[str], height: int) -> str:
    return f'<h3>{_text(title)}</h3><svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">{"".join(drawn)}</svg>'
