"""Pages with plots: nothing in them is cut off, and only long text is broken into lines."""

import re
from datetime import datetime
from typing import Any

import pytest

from smista.spark.pipelines import report
from smista.spark.pipelines.triage import page_of

AT = datetime(2026, 1, 31, 12, 0, 5)
LONG_NAME = "eu-west-1.production.customer-orders.incoming.high-priority.v2"
ERROR = "ConnectionError: <pool>(host='warehouse.example.com', port=443): " + "cannot be reached, " * 20


@pytest.mark.parametrize("top", [0.001, 1, 800, 12_345, 900_000, 40_000_000, 7e9, 3e12, 5e15])
@pytest.mark.parametrize("unit", ["", "/s", " s"])
def test_no_label_of_an_axis_is_cut_off(top: float, unit: str) -> None:
    drawn = report.chart("x", [report.Series("a", [(0, top), (60, top / 3)])], unit=unit)
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]*)</text>', drawn)
    values = [(float(x), label) for x, label in labels if ":" not in label]
    assert len(values) == report.TICKS + 1
    assert [label for x, label in values if x < len(label) * report.CHARACTER] == []
    # What is drawn begins where the labels end.
    starts = [float(x) for x in re.findall(r'<line x1="([\d.]+)"', drawn)]
    assert max(x for x, _ in values) < min(starts) < report.WIDTH / 3


def test_numbers_of_an_axis_are_brief() -> None:
    told = [report.brief(value) for value in (0, 0.25, 750, 9_999, 12_500, 2_500_000, 4e9, 3e12)]
    assert told == ["0", "0.25", "750", "9,999", "12.5k", "2.5M", "4G", "3T"]


def test_only_long_text_of_a_table_is_broken_into_lines() -> None:
    drawn = report.table(["queue", "first", "dead"], [["orders", AT, 3], [LONG_NAME, AT, 12]])
    assert re.findall(r'<div class="long">([^<]*)</div>', drawn) == [LONG_NAME]
    assert "td { white-space: nowrap; }" in report.STYLE
    assert re.search(r"td \.long \{[^}]*overflow-wrap: anywhere", report.STYLE)


def test_what_needs_the_whole_width_stands_below_its_row() -> None:
    drawn = report.table(["queue", "dead"], [["orders", 3]], [{"error": report.code(ERROR)}])
    assert drawn.count("<tr") == 3
    assert re.search(r'<td colspan="2"><dl class="below"><dt>error</dt><dd><code>ConnectionError: &lt;pool&gt;', drawn)


def test_a_chart_and_a_heading_fit_a_narrow_window() -> None:
    assert "minmax(min(440px, 100%), 1fr)" in report.STYLE
    # Not shrunk until nobody can read it: moved sideways.
    assert re.search(r"\.chart \{[^}]*overflow-x: auto", report.STYLE)
    assert re.search(r"\.chart svg \{ min-width: 440px; \}", report.STYLE)
    assert re.search(r"h2[^{]*\{[^}]*overflow-wrap: anywhere", report.STYLE)


def test_the_page_of_dead_letters_keeps_long_text_out_of_its_columns() -> None:
    row: dict[str, Any] = {
        "group": "08d075e33a1c",
        "queue": LONG_NAME,
        "dead": 1,
        "deaths": 2,
        "trend": "rising",
        "slices": [0, 1] * 12,
        "reason": "max_retries",
        "last_error": ERROR,
        "error": "ConnectionError: <n>",
        "shape": "{id: number}",
        "first_at": AT,
        "last_at": AT,
        "samples": ["01a1deaa-19cf-78bb-a138-000000000001", "01a1deaa-19cf-78bb-a138-000000000002"],
    }
    page = page_of([row, {**row, "last_error": ""}], group_count=2, place="the log")
    headings = re.findall(r"<th[^>]*>([^<]*)</th>", page)
    assert headings == ["group", "queue", "dead", "deaths", "trend", "when", "reason", "first", "last"]
    assert page.count('<dl class="below">') == 2
    assert page.count("ConnectionError: &lt;pool&gt;") == 1
    assert "<dd><code>ConnectionError: &lt;n&gt;</code></dd>" in page
    assert re.findall(r'<div class="long">([^<]*)</div>', page) == [LONG_NAME, LONG_NAME]
