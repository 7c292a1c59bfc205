"""`top` at a terminal: keys, the order and the part that is shown, a broker that goes away, and what is left behind."""

from __future__ import annotations

import io
import signal

import pytest
from rich.console import Console

from smista import Client
from smista.cli.keys import read_keys
from smista.cli.top_view import SORTINGS, Frame, Rates, View
from smista.client import BrokerInfo, QueueStats
from tests.cli.terminal import Terminal
from tests.server_process import ServerProcess

INFO = BrokerInfo(version="1", namespaces=["/"], queues=3, messages=6, log_bytes=0, now_ms=0)


def stats(name: str, **values: int) -> QueueStats:
    fields = dict.fromkeys(QueueStats.__struct_fields__, 0)
    return QueueStats(**{**fields, "queue": name, "is_paused": False, **values})  # type: ignore[arg-type]


def view_of(*queues: tuple[QueueStats, Rates]) -> View:
    view = View()
    view.show(Frame(INFO, list(queues)))
    return view


@pytest.fixture
def view() -> View:
    return view_of(
        (stats("a", ready=2, depth=2), Rates()),
        (stats("b", dead=7), Rates(published=5.0)),
        (stats("c", ready=9, depth=9), Rates()),
    )


def names(view: View) -> list[str]:
    return [each.queue for each, _ in view.sorted()]


def drawn(view: View, *, height: int = 24, now_s: float = 0.0) -> list[str]:
    console = Console(width=120, height=height, file=io.StringIO(), record=True)
    console.print(view.content(120, height, now_s))
    return [line.rstrip() for line in console.export_text().splitlines()]


def press(view: View, *keys: str) -> None:
    for key in keys:
        view.press(key)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_paused_queue_is_marked_on_a_screen_of_any_width(width: int) -> None:
    view = view_of((stats("orders-of-today", ready=2), Rates()), (stats("parcels", is_paused=True), Rates()))
    console = Console(width=width, height=24, file=io.StringIO(), record=True)
    console.print(view.content(width, 24, 0.0))
    marked = [line.split()[:2] for line in console.export_text().splitlines() if "paused" in line]
    assert marked == [["parcels", "paused"]]


def test_keys_are_read_by_their_names() -> None:
    assert read_keys(b"q?\x1b[A\x1bOB\x1b[5~\x1b[6~ \x1b[H\x1b[F\x1b[1;5C\x1b") == [
        *("q", "?", "up", "down", "page up", "page down", " ", "home", "end", "escape")
    ]
    assert read_keys(b"\xff\xc3\xa8") == ["è"]


def test_the_busiest_come_first_until_somebody_sorts(view: View) -> None:
    assert names(view) == ["b", "c", "a"]
    press(view, "s")
    assert names(view) == ["a", "b", "c"]
    assert drawn(view)[1].startswith("queue ▼")
    press(view, ">")
    assert (names(view), "ready ▼" in drawn(view)[1]) == (["c", "a", "b"], True)
    press(view, "r")
    assert (names(view), "ready ▲" in drawn(view)[1]) == (["b", "a", "c"], True)
    press(view, "<", "<", "<")
    assert "consumers ▼" in drawn(view)[1]
    press(view, "b")
    assert (names(view), drawn(view)[-1]) == (["b", "c", "a"], "busiest first. q quits, ? helps")


def test_every_column_can_be_sorted_by(view: View) -> None:
    for sorting in SORTINGS:
        press(view, "right")
        assert f"by {sorting.heading}." in drawn(view)[-1]
        assert len(names(view)) == 3
    press(view, "right")
    assert "busiest first" in drawn(view)[-1]


def test_what_has_no_room_is_scrolled_to() -> None:
    view = view_of(*((stats(f"q{number:02}"), Rates()) for number in range(50)))

    def shown() -> tuple[str, str, str]:
        _, _, first, *_, last, foot = drawn(view, height=13)
        return first.split()[0], last.split()[0], foot.split(",")[0]

    assert shown() == ("q00", "q09", "1 to 10 of 50 queues")
    press(view, "down", "j", "up")
    assert shown()[0] == "q01"
    press(view, "page down", " ")
    assert shown()[:2] == ("q21", "q30")
    press(view, "end")
    assert shown() == ("q40", "q49", "41 to 50 of 50 queues")
    press(view, "down", "page up")
    assert shown()[0] == "q30"
    press(view, "home", "up")
    assert shown()[0] == "q00"
    press(view, "end")
    view.show(Frame(INFO, [(stats("only"), Rates())]))
    assert drawn(view, height=13)[2].split()[0] == "only"


def test_help_is_shown_until_a_key_is_pressed(view: View) -> None:
    press(view, "?")
    assert drawn(view)[0] == "q            quit"
    assert all(len(line) < 121 for line in drawn(view))
    press(view, "s")
    assert names(view) == ["b", "c", "a"], "the key only leaves the help"
    press(view, "h", "q")
    assert view.is_over


def test_a_broker_that_is_away_is_reported_and_the_last_figures_stay(view: View) -> None:
    view.went_away(100.0)
    view.went_away(103.0)
    *table, last = drawn(view, now_s=107.4)
    assert last.startswith("NO CONNECTION to the broker for 7s: trying again.")
    assert table[2].split()[0] == "b"
    view.show(Frame(INFO, []))
    assert "NO CONNECTION" not in "\n".join(drawn(view, now_s=107.4))


# -- at a terminal ----------------------------------------------------------------------------------------------------


def test_q_quits_and_the_terminal_is_as_before(url: str, queue: str) -> None:
    with Terminal("--url", url, "top", queue, "-i", "50ms") as terminal:
        terminal.until(queue)
        terminal.press("s")
        terminal.until("by queue")
        terminal.press("?")
        terminal.until("sort by the next column")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.is_given_back


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_before(url: str, queue: str, number: signal.Signals) -> None:
    with Terminal("--url", url, "top", queue, "-i", "50ms") as terminal:
        terminal.until(queue)
        terminal.signal(number)
        terminal.signal(number)
        assert terminal.end() in (130, -number)
        assert terminal.is_given_back


@pytest.mark.slow
def test_a_broker_that_goes_away_is_waited_for() -> None:
    with ServerProcess() as server:
        with Client(server.url) as client:
            client.declare_queue("orders")
        with Terminal("--url", server.url, "top", "-i", "50ms") as terminal:
            terminal.until("orders")
            server.kill()
            terminal.until("NO CONNECTION to the broker")
            assert "orders" in terminal.screen
            server.restart()
            terminal.until("0 queues")
            assert "NO CONNECTION" not in terminal.screen
            terminal.press("q")
            assert terminal.end() == 0
            assert terminal.is_given_back
