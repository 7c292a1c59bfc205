"""Options are read, or refused by name with what would be right. No Spark is started."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from smista.spark import columns
from smista.spark.errors import WrongColumns, WrongOption
from smista.spark.heartbeat import is_dead, new_session
from smista.spark.options import _ROLES, Given
from smista.spark.source import SmistaSource

CONSUMING = {"mode": "consume", "queue": "orders", "consumer": "spark"}


def test_names_are_read_in_any_case() -> None:
    reading = Given({"QUEUE": "orders, mail-*", "maxrowspertrigger": "7"}).log_reading(is_stream=True)
    assert reading.queues == ("orders", "mail-*")
    assert reading.limits.max_rows == 7


@pytest.mark.parametrize(
    ("text", "instant_ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1234", 1234),
        ("1970-01-02", 86_400_000),
    ],
)
def test_an_instant_is_written_as_people_do(text: str, instant_ms: int) -> None:
    assert Given({"startingTimestamp": text}).log_reading(is_stream=False).start_at_ms == instant_ms


@pytest.mark.parametrize(("text", "duration_ms"), [("250", 250), ("250ms", 250), ("30 s", 30_000), ("2h", 7_200_000)])
def test_a_duration_has_a_unit(text: str, duration_ms: int) -> None:
    assert Given({"maxTriggerDelay": text}).log_reading(is_stream=True).limits.delay_ms == duration_ms


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"startingOffset": "1"},
            r"Option startingoffset is not known for streaming the log\. Its options: .*starting",
        ),
        ({"endingOffsets": "1"}, "Option endingOffsets does not go with streaming the log"),
        (
            {"startingOffsets": "first"},
            "Option startingOffsets is 'first'; it is earliest, latest, a position of the log",
        ),
        ({"startingOffsets": '{"0": "first"}'}, "or one for each shard, as in"),
        ({"startingOffsets": '{"0": -1}'}, "or one for each shard, as in"),
        ({"startingOffsets": "[1]"}, "or one for each shard, as in"),
        ({"startingOffsets": "true"}, "or one for each shard, as in"),
        ({"startingTimestamp": "noon"}, "write 2026-01-31T12:00:00Z"),
        ({"startingOffsets": "1", "startingTimestamp": "1"}, "say the same thing twice"),
        ({"maxRowsPerTrigger": "0"}, "it is a whole number, 1 or more"),
        ({"maxRowsPerTrigger": "many"}, "it is a whole number"),
        ({"minRowsPerTrigger": "5", "maxRowsPerTrigger": "3"}, "minRowsPerTrigger is above maxRowsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "write milliseconds, or 500ms, 30s"),
        ({"includeBody": "maybe"}, "it is one of true, false"),
        ({"queue": " "}, "Option queue is empty"),
        ({"endpoint": "ftp://broker"}, "write it as http://127.0.0.1:9324"),
        ({"endpoint": "http://user:secret@broker"}, "write it as http://127.0.0.1:9324"),
    ],
)
def test_what_does_not_read_is_refused_by_name(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(WrongOption, match=sentence):
        Given(options).log_reading(is_stream=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"consumer": None}, "Mode consume needs option consumer"),
        ({"queue": None}, "Mode consume takes one queue by its name"),
        ({"queue": "orders-*"}, "Mode consume takes one queue by its name"),
        ({"queue": "one,two"}, "Mode consume takes one queue by its name"),
        ({"leaseMs": "10"}, "Option leaseMs is '10'; it is a whole number, 1000 or more"),
        ({"startingOffsets": "latest"}, "Option startingOffsets does not go with consuming a queue"),
    ],
)
def test_consuming_needs_a_queue_and_a_name(change: dict[str, str | None], sentence: str) -> None:
    options = {name: value for name, value in (CONSUMING | change).items() if value is not None}
    with pytest.raises(WrongOption, match=sentence):
        Given(options).consuming()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(WrongOption, match="it is one of log, consume"):
        SmistaSource({"mode": "tail"}).schema()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "needs option queue or option exchange"),
        ({"queue": "a", "exchange": "b"}, "one of them, not both"),
        ({"queue": "a", "jobId": "x"}, "jobId and batchId go together"),
        ({"queue": "a", "consumer": "x"}, "Option consumer does not go with publishing"),
    ],
)
def test_publishing_needs_a_place(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(WrongOption, match=sentence):
        Given(options).publishing()


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("broker", "http://broker:9324"),
        ("broker:80", "http://broker:80"),
        ("https://broker", "https://broker:443"),
        ("http://broker/queues/", "http://broker:9324/queues"),
        ("[::1]:5", "http://[::1]:5"),
    ],
)
def test_an_endpoint_is_written_as_people_do(given: str, endpoint: str) -> None:
    assert Given({"endpoint": given, "queue": "orders"}).publishing().server.endpoint == endpoint


@pytest.mark.parametrize("options", [{}, {"includeBody": "true"}, {"columns": "headers,at"}, CONSUMING])
def test_our_schema_is_the_one_spark_compares_with(options: dict[str, str]) -> None:
    schema = SmistaSource(options).schema()
    assert columns.to_arrow(schema) == to_arrow_schema(schema, timezone="UTC")


def test_columns_are_named_once_and_exist() -> None:
    with pytest.raises(WrongColumns, match="names a column twice"):
        SmistaSource({"columns": "at,at"}).schema()
    with pytest.raises(WrongColumns, match="names colour, which is not there"):
        SmistaSource({"columns": "at,colour"}).schema()


def test_a_batch_is_fitted_without_copying_what_fits() -> None:
    schema = columns.to_arrow(SmistaSource({"columns": "kind,position"}).schema())
    given = pa.record_batch(
        [pa.array([1, 2], pa.int64()), pa.array(["a", "b"], pa.string())],
        schema=pa.schema([pa.field("position", pa.int64(), nullable=False), pa.field("kind", pa.string())]),
    )
    fitted = columns.fit(given, schema)
    assert fitted.schema == schema
    assert fitted.to_pydict() == {"kind": ["a", "b"], "position": [1, 2]}


@pytest.mark.parametrize("options", [{}, CONSUMING])
def test_a_reader_can_be_sent_to_executors(options: dict[str, str]) -> None:
    source = SmistaSource(options)
    reader: Any = source.streamReader(source.schema())
    assert type(pickle.loads(pickle.dumps(reader))) is type(reader)


def test_every_option_and_column_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/spark.md").read_text()
    names = {name for role in _ROLES.values() for name in role} | set(columns.CLAIMED) | set(columns.PUBLISHED)
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_a_session_is_known_to_be_dead_with_its_process() -> None:
    program = "from smista.spark.heartbeat import new_session; print(new_session())"
    dead = subprocess.check_output([sys.executable, "-c", program], text=True).strip()
    assert is_dead(dead) == sys.platform.startswith("linux")
    assert not is_dead(new_session())
    host, processes, pid, random = dead.rsplit(".", 3)
    assert not is_dead(f"{host}.{processes[::-1]}.{pid}.{random}")
    assert not is_dead("by hand")
