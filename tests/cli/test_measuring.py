"""`top` and `bench`."""

from tests.cli.conftest import Smista
from tests.cli.test_usage import on_a_terminal


def test_top_prints_one_frame(smista: Smista, queue: str) -> None:
    smista("put", queue, "x")
    heading, columns, row = smista("top", queue, "--once", "--interval", "50ms").out.splitlines()
    assert heading.startswith("smista ")
    assert columns.split()[0] == "queue"
    assert row.split()[:2] == [queue, "1"]


def test_top_tells_what_came_in_since_it_looked_last(smista: Smista, queue: str) -> None:
    smista("put", queue, "x", "--delay", "1h")
    [frame] = smista("top", queue, "--once", "--interval", "100ms", "--json").lines
    assert (frame["scheduled"], frame["published_per_s"], frame["delivered_per_s"]) == (1, 0.0, 0.0)
    assert (frame["acknowledged_per_s"], frame["failed_per_s"]) == (0.0, 0.0)
    assert not {name for name in frame if name.startswith("acked")}, "acknowledged, everywhere"


def test_top_is_a_live_view_on_a_terminal(url: str, queue: str) -> None:
    seen = on_a_terminal("--url", url, "top", queue, "-i", "100ms", interrupt_after=queue)
    assert "\x1b[?1049h" in seen  # the alternate screen
    assert queue in seen


def test_bench_prints_rates_and_percentiles_and_leaves_no_queue(smista: Smista, name: str) -> None:
    done = smista("bench", "-n", "300", "-c", "2", "-s", "10", "--queue", name, "--json")
    figures = done.json
    assert (figures["messages"], figures["size"], figures["concurrency"]) == (300, 10, 2)
    assert figures["publish_per_s"] > 0
    assert figures["consume_per_s"] > 0
    assert 0 < figures["confirm_ms"]["p50"] <= figures["confirm_ms"]["p99"] <= figures["confirm_ms"]["max"]
    assert 0 < figures["deliver_ms"]["p50"] <= figures["deliver_ms"]["max"]
    assert smista("queues", name, "--json").out == ""


def test_bench_does_not_touch_a_queue_that_is_there(smista: Smista, name: str) -> None:
    smista("put", name, "x", "--declare")
    done = smista("bench", "-n", "10", "--queue", name)
    assert (done.code, "exists already" in done.err) == (2, True)
    assert smista("stats", name, "--json").json["ready"] == 1


def test_bench_prints_a_table_for_people(smista: Smista) -> None:
    done = smista("bench", "-n", "20", "-c", "1")
    assert done.out.splitlines()[0] == "20 messages of 100 B over 1 connection"
    assert "consume and acknowledge" in done.out
