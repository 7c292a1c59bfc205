"""Dead letters back to where they died, chosen from triage's table.

Spark chooses (by group, queue, time or header, the oldest first, at most `--cap`), and hands the ids to the broker a
thousand at a time, which sends them back as `smista dlq redrive` would: each message once, whoever asks twice. What was
asked is kept in an audit table, one row a message, with the run it belongs to:

    AUDIT/run=RUN/*.parquet     message, group, queue, when it was asked for, and how many of its thousand went

A message that is no dead letter any more, since it was redriven, purged or has expired meanwhile, is passed over.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from smista.spark.errors import WrongOption
from smista.spark.pipelines import functions as sql
from smista.spark.pipelines.command import Queues, Since, Until, main, pairs, pipeline
from smista.spark.pipelines.folder import local_path
from smista.spark.pipelines.rows import Source
from smista.spark.pipelines.run import Run, failures_explained
from smista.spark.pipelines.summary import Summary
from smista.spark.pipelines.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

AT_ONCE = 1_000
CAP = 10_000
SHOWN_MAX = 20
AUDITED = (
    "message_id string, group string, namespace string, queue string, lies_in string, died_at timestamp, "
    "asked_at timestamp, to_queue string, part int, asked int, redriven int"
)


@pipeline
def redrive(
    run: Run,
    *,
    triaged: Annotated[str, typer.Argument(metavar="FOLDER", help="What triage wrote.")],
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="GROUP", help="Of this group of triage's. Repeatable.")
    ] = None,
    queue: Queues = None,
    since: Since = None,
    until: Until = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="With this header. Repeatable.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All there are; said so because nothing else is.")] = False,
    to: Annotated[str | None, typer.Option("--to", metavar="QUEUE", help="To this queue, not where they died.")] = None,
    cap: Annotated[int, typer.Option("--cap", metavar="COUNT", min=1, help="At most so many, the oldest.")] = CAP,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="NUMBER", min=0.001, help="So many a second, not faster.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be sent.", show_default=False)
    ] = False,
    audit: Annotated[
        str | None, typer.Option("--audit", metavar="FOLDER", help="Where the audit goes; FOLDER/audit.")
    ] = None,
) -> Summary:
    """Send dead letters back, chosen from what triage found."""
    headers = pairs(header, "--header")
    if not (group or queue or headers or is_all) and since is None and until is None:
        raise WrongOption("Say which: --group, --queue, --since, --until or --header; or --all.")
    wanted = Source(queues=tuple(queue or ()), since_ms=since, until_ms=until)
    letters = Table(local_path(triaged) / "letters")
    if not letters.exists:
        raise WrongOption(f"There is no table of triage's in {triaged}; make one with `smista pipeline triage`.")
    run.must_reach_broker()
    chosen = choose(letters.read(run.spark), wanted, group or [], headers, cap)
    if run.namespace is not None:
        chosen = chosen.where(chosen.namespace == run.namespace)
    if dry_run:
        return _told(chosen, {"dry_run": True})
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"
    place = (local_path(triaged) / "audit" if audit is None else local_path(audit)) / f"run={name}"
    # One task, so that the rate is that of all; what it does is wait for the broker.
    ordered = chosen.coalesce(1).sortWithinPartitions("namespace", "lies_in", "died_at")
    sending = sender(run.endpoint, to, rate)
    with failures_explained():
        ordered.mapInArrow(sending, AUDITED).write.mode("errorifexists").parquet(str(place))
    asked = run.spark.read.schema(AUDITED).parquet(str(place))
    return _told(asked, {"dry_run": False, "audit": str(place)})


def choose(letters: DataFrame, wanted: Source, groups: list[str], headers: dict[str, str], cap: int) -> DataFrame:
    """The letters that fit, the oldest of them up to the cap; each message once."""
    chosen = wanted.only(letters).where(sql.col("message_id").isNotNull())
    if groups:
        chosen = chosen.where(sql.col("group").isin(groups))
    if wanted.since_ms is not None:
        chosen = chosen.where(sql.unix_millis("died_at") >= wanted.since_ms)
    if wanted.until_ms is not None:
        chosen = chosen.where(sql.unix_millis("died_at") < wanted.until_ms)
    for name, value in headers.items():
        chosen = chosen.where(sql.element_at("headers", sql.lit(name)) == value)
    columns = ["message_id", "group", "namespace", "queue", "lies_in", "died_at"]
    return chosen.dropDuplicates(["message_id", "lies_in"]).orderBy("died_at", "message_id").limit(cap).select(*columns)


def sender(
    endpoint: str | None, to: str | None, rate: float | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does: asks the broker for each thousand ids, and returns the audit rows."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from smista.client import Client

        numbers = itertools.count(1)
        at_once = AT_ONCE if rate is None else max(1, min(AT_ONCE, round(rate)))
        clients: dict[str, Client] = {}
        try:
            for part in _parts(batches, at_once):
                namespace, lies_in = part["namespace"][0].as_py(), part["lies_in"][0].as_py()
                client = clients.get(namespace) or clients.setdefault(namespace, Client(endpoint, namespace=namespace))
                asked_at = datetime.now(UTC)
                ids = part["message_id"].to_pylist()
                redriven = client.redrive(lies_in, message_ids=ids, to=to, per_second=rate)
                yield _audited(part, asked_at, to, next(numbers), redriven)
        finally:
            for client in clients.values():
                client.close()

    return send


def _parts(batches: Iterator[pa.RecordBatch], at_once: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, cut where the queue changes and after so many."""
    for batch in batches:
        start = 0
        places = list(zip(batch["namespace"].to_pylist(), batch["lies_in"].to_pylist(), strict=True))
        for _, run in itertools.groupby(places):
            count = sum(1 for _ in run)
            for offset in range(0, count, at_once):
                yield batch.slice(start + offset, min(at_once, count - offset))
            start += count


def _audited(part: pa.RecordBatch, asked_at: datetime, to: str | None, number: int, redriven: int) -> pa.RecordBatch:
    import pyarrow as pa

    count = part.num_rows
    columns = [
        *(part[name] for name in ("message_id", "group", "namespace", "queue", "lies_in", "died_at")),
        pa.array([asked_at] * count, pa.timestamp("us", tz="UTC")),
        pa.array([to] * count, pa.string()),
        *(pa.array([value] * count, pa.int32()) for value in (number, count, redriven)),
    ]
    return pa.RecordBatch.from_arrays(columns, names=[each.split()[0] for each in AUDITED.split(", ")])


def _told(chosen: DataFrame, facts: dict[str, object]) -> Summary:
    found = chosen.persist()
    try:
        asked = found.count()
        rows = found.groupBy("group", "queue", "lies_in").agg(sql.count(sql.lit(1)).alias("messages"))
        shown = [row.asDict() for row in rows.orderBy(sql.desc("messages"), "group").limit(SHOWN_MAX).collect()]
        told: dict[str, object] = {"pipeline": "redrive", "chosen": asked, **facts}
        if "redriven" in found.columns:
            parts = found.select("part", "asked", "redriven").distinct()
            [sums] = parts.agg(sql.sum("redriven").alias("redriven")).collect()
            told["redriven"] = sums["redriven"] or 0
            told["passed_over"] = asked - (sums["redriven"] or 0)
    finally:
        found.unpersist()
    return Summary(told, shown)


if __name__ == "__main__":
    main(redrive)
