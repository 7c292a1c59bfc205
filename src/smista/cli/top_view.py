"""The view of `smista top`: sorting, scrolling and what the keys do.

It uses neither the terminal nor the broker: it gets frames and keys, and returns what to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from smista.cli.table import Column, Row, drawn
from smista.durations import shown_duration
from smista.text import count, safe, shown_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from smista.client import BrokerInfo, QueueStats

HELP = """\
q            quit
s > right    sort by the next column
< left       sort by the column before
r            reverse the order
b            busiest first, as at the start
up down      scroll by a line (also k and j)
page up, page down, space    scroll by a screen
home end     to the first and to the last queue
? h          this help; any key leaves it

in/s, out/s and failed/s are messages per second since the last refresh: published, delivered, and deliveries that were
nacked or whose lease ran out. oldest is the age of the oldest ready message."""
KEYS = "q quits, ? helps"
OTHER_LINES = 3
"""Lines on the screen beside the queues: the broker, the headings, and the last line."""


class Rates(NamedTuple):
    """Messages a second."""

    published: float = 0.0
    delivered: float = 0.0
    acknowledged: float = 0.0
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


class Sorting(NamedTuple):
    """A column and its sort key: interesting queues come first."""

    heading: str
    key: Callable[[QueueStats, Rates], Any]


SORTINGS = [
    Sorting("queue", lambda stats, rates: stats.queue),
    Sorting("ready", lambda stats, rates: -stats.ready),
    Sorting("in flight", lambda stats, rates: -stats.in_flight),
    Sorting("scheduled", lambda stats, rates: -stats.scheduled),
    Sorting("dead", lambda stats, rates: -stats.dead),
    Sorting("in/s", lambda stats, rates: -rates.published),
    Sorting("out/s", lambda stats, rates: -rates.delivered),
    Sorting("failed/s", lambda stats, rates: -rates.failed),
    Sorting("oldest", lambda stats, rates: -stats.oldest_age_ms if stats.ready else 0),
    Sorting("consumers", lambda stats, rates: -stats.consumers),
]
BUSIEST = Sorting("busiest first", lambda stats, rates: (-sum(rates), -stats.depth))
"""The order at the start, since a screen may not have room for all queues."""
COLUMNS = [
    Column("queue", is_flexible=True),
    # "paused", next to the name, since a narrow screen leaves out the last columns.
    Column(""),
    *(Column(sorting.heading, is_number=True) for sorting in SORTINGS[1:]),
]


class View:
    def __init__(self) -> None:
        self.is_over = False
        self.frame: Frame | None = None
        self._sorting = BUSIEST
        self._is_reversed = False
        self._first = 0
        """How many queues are scrolled off at the top."""
        self._rows_max = 1
        self._is_helping = False
        self._away_since_s: float | None = None

    def show(self, frame: Frame) -> None:
        self.frame = frame
        self._away_since_s = None

    def went_away(self, now_s: float) -> None:
        """The connection to the broker is lost."""
        if self._away_since_s is None:
            self._away_since_s = now_s

    def press(self, key: str) -> None:
        if key in ("q", "Q"):
            self.is_over = True
        elif self._is_helping:
            self._is_helping = False
        elif key in ("?", "h"):
            self._is_helping = True
        elif key in ("s", ">", "right"):
            self._sort_by(1)
        elif key in ("<", "left"):
            self._sort_by(-1)
        elif key == "r":
            self._is_reversed = not self._is_reversed
        elif key == "b":
            self._sorting, self._is_reversed = BUSIEST, False
        else:
            self._scroll(key)

    def _sort_by(self, step: int) -> None:
        """Sort by the next or previous column; `BUSIEST` comes between the last and the first."""
        around = [BUSIEST, *SORTINGS]
        self._sorting = around[(around.index(self._sorting) + step) % len(around)]
        self._is_reversed = False
        self._first = 0

    def _scroll(self, key: str) -> None:
        total = 0 if self.frame is None else len(self.frame.queues)
        steps = {
            "up": -1,
            "k": -1,
            "down": 1,
            "j": 1,
            "page up": -self._rows_max,
            "page down": self._rows_max,
            " ": self._rows_max,
            "home": -total,
            "end": total,
        }
        self._first = max(0, min(self._first + steps.get(key, 0), total - self._rows_max))

    def content(self, width: int, height: int, now_s: float) -> RenderableType:
        """What to draw on a screen of this size."""
        from rich.console import Group
        from rich.text import Text

        if self._is_helping:
            return Text(HELP)
        if self.frame is None:
            return Text(self._state(now_s) or "Loading ...")
        self._rows_max = max(1, height - OTHER_LINES)
        self._first = max(0, min(self._first, len(self.frame.queues) - self._rows_max))
        shown = self.sorted()[self._first : self._first + self._rows_max]
        heading = Text(self.frame.heading, style="bold", no_wrap=True)
        state = self._state(now_s)
        last = Text(state, style="reverse", no_wrap=True) if state else Text(self._place(len(shown)), no_wrap=True)
        return Group(heading, drawn(self._columns(), [row(*each) for each in shown], width), last)

    def sorted(self) -> list[tuple[QueueStats, Rates]]:
        """The queues in order; equal ones by name."""
        assert self.frame is not None
        by_name = sorted(self.frame.queues, key=lambda each: each[0].queue)
        return sorted(by_name, key=lambda each: self._sorting.key(*each), reverse=self._is_reversed)

    def _columns(self) -> list[Column]:
        return [
            column._replace(heading=f"{column.heading} {'▲' if self._is_reversed else '▼'}")
            if column.heading == self._sorting.heading
            else column
            for column in COLUMNS
        ]

    def _place(self, shown: int) -> str:
        assert self.frame is not None
        order = self._sorting.heading if self._sorting is BUSIEST else f"by {self._sorting.heading}"
        if self._is_reversed:
            order += ", reversed"
        total = len(self.frame.queues)
        part = f"{self._first + 1:,} to {self._first + shown:,} of {count(total, 'queue')}, " if shown < total else ""
        return f"{part}{order}. {KEYS}"

    def _state(self, now_s: float) -> str:
        """A message while there is no connection."""
        if self._away_since_s is None:
            return ""
        away = shown_duration((now_s - self._away_since_s) * 1000 // 1000 * 1000)
        return f"NO CONNECTION to the broker for {away}: trying again. The figures are from before. {KEYS}"


def row(stats: QueueStats, rates: Rates) -> Row:
    return [
        stats.queue,
        "paused" if stats.is_paused else "",
        stats.ready,
        stats.in_flight,
        stats.scheduled,
        stats.dead,
        *map(_shown_rate, (rates.published, rates.delivered, rates.failed)),
        shown_duration(stats.oldest_age_ms) if stats.ready else None,
        stats.consumers,
    ]


def _shown_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"
