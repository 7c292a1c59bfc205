"""Pages with plots, in one file each: HTML with its styles and drawings inside, no scripts, nothing from elsewhere.

    page("Metrics", [section("orders", chart(...), chart(...)), section("In numbers", table(...))])

A chart is an SVG: lines or stacked bars over time, a grid with round numbers, a legend with the last value of each
series. Names and errors come from others, so everything is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from smista.text import shown as as_text

WIDTH, HEIGHT = 560, 210
LEFT_MIN, RIGHT, TOP, BOTTOM = 40, 12, 12, 24
CHARACTER = 6.6
"""How wide a character of an axis may be, in units of the drawing: of the widest fonts at 11 px."""
LONG = 28
"""Text with more characters than this may be broken into lines in a table; shorter text is not."""
COLOURS = ["#2563eb", "#d97706", "#dc2626", "#059669", "#7c3aed", "#64748b"]
TICKS = 4

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 1200px; padding: 24px; background: #fff; color: #1e293b;
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 19px; margin: 36px 0 8px; border-bottom: 1px solid #e2e8f0; }
h3 { font-size: 14px; font-weight: 600; margin: 0 0 4px; }
h2, .note { overflow-wrap: anywhere; }
.note { color: #64748b; margin: 4px 0 0; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.facts div { border: 1px solid #e2e8f0; border-radius: 8px; padding: 8px 14px; min-width: 96px; }
.facts b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.facts span { color: #64748b; font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 16px; }
.chart { border: 1px solid #e2e8f0; border-radius: 8px; padding: 12px; min-width: 0; overflow-x: auto; }
.legend { font-size: 12px; color: #475569; display: flex; flex-wrap: wrap; gap: 2px 14px; }
.legend span { white-space: nowrap; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
svg { width: 100%; height: auto; display: block; } .chart svg { min-width: 440px; }
svg text { font-size: 11px; fill: #64748b; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: 5px 10px; border-bottom: 1px solid #e2e8f0; vertical-align: top; }
th { background: #f8fafc; white-space: nowrap; } td { white-space: nowrap; } td.number, th.number { text-align: right; }
td.number { font-variant-numeric: tabular-nums; } code { font-size: 12px; }
td .long { white-space: normal; overflow-wrap: anywhere; min-width: 14em; max-width: 36em; }
tr.above td { border-bottom: none; padding-bottom: 0; }
.below { position: sticky; left: 10px; max-width: min(1100px, calc(100vw - 70px)); margin: 0; padding-bottom: 8px;
         display: grid; grid-template-columns: max-content 1fr; gap: 0 10px; white-space: normal; }
.below dt { color: #64748b; } .below dd { margin: 0; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[tuple[float, float | None]]
    """(seconds since 1970, value); None leaves a gap."""


# -- the page ---------------------------------------------------------------------------------------------------------


def page(title: str, subtitle: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        f'<h1>{escape(title)}</h1><p class="note">{escape(subtitle)}</p>\n' + "\n".join(parts) + "\n</body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def charts(*drawn: str) -> str:
    return '<div class="charts">' + "\n".join(drawn) + "</div>"


def facts(values: Mapping[str, object]) -> str:
    cells = (f"<div><b>{escape(shown(value))}</b><span>{escape(name)}</span></div>" for name, value in values.items())
    return '<div class="facts">' + "".join(cells) + "</div>"


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], below: Iterable[Mapping[str, object]] | None = None
) -> str:
    """Columns are as wide as what is in them; only long text is broken into lines. Where the window is too narrow the
    table can be moved sideways. `below` has for each row what needs the whole width and stands under it."""
    lines = list(rows)
    if not lines:
        return '<p class="note">Nothing.</p>'
    numeric = [all(isinstance(row[at], int | float | None) for row in lines) for at in range(len(headings))]
    marks = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{mark}>{escape(heading)}</th>" for heading, mark in zip(headings, marks, strict=True))
    cells = ["".join(f"<td{mark}>{_cell(value)}</td>" for value, mark in zip(row, marks, strict=True)) for row in lines]
    if below is None:
        body = "".join(f"<tr>{row}</tr>" for row in cells)
    else:
        body = "".join(
            f'<tr class="above">{row}</tr><tr><td colspan="{len(headings)}">{_below(more)}</td></tr>'
            for row, more in zip(cells, below, strict=True)
        )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def code(text: str) -> Code:
    """Text that is shown as it stands, in a fixed width."""
    return Code(text)


class Code(str):
    __slots__ = ()


class Drawing(str):
    """SVG that was made here, not text from elsewhere."""

    __slots__ = ()


def _cell(value: object) -> str:
    if isinstance(value, Drawing):
        return str(value)
    text = _text(value)
    return f'<div class="long">{text}</div>' if len(shown(value)) > LONG else text


def _below(more: Mapping[str, object]) -> str:
    return (
        '<dl class="below">'
        + "".join(f"<dt>{escape(name)}</dt><dd>{_text(more[name])}</dd>" for name in more)
        + "</dl>"
    )


def _text(value: object) -> str:
    text = escape(shown(value))
    return f"<code>{text}</code>" if isinstance(value, Code) else text


# -- charts -----------------------------------------------------------------------------------------------------------


def chart(
    title: str, series: Sequence[Series], *, unit: str = "", is_stacked: bool = False, width_s: float = 60
) -> str:
    """Lines, or bars `width_s` wide on top of each other."""
    drawn = _Plot(series, unit, is_stacked=is_stacked, width_s=width_s)
    legend = "".join(_key(each, _colour(place), unit) for place, each in enumerate(series))
    return (
        f'<div class="chart"><h3>{escape(title)}</h3><div class="legend">{legend}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{drawn.svg()}</svg></div>'
    )


def _key(series: Series, colour: str, unit: str) -> str:
    last = next((value for _, value in reversed(series.points) if value is not None), None)
    label = f"{series.name} {shown(last)}{unit}"
    return f'<span><i style="background:{colour}"></i>{escape(label)}</span>'


def sparkline(values: Sequence[float]) -> Drawing:
    """A row of little bars, for a table."""
    top = max(values, default=0) or 1
    bars = "".join(
        f'<rect x="{place * 5}" y="{20 - 20 * value / top:.1f}" width="4" height="{20 * value / top:.1f}"/>'
        for place, value in enumerate(values)
    )
    width = 5 * len(values)
    return Drawing(
        f'<svg viewBox="0 0 {width} 20" style="width:{width}px;height:20px" fill="{COLOURS[0]}">{bars}</svg>'
    )


class _Plot:
    def __init__(self, series: Sequence[Series], unit: str, *, is_stacked: bool, width_s: float) -> None:
        self._series = series
        self._is_stacked = is_stacked
        self._width_s = width_s
        at = [x for each in series for x, _ in each.points]
        self._first, self._last = (min(at), max(at) + width_s) if at else (0.0, width_s)
        self._top = nice_top(max(self._heights(), default=0.0))
        values = [self._top * step / TICKS for step in range(TICKS + 1)]
        self._labels = [(value, brief(value) + unit) for value in values]
        # Room for the longest label, or it would be cut off at the edge of the drawing.
        self._left = max(LEFT_MIN, 8 + CHARACTER * max(len(label) for _, label in self._labels))

    def _heights(self) -> list[float]:
        if not self._is_stacked:
            return [value for each in self._series for _, value in each.points if value is not None]
        sums: dict[float, float] = {}
        for each in self._series:
            for x, value in each.points:
                sums[x] = sums.get(x, 0.0) + (value or 0.0)
        return list(sums.values())

    def svg(self) -> str:
        marks = self._bars() if self._is_stacked else self._lines()
        return "".join([*self._grid(), *self._times(), *marks])

    def _x(self, at: float) -> float:
        return self._left + (WIDTH - self._left - RIGHT) * (at - self._first) / (self._last - self._first)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self._top

    def _grid(self) -> Iterable[str]:
        left = self._left
        for value, label in self._labels:
            y = self._y(value)
            yield f'<line x1="{left:.1f}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
            yield f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'

    def _times(self) -> Iterable[str]:
        span_s = self._last - self._first
        form = "%H:%M:%S" if span_s <= 600 else "%H:%M" if span_s <= 36 * 3600 else "%b %d"
        for step in range(TICKS + 1):
            at = self._first + span_s * step / TICKS
            anchor = "start" if not step else "end" if step == TICKS else "middle"
            label = datetime.fromtimestamp(at, UTC).strftime(form)
            yield f'<text x="{self._x(at):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{label}</text>'

    def _lines(self) -> Iterable[str]:
        middle = self._width_s / 2
        for place, each in enumerate(self._series):
            for run in _runs(each.points):
                points = [(self._x(x + middle), self._y(value)) for x, value in run]
                yield _dot(*points[0], _colour(place)) if len(points) == 1 else _line(points, _colour(place))

    def _bars(self) -> Iterable[str]:
        width = max(1.0, self._x(self._first + self._width_s) - self._left - 1)
        below: dict[float, float] = {}
        for place, each in enumerate(self._series):
            for x, value in each.points:
                if value:
                    base = below.get(x, 0.0)
                    below[x] = base + value
                    y, height = self._y(base + value), self._y(base) - self._y(base + value)
                    yield (
                        f'<rect x="{self._x(x):.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                        f'fill="{_colour(place)}"/>'
                    )


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'


def _line(points: Iterable[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>'


def _runs(points: Sequence[tuple[float, float | None]]) -> Iterable[list[tuple[float, float]]]:
    """The points between gaps."""
    run: list[tuple[float, float]] = []
    for x, value in points:
        if value is None:
            if run:
                yield run
            run = []
        else:
            run.append((x, value))
    if run:
        yield run


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def nice_top(value: float) -> float:
    """The next round number: 1, 2, 4, 5 or 8 times a power of ten, so that a quarter of it is round too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 0.999_999)


def brief(value: float) -> str:
    """A number for an axis: 20,000 is 20k, 2,500,000 is 2.5M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * size or (value >= size and size > 1e3):
            return f"{value / size:,.4g}{letter}"
    return shown(value)


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"
    return value.strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else as_text(value)
