"""`/metrics` read back with Prometheus's own parser; and the page and the dashboard held against it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import smista
from smista.core.counters import QueueStats
from smista.core.settings import QueueSettings
from smista.engine import Broker, BrokerSettings, Publication
from smista.engine.measures import WAIT_MS
from smista.errors import TooManyRequests
from smista.log import MemoryLog
from smista.protocols.http import metrics
from smista.protocols.http.metrics import CONTENT_TYPE, render_parts
from smista.service.log_reading import BulkMeasures
from smista.service.principal import anyone
from smista.service.service import Service
from smista.service.session import Session
from tests.engine.bench import Bench, Consumer, MemoryPlace, SqlitePlace, turns, until

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/metrics.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy/grafana.json").read_text())
METRIC = re.compile(r"\b(?:smista|process)_\w+")


class Rendering:
    """What Prometheus makes of a rendering."""

    def __init__(self, text: bytes) -> None:
        families = list(text_string_to_metric_families(text.decode()))
        self.families: dict[str, Metric] = {exposed_name(family): family for family in families}
        assert len(self.families) == len(families), "the lines of a family do not stand together"
        self.samples = [sample for family in families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        [value] = [sample.value for sample in self.samples if sample.name == name and sample.labels == labels]
        return value

    def of_queue(self, name: str, queue: str = "orders", **labels: str) -> float:
        return self.value(name, namespace="/", queue=queue, **labels)

    def counts(self, name: str, **labels: str) -> dict[str, float]:
        """The cumulative counts of a histogram by their upper bound."""
        return {
            sample.labels["le"]: sample.value
            for sample in self.samples
            if sample.name == f"{name}_bucket" and sample.labels.items() >= labels.items()
        }

    @property
    def sample_names(self) -> set[str]:
        return {sample.name for sample in self.samples}


def exposed_name(family: Metric) -> str:
    """The parser takes `_total` off a counter's name."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def session_of(broker: Broker) -> Session:
    return Service(broker).session(anyone("http"))


async def read(broker: Broker) -> Rendering:
    return Rendering(b"".join(await render_parts(session_of(broker), BulkMeasures())))


@pytest.fixture
async def busy(tmp_path: Path) -> AsyncIterator[Bench]:
    """A broker with a disk, in whose queue "orders" of everything a little has happened."""
    bench = Bench(SqlitePlace(tmp_path / "data"))
    await bench.open()
    await bench.declare("orders", QueueSettings(max_depth=9))
    await bench.publish(*[b"0123456789"] * 8)
    await bench.publish(b"late", delay_ms=60_000)
    refused = await bench.broker.publishing.publish("orders", [Publication(b"too many")])
    assert isinstance(refused[0], Exception)
    first, second, third, fourth = await bench.broker.receiving.receive("orders", 4)
    await bench.acknowledge(first)
    await bench.broker.settling.release([second.receipt])
    await bench.broker.settling.nack([third.receipt], delay_ms=60_000)
    await bench.reject(fourth)
    await bench.broker.receiving.receive("orders", 2)
    await bench.broker.declaring.pause("orders")
    bench.broker.subscribing.subscribe("orders", Consumer().deliver)
    yield bench
    await bench.broker.close()


# -- queues -----------------------------------------------------------------------------------------------------------


async def test_the_states_of_a_queue_are_told_apart(busy: Bench) -> None:
    rendering = await read(busy.broker)
    found = {state: rendering.of_queue("smista_queue_messages", state=state) for state in metrics._STATES}
    assert found == {"ready": 3, "scheduled": 2, "in_flight": 2, "dead": 0}
    assert rendering.of_queue("smista_queue_messages", "orders_dlq", state="ready") == 1
    assert rendering.of_queue("smista_queue_depth") == 7


@pytest.mark.parametrize("total", [field for field in QueueStats.__struct_fields__ if field.endswith("_total")])
async def test_every_total_of_a_queue_is_a_counter(busy: Bench, total: str) -> None:
    rendering = await read(busy.broker)
    assert rendering.of_queue(f"smista_queue_{total}") == getattr(busy.broker.statistics.stats("orders"), total)
    assert rendering.families[f"smista_queue_{total}"].type == "counter"


async def test_the_totals_are_those_of_the_story(busy: Bench) -> None:
    rendering = await read(busy.broker)
    story = {"published": 9, "delivered": 6, "acknowledged": 1, "released": 1, "nacked": 2, "dead_lettered": 1}
    assert {name: rendering.of_queue(f"smista_queue_{name}_total") for name in story} == story


async def test_the_other_gauges_of_a_queue(busy: Bench) -> None:
    rendering = await read(busy.broker)
    assert rendering.of_queue("smista_queue_body_bytes") == 64
    assert rendering.of_queue("smista_queue_consumers") == 1
    assert rendering.of_queue("smista_queue_paused") == 1
    assert rendering.of_queue("smista_queue_paused", "orders_dlq") == 0
    busy.pass_time(20)
    age = (await read(busy.broker)).of_queue("smista_queue_oldest_message_age_seconds")
    assert 0.02 <= age <= busy.broker.statistics.stats("orders").oldest_age_ms / 1000


async def test_times_are_histograms_in_seconds(busy: Bench) -> None:
    await busy.declare("slow")
    started_at_ms = busy.broker.now_ms()
    await busy.publish(b"x", b"y", queue="slow")
    busy.pass_time(30)
    first, _ = await busy.broker.receiving.receive("slow", 2)
    busy.pass_time(60)
    await busy.acknowledge(first)
    longest = (busy.broker.now_ms() - started_at_ms) / 1000
    rendering = await read(busy.broker)
    for name, count, least in (("smista_queue_wait_seconds", 2, 0.03), ("smista_queue_processing_seconds", 1, 0.06)):
        counts = rendering.counts(name, queue="slow")
        assert [float(bound) for bound in counts] == [*(bound / 1000 for bound in WAIT_MS), float("inf")]
        assert list(counts.values()) == sorted(counts.values())
        assert (counts["0.01"], counts["+Inf"]) == (0, count)
        assert rendering.of_queue(f"{name}_count", "slow") == count
        assert count * least <= rendering.of_queue(f"{name}_sum", "slow") <= count * longest


async def test_buckets_count_everything_at_or_below_their_bound(busy: Bench) -> None:
    [orders] = [queue for queue in busy.broker.statistics.measures().queues if queue.stats.queue == "orders"]
    assert orders.wait_ms is not None
    rendering = await read(busy.broker)
    counts = list(rendering.counts("smista_queue_wait_seconds", queue="orders").values())
    assert counts == [sum(orders.wait_ms.counts[: index + 1]) for index in range(len(counts))]
    assert counts[-1] == 5, "six deliveries, one of them the second of its message"


async def test_a_queue_without_traffic_has_gauges_and_counters_and_no_histograms(busy: Bench) -> None:
    await busy.declare("idle")
    rendering = await read(busy.broker)
    names = {sample.name for sample in rendering.samples if sample.labels.get("queue") == "idle"}
    families = [family for family in metrics._FAMILIES if family.kind != "histogram"]
    assert names == {family.name for family in families}
    assert rendering.of_queue("smista_queue_published_total", "idle") == 0


@pytest.mark.parametrize(
    "name",
    ['quote"s', "back\\slash", "\\", '\\"', "\\n", "a b", "{x=y},", "# HELP", "é☃😀", "le='1'", "$queue", "x" * 255],
)
async def test_any_name_comes_through(name: str) -> None:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue(name, namespace=name)
        broker.publishing.submit(name, [Publication(b"x")], namespace=name).result()
        await broker.receiving.receive(name, namespace=name)
        rendering = await read(broker)
        assert rendering.value("smista_queue_delivered_total", namespace=name, queue=name) == 1
        assert rendering.counts("smista_queue_wait_seconds", namespace=name, queue=name)["+Inf"] == 1


# -- the broker -------------------------------------------------------------------------------------------------------


async def test_the_broker_tells_how_it_is(busy: Bench) -> None:
    poll = asyncio.create_task(busy.broker.receiving.receive("orders", wait_ms=20_000))
    await turns()
    rendering = await read(busy.broker)
    assert rendering.value("smista_build_info", version=smista.__version__) == 1
    assert rendering.value("smista_queues") == 2
    assert rendering.value("smista_subscriptions") == 1
    assert rendering.value("smista_long_polls") == 1
    assert rendering.value("smista_broker_stopped") == 0
    assert rendering.value("smista_body_memory_bytes") == 64 + 10
    assert rendering.value("smista_memory_bytes") > 1 << 20
    assert 0 < rendering.value("smista_uptime_seconds") < 60
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)


async def test_the_log_tells_how_it_is(busy: Bench) -> None:
    rendering, log = await read(busy.broker), busy.broker.statistics.measures().log
    blocks = rendering.value("smista_log_blocks_total")
    assert blocks == log.durable_position > 5
    assert rendering.value("smista_log_durable_position") == rendering.value("smista_log_sealed_position") == blocks
    assert rendering.value("smista_log_written_bytes_total") == rendering.value("smista_log_bytes") == log.kept_bytes
    assert rendering.value("smista_log_waiting_bytes") == rendering.value("smista_log_behind") == 0
    assert rendering.value("smista_disk_free_bytes") > 0
    for name in ("smista_log_sync_seconds", "smista_log_block_bytes"):
        assert rendering.counts(name)["+Inf"] == rendering.value(f"{name}_count") == blocks
    assert rendering.value("smista_log_block_bytes_sum") == log.kept_bytes
    assert rendering.value("smista_log_sync_seconds_sum") == log.sync_ms.total / 1000
    assert list(rendering.counts("smista_log_sync_seconds"))[:3] == ["0.0001", "0.00025", "0.0005"]


async def test_the_loops_lag_is_told_in_seconds(busy: Bench) -> None:
    await until(lambda: busy.broker.statistics.measures().lag_ms.count > 0)
    busy.broker.statistics.stop()
    rendering, lag_ms = await read(busy.broker), busy.broker.statistics.measures().lag_ms
    counts = rendering.counts("smista_event_loop_lag_seconds")
    assert (next(iter(counts)), counts["+Inf"]) == ("0.001", lag_ms.count)
    assert rendering.value("smista_event_loop_lag_seconds_sum") == lag_ms.total / 1000


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (BrokerSettings(disk_free_bytes_min=1 << 50, watch_interval_s=0.005), "low_disk"),
        (BrokerSettings(disk_free_bytes_min=0, memory_bytes_max=1, watch_interval_s=0.005), "low_memory"),
        (BrokerSettings(disk_free_bytes_min=0), None),
    ],
)
async def test_a_refusal_is_told_with_its_reason(settings: BrokerSettings, reason: str | None) -> None:
    bench = Bench(MemoryPlace(), settings)
    async with await bench.open() as broker:
        await bench.declare()
        if reason != "low_disk":
            await bench.publish(b"x")
        await until(lambda: (broker.intake.refusal is not None) == (reason is not None))
        rendering = await read(broker)
        for other in ("low_disk", "low_memory"):
            assert rendering.value("smista_publishing_refused", reason=other) == (other == reason)


async def test_a_broker_that_has_stopped_still_tells_so() -> None:
    place = MemoryPlace()
    bench = Bench(place)
    broker = await bench.open()
    await bench.declare()
    place.log.is_failing = True
    await asyncio.gather(bench.publish(b"x"), return_exceptions=True)
    rendering = await read(broker)
    assert rendering.value("smista_broker_stopped") == 1
    assert rendering.of_queue("smista_queue_depth") == 1
    await broker.close()
    assert (await read(broker)).value("smista_broker_stopped") == 1


async def test_a_broker_without_queues_or_a_disk_can_be_read() -> None:
    async with await Broker.open(MemoryLog()) as broker:
        rendering = await read(broker)
        assert rendering.value("smista_queues") == 0
        assert "smista_disk_free_bytes" not in rendering.families


def test_the_content_type_is_that_of_the_text_format() -> None:
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"


# -- many queues ------------------------------------------------------------------------------------------------------


async def test_reading_many_queues_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SLICE_S", 0.0)
    async with await Broker.open(MemoryLog()) as broker:
        await asyncio.gather(*(broker.declaring.declare_queue(f"queue {number}") for number in range(50)))
        reading = asyncio.create_task(read(broker))
        await turns(10)
        assert not reading.done()
        await broker.declaring.delete_queue("queue 49")
        rendering = await reading
        depths = [sample.labels["queue"] for sample in rendering.samples if sample.name == "smista_queue_depth"]
        assert depths == [f"queue {number}" for number in range(49)]


async def test_the_parts_together_are_the_whole(busy: Bench) -> None:
    parts = Rendering(b"".join(await render_parts(session_of(busy.broker), BulkMeasures())))
    assert parts.families.keys() == (await read(busy.broker)).families.keys()


# -- what others hold us to -------------------------------------------------------------------------------------------


def described() -> dict[str, tuple[str, set[str]]]:
    """Type and labels of every metric that the page explains."""
    found = {}
    for section in PAGE.split("\n## "):
        common = {"namespace", "queue"} if section.startswith("Of each queue") else set()
        for line in section.splitlines():
            if row := re.match(r"\| `(\w+)` \| (\w+) \| ([^|]*)\| [^|]+ \|$", line):
                found[row[1]] = (row[2], common | set(re.findall(r"`(\w+)`", row[3])))
    return found


async def test_the_page_explains_every_metric_with_its_type_and_labels_and_no_other(busy: Bench) -> None:
    rendering = await read(busy.broker)
    assert described() == {
        name: (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
        for name, family in rendering.families.items()
    }


async def test_the_expressions_of_the_page_use_metrics_that_exist(busy: Bench) -> None:
    expressions = "\n".join(re.findall(r"^```(?:promql|yaml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    used = set(METRIC.findall(expressions))
    assert len(used) > 10
    assert used - (await read(busy.broker)).sample_names == set()


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    queries = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    return queries + [target["expr"] for panel in panels() for target in panel["targets"]]


async def test_the_dashboard_uses_metrics_that_exist(busy: Bench) -> None:
    used = {name for expression in dashboard_expressions() for name in METRIC.findall(expression)}
    assert used - (await read(busy.broker)).sample_names == set()


async def test_the_dashboard_shows_every_metric_of_a_queue(busy: Bench) -> None:
    used = {name for expression in dashboard_expressions() for name in METRIC.findall(expression)}
    assert {family.name for family in metrics._FAMILIES} <= used | {name.removesuffix("_bucket") for name in used}


async def test_the_dashboard_selects_by_labels_that_exist(busy: Bench) -> None:
    rendering = await read(busy.broker)
    for expression in dashboard_expressions():
        for name, selectors in re.findall(r"(\w+)\{([^}]*)\}", expression):
            labels = {label for sample in rendering.samples if sample.name == name for label in sample.labels}
            # What Prometheus itself puts on every sample.
            assert set(re.findall(r"(\w+)=", selectors)) <= labels | {"instance"}, expression


def test_the_dashboard_asks_the_data_source_that_was_chosen() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "instance", "namespace", "queue"]
    assert variables["datasource"]["type"] == "datasource"
    for variable in ("instance", "namespace", "queue"):
        assert variables[variable]["datasource"] == chosen
    for panel in panels():
        assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])] == [chosen] * (
            1 + len(panel["targets"])
        )


def test_no_two_panels_of_the_dashboard_stand_in_one_place() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert max(cell[0] for cell in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))


# -- very many who ask ------------------------------------------------------------------------------------------------


async def test_whoever_asks_while_a_page_is_made_gets_the_same_one(
    busy: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SLICE_S", 0.0)
    shared = metrics.SharedPage()
    first, second = await asyncio.gather(*(shared.parts(session_of(busy.broker)) for _ in range(2)))
    assert first is second
    assert await shared.parts(session_of(busy.broker)) is not first


async def test_one_who_goes_does_not_take_the_page_from_the_others(
    busy: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SLICE_S", 0.0)
    shared = metrics.SharedPage()
    first = asyncio.ensure_future(shared.parts(session_of(busy.broker)))
    second = asyncio.ensure_future(shared.parts(session_of(busy.broker)))
    await turns(1)
    first.cancel()
    assert b"smista_queues" in b"".join(await second)


def test_only_so_many_are_answered_at_a_time() -> None:
    shared = metrics.SharedPage()
    with contextlib.ExitStack() as readers:
        for _ in range(metrics.READERS_MAX):
            readers.enter_context(shared.reading())
        with pytest.raises(TooManyRequests), shared.reading():
            pass
    with shared.reading():
        pass
