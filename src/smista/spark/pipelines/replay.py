"""Archived messages published again: those of a window of time and a predicate, into a queue or an exchange.

A replay has a name, and publishes each archived message once under it, however often it is run. What belongs to a run
is written down before it is published, and published under that name and the run's number, which the broker takes once:

    ARCHIVE/replays/NAME/part=N/*.parquet     the messages of run N
    ARCHIVE/replays/NAME/part=N.json          they are complete; what follows publishes just these
    ARCHIVE/replays/NAME/part=N.done.json     they are published

    killed ...                     the next run under this name ...
    before part=N.json             chooses and writes them anew
    after it                       publishes part N, which the broker does not do twice, and goes on
    after part=N.done.json         publishes what has come into the archive since, as part N + 1

The predicate is SQL over the columns of the log, and over `text` and `json`: the body as text, and parsed, so
`json:amount::double > 100` or `queue = 'orders' and headers['colour'] = 'red'` can be written.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smista.command_line import switch
from smista.spark.errors import WrongOption
from smista.spark.pipelines import functions as sql
from smista.spark.pipelines.command import Queues, Since, Through, To, Until, main, pipeline, target_of
from smista.spark.pipelines.folder import alone_in, write_whole
from smista.spark.pipelines.manifests import Archive
from smista.spark.pipelines.rows import Source
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MESSAGES = (
    "message_id string, at timestamp, priority int, routing_key string, `group` string, ttl_ms bigint, "
    "max_retries bigint, properties binary, body binary"
)


@pipeline
def replay(
    run: Run,
    *,
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="The archive's folder.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="The replay's name: once under it, never twice.")],
    to: To = None,
    exchange: Through = None,
    queue: Queues = None,
    since: Since = None,
    until: Until = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only messages of which this is true.")] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0.001, help="So many a second become ready.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0.001, help="In their own rhythm, so much faster.")
    ] = None,
    dry_run: Annotated[bool, switch("--dry-run", help="Only count them.")] = False,
) -> Summary:
    """Publish archived messages again, each once, however often it is run."""
    target = target_of(to, exchange)
    if rate is not None and speed is not None:
        raise WrongOption("--rate and --speed are two ways to pace; choose one.")
    if not NAME.fullmatch(name):
        raise WrongOption(f"{name!r} is no name for a replay: letters, digits, dots, dashes, up to 64.")
    place = Archive(archive)
    if not place.contents().has_bodies:
        raise WrongOption(
            f"{place.path} was archived without bodies (--no-bodies), so nothing can be replayed from it."
        )
    wanted = Source(archive, tuple(queue or ()), since, until)
    ledger = Ledger(place.path / "replays" / name)
    if not dry_run:
        run.must_find(target)
    wanted.check_queues(run)
    if dry_run:
        rows = place.rows(run.spark, wanted.queues, since, until)
        count = ledger.without_published(run, choose(rows, where)).dropDuplicates(["message_id"]).count()
        return Summary({"pipeline": "replay", "name": name, "would_publish": count, "dry_run": True})
    with alone_in(ledger.path, "the replay"):
        ledger.must_lead_to(target)

        def once() -> Summary:
            published = 0
            for left in ledger.unpublished():
                published += ledger.publish(run, left, target, rate, speed)
            rows = place.rows(run.spark, wanted.queues, since, until)
            part = ledger.write(ledger.without_published(run, choose(rows, where)))
            if part is not None:
                published += ledger.publish(run, part, target, rate, speed)
            return Summary({"pipeline": "replay", "name": name, "published": published, **target})

        return run.repeat(once)


def choose(rows: DataFrame, where: str | None) -> DataFrame:
    """The messages that were published in these rows and fit the predicate."""
    published = rows.where((sql.col("kind") == "enqueued") & sql.col("body").isNotNull())
    if where is not None:
        published = (
            published.withColumn("text", sql.decode("body", "UTF-8"))
            .withColumn("json", sql.try_parse_json(sql.col("text")))
            .where(where)
        )
    names = [part.split()[0].strip("`") for part in re.split(r", (?=\S+ )", MESSAGES)]
    return published.select(*names)


class Ledger:
    """What was published under a replay's name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def must_lead_to(self, target: dict[str, str]) -> None:
        """A name stands for one target: what it has published is not looked for elsewhere."""
        place = self.path / "target.json"
        if not place.exists():
            write_whole(place, json.dumps(target).encode())
        elif (before := json.loads(place.read_text())) != target:
            raise WrongOption(f"This replay leads to {before}, and not to {target}; give the new one another --name.")

    def _parts(self, ending: str) -> list[int]:
        found = (re.fullmatch(rf"part=(\d+){re.escape(ending)}", path.name) for path in self.path.glob("part=*"))
        return sorted(int(each[1]) for each in found if each)

    def unpublished(self) -> list[int]:
        return sorted(set(self._parts(".json")) - set(self._parts(".done.json")))

    def _folder(self, part: int) -> str:
        return str(self.path / f"part={part}")

    def without_published(self, run: Run, chosen: DataFrame) -> DataFrame:
        parts = self._parts(".json")
        if not parts:
            return chosen
        before = run.spark.read.schema(MESSAGES).parquet(*map(self._folder, parts)).select("message_id")
        return chosen.join(before, "message_id", "left_anti").select(*chosen.columns)

    def write(self, messages: DataFrame) -> int | None:
        """The messages as the next part; None where there are none."""
        from pyspark.sql import Observation

        part = max(self._parts(".json"), default=0) + 1
        seen = Observation()
        counted = messages.dropDuplicates(["message_id"]).observe(seen, sql.count(sql.lit(1)).alias("count"))
        counted.write.mode("overwrite").option("compression", "zstd").parquet(self._folder(part))
        count = seen.get["count"]
        if not count:
            return None
        write_whole(self.path / f"part={part}.json", json.dumps({"messages": count}).encode())
        return part

    def publish(self, run: Run, part: int, target: dict[str, str], rate: float | None, speed: float | None) -> int:
        messages = run.spark.read.schema(MESSAGES).parquet(self._folder(part))
        # The path and the target as well: the same name may be used in another archive.
        job = hashlib.sha256(f"{self.path}\0{target}".encode()).hexdigest()[:32]
        options = {**run.broker_options, **target, "jobId": f"replay-{job}", "batchId": str(part)}
        paced(messages, self.path.name, rate, speed).write.format("smista").mode("append").options(**options).save()
        write_whole(self.path / f"part={part}.done.json", b"{}")
        count: int = json.loads((self.path / f"part={part}.json").read_text())["messages"]
        run.on_progress(f"part {part}: {count:,} messages published")
        return count


def paced(messages: DataFrame, name: str, rate: float | None, speed: float | None) -> DataFrame:
    """As the sink takes them: with an id under which the queue takes them once, and a delay where they are paced."""
    from pyspark.sql import Window

    columns: list[Column | str] = [
        "body",
        sql.concat(sql.lit(f"replay:{name}:"), "message_id").alias("id"),
        "properties",
        "routing_key",
        "group",
        "priority",
        "ttl_ms",
        "max_retries",
    ]
    if rate is not None:
        place = sql.row_number().over(Window.orderBy("at", "message_id")) - 1
        columns.append((place * 1000 / rate).cast("bigint").alias("delay_ms"))
    elif speed is not None:
        [edge] = messages.agg(sql.min(sql.unix_millis("at")).alias("first")).collect()
        columns.append(((sql.unix_millis("at") - sql.lit(edge["first"])) / speed).cast("bigint").alias("delay_ms"))
    return messages.orderBy("at", "message_id").select(*columns)


if __name__ == "__main__":
    main(replay)
