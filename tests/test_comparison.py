"""What the benchmarks measure with, and what they make of it."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import msgspec
import pytest

from bench.comparison import page, tables
from bench.comparison.report import Peer, Rate, Report, drift
from bench.machine import cpu_s, family
from bench.scenarios import Backlog, Sample
from bench.shapes import Chunk, Ids, age_s, alike, encoded, own


def encode(body: bytes, ids: Ids | None) -> bytes:
    head = b"" if ids is None else f"{ids.message_id} {ids.correlation_id} ".encode()
    return head + b"%d:" % len(body) + body + b"\n"


def test_no_two_messages_with_ids_of_their_own_have_the_same() -> None:
    chunk = Chunk(50, b"".join(encoded(own(100), 50, encode)))
    lines = (chunk.renewed(1.0) + chunk.renewed(1.0)).splitlines()
    ids = [word for line in lines for word in line.split()[:2]]
    assert len(set(ids)) == 4 * 50
    assert all(re.fullmatch(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", word) for word in ids)


def test_sizes_vary_about_the_one_that_is_named() -> None:
    sizes = {len(body) for body in own(100).bodies(500)}
    assert (min(sizes), max(sizes)) == (50, 150)
    assert {len(body) for body in alike(100).bodies(500)} == {100}


def test_a_body_says_how_old_it_is() -> None:
    data = Chunk(1, b"".join(encoded(alike(100), 1, encode))).renewed(12.5)
    assert age_s(data, data.index(b":") + 1, 13.0) == pytest.approx(0.5)


def test_a_message_whose_mark_is_lost_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no mark"):
        Chunk(2, b"".join(encoded(alike(100), 1, encode)))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="what is counted is told by Linux")
def test_what_a_process_has_used_counts_threads_that_have_ended() -> None:
    before_s, own_s = cpu_s(family(os.getpid())[:1]), time.process_time()

    def work() -> None:
        while time.thread_time() < 0.05:  # of the processor, however long that takes
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    used_s = time.process_time() - own_s
    assert used_s >= 0.05
    # The kernel tells it in ticks once a thread has ended.
    assert cpu_s([os.getpid()]) - before_s >= used_s - 2 / os.sysconf("SC_CLK_TCK")


REPORT = Report(
    "a machine",
    "a day",
    "abc",
    "python -m bench peers",
    [Peer("smista", "1", "synced", 1), Peer("<other>", "2", "none", 4)],
    rates={
        "own, 100 B": {
            "smista": [Rate(3.0, 1.0, {}, {}), Rate(1.0, 2.0, {}, {}), Rate(2.0, 3.0, {}, {})],
            "<other>": [],
        }
    },
    latencies={"1,000 a second": {"smista": [Rate(3.0, 1.0, {"p50": 0.5}, {"p50": 0.25})]}},
    backlogs={"smista": [Backlog(10, 5.0, 250.0, 0.5, 6.0)]},
    soaks={"smista": [Sample(float(at), 100.0 - at, 2.0, 1_000 + 10 * at) for at in range(60)]},
)


def test_a_table_shows_the_middle_of_the_runs_with_their_range() -> None:
    text = tables.markdown(REPORT)
    assert "| smista | 2 (1 to 3) | 2.0 (1.0 to 3.0) |" in text
    assert "| <other> | - | - |" in text


def test_drift_compares_the_end_of_a_soak_with_its_beginning() -> None:
    found = drift(REPORT.soaks["smista"])
    assert found is not None
    assert found.rate < 1 == found.p99 < found.memory
    assert drift([]) is None


def test_tables_are_put_between_the_marks_of_a_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    tables.write(REPORT, path)
    first = path.read_text()
    tables.write(REPORT, path)
    assert path.read_text() == first
    assert first.startswith("before\n")
    assert first.endswith("\nafter\n")
    assert "old" not in first
    assert "2 (1 to 3)" in first


def test_the_page_of_benchmarks_has_the_marks() -> None:
    text = (Path(__file__).parent.parent / "docs/benchmarks.md").read_text()
    assert text.index(tables.BEGIN) < text.index(tables.END)


def test_the_page_with_plots_loads_nothing_and_escapes_names() -> None:
    text = page.page(REPORT)
    assert not re.search(r"(src|href)=|url\(|@import|https?://", text)
    assert "<other>" not in text
    assert text.count("<svg") == text.count("</svg>") > 3


def test_a_report_is_the_same_after_it_was_kept() -> None:
    assert msgspec.json.decode(msgspec.json.encode(REPORT), type=Report) == REPORT
