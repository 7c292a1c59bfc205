"""How durations, instants, texts and tables are read and written: no process, no broker."""

import pytest
import typer

from smista.cli.table import Column, aligned, drawn
from smista.command_line import duration_ms, future_ms, past_ms
from smista.durations import shown_duration
from smista.text import count, preview, safe, shown_bytes


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("30", 30_000),
        ("0", 0),
        ("1.5", 1_500),
        (".5s", 500),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1W", 604_800_000),
        (" 1s ", 1_000),
        ("5 m", 300_000),
    ],
)
def test_a_duration_is_read(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "-1", "1y", "1h 30m", "1e3", "nan", "inf", "1,5", "999999999999w", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration_ms(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (3_249, "3.2s"),
        (60_000, "1m"),
        (252_000, "4m12s"),
        (90_000_000, "1d1h"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(ms: int, text: str) -> None:
    assert shown_duration(ms) == text


def test_an_instant_is_a_date_or_so_long_ago() -> None:
    for read in (past_ms, future_ms):
        assert read("2026-01-31T12:00:00+00:00") == 1_769_860_800_000
    assert past_ms("2h") < past_ms("1h") < future_ms("1h") < future_ms("2h")
    with pytest.raises(typer.BadParameter):
        past_ms("yesterday")


def test_text_is_shown_without_what_cannot_be_printed() -> None:
    assert safe("plain ü") == "plain ü"
    assert safe("\x1b[2J\n\u202e") == r"\x1b[2J\n\u202e"


def test_a_preview_is_short_and_on_one_line() -> None:
    assert preview(b"two\npizzas") == r"two\npizzas"
    assert preview("ü".encode() * 1_000, 10) == "ü" * 9 + "…"
    assert preview(b"\xff\xfe") == "(2 bytes)"
    assert preview(None) == "(lost)"


def test_counts_and_sizes() -> None:
    assert [count(number, "message") for number in (0, 1, 2_000)] == ["0 messages", "1 message", "2,000 messages"]
    assert [shown_bytes(size) for size in (0, 1_023, 1_536, 1 << 30)] == ["0 B", "1023 B", "1.5 KiB", "1.0 GiB"]


COLUMNS = [Column("name"), Column("count", is_number=True), Column("text", is_flexible=True)]


def test_columns_are_aligned_without_padding_at_the_end() -> None:
    assert aligned(COLUMNS, [["a", 1_000, None], ["bb", 2, True]]) == [
        "name  count  text",
        "a     1,000  -",
        "bb        2  yes",
    ]


def test_a_narrow_table_is_cut_in_its_flexible_columns_and_then_loses_its_last() -> None:
    from rich.console import Console

    def lines(room: int) -> list[str]:
        console = Console(width=room, no_color=True, force_terminal=False)
        with console.capture() as capture:
            console.print(drawn(COLUMNS, [["a name", 1_000, "x" * 50]], room))
        return [line.rstrip() for line in capture.get().splitlines()]

    assert lines(80)[1] == "a name  1,000  " + "x" * 50
    assert lines(30)[1] == "a name  1,000  " + "x" * 14 + "…"
    assert lines(14)[1] == "a name  1,000"
