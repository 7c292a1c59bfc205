"""Dead letters back to where they died, chosen from triage's table.

Spark chooses (by group, queue, time or header, the oldest first, at most `--cap`), and the driver hands the ids to the
broker a thousand at a time, which sends them back as `smista dlq redrive` would: each message once, whoever asks twice.
What is asked is kept in an audit table, one row a message, with the run it belongs to:

    AUDIT/run=RUN/part-N.parquet     message, group, queue, when it was asked for, and how many of its thousand went

A part is written before the broker is asked, and again when it has answered. So what a run that was killed had asked
for is there too; `redriven` is null where nobody heard the answer.

A message that is no dead letter any more, since it was redriven, purged or has expired meanwhile, is passed over.
"""

from __future__ import annotations

import io
import itertools
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from smista.command_line import switch
from smista.spark.errors import WrongOption
from smista.spark.pipelines import functions as sql
from smista.spark.pipelines.command import Queues, Since, Until, main, pairs, pipeline
from smista.spark.pipelines.folder import local_path, write_whole
from smista.spark.pipelines.rows import Source
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary
from smista.spark.pipelines.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from smista.client import Client

AT_ONCE = 1_000
CAP = 10_000
SHOWN_MAX = 20


class DeadLetter(NamedTuple):
    """A dead letter of triage's table."""

    message_id: str
    group: str
    namespace: str
    queue: str
    lies_in: str
    died_at_ms: int


@pipeline
def redrive(
    run: Run,
    *,
    triaged: Annotated[str, typer.Argument(metavar="FOLDER", help="What triage wrote.")],
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="Of this group of triage's. Repeatable.")
    ] = None,
    queue: Queues = None,
    since: Since = None,
    until: Until = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="With this header. Repeatable.")
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="All there are. Needed where no other option says which.")
    ] = False,
    to: Annotated[str | None, typer.Option(metavar="QUEUE", help="To this queue, not where they died.")] = None,
    cap: Annotated[int, typer.Option(metavar="COUNT", min=1, help="At most so many, the oldest.")] = CAP,
    rate: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0.001, help="So many a second, not faster.")
    ] = None,
    dry_run: Annotated[bool, switch("--dry-run", help="Only print what would be sent.")] = False,
    audit: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where the audit goes; FOLDER/audit.")] = None,
) -> Summary:
    """Send dead letters back, chosen from what triage found."""
    headers = pairs(header, "--header")
    if not (group or queue or headers or is_all) and since is None and until is None:
        raise WrongOption("Say which: --group, --queue, --since, --until or --header; or --all.")
    wanted = Source(queues=tuple(queue or ()), since_ms=since, until_ms=until)
    dead_letters = Table(local_path(triaged) / "dead_letters")
    if not dead_letters.exists:
        raise WrongOption(f"There is no table of triage's in {triaged}; make one with `smista pipeline triage`.")
    run.must_reach_broker()
    wanted.check_queues(run)
    _check_groups(run, triaged, group or [])
    if dry_run:
        return _summary(chosen_from(run, dead_letters, wanted, group or [], headers, cap), {"dry_run": True})
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"
    audit_path = (local_path(triaged) / "audit" if audit is None else local_path(audit)) / f"run={name}"
    sender = Sender(run, Audit(audit_path), to, rate)

    def once() -> Summary:
        sender.send(chosen_from(run, dead_letters, wanted, group or [], headers, cap))
        facts = {"dry_run": False, "audit": str(audit_path), "redriven": sender.redriven}
        return _summary(sender.asked, {**facts, "passed_over": len(sender.asked) - sender.redriven})

    return run.repeat(once)


def _check_groups(run: Run, triaged: str, groups: list[str]) -> None:
    if not groups:
        return
    known = Table(local_path(triaged) / "groups").read(run.spark).where(sql.col("group").isin(groups))
    unknown = sorted(set(groups) - {row.group for row in known.select("group").collect()})
    if unknown:
        raise WrongOption(f"Triage knows no group {unknown[0]} in {triaged}; its report.html lists them.")


def chosen_from(
    run: Run, dead_letters: Table, wanted: Source, groups: list[str], headers: dict[str, str], cap: int
) -> list[DeadLetter]:
    """The dead letters to be sent back, by the place they lie in, the oldest first."""
    here = dead_letters.read(run.spark)
    if run.namespace is not None:
        here = here.where(sql.col("namespace") == run.namespace)
    chosen = choose(here, wanted, groups, headers, cap)
    rows = chosen.withColumn("died_at_ms", sql.unix_millis("died_at")).select(*DeadLetter._fields).collect()
    found = [DeadLetter(*row) for row in rows]
    return sorted(found, key=lambda one: (one.namespace, one.lies_in, one.died_at_ms, one.message_id))


def choose(dead_letters: DataFrame, wanted: Source, groups: list[str], headers: dict[str, str], cap: int) -> DataFrame:
    """The dead letters that fit, the oldest of them up to the cap; each message once."""
    chosen = wanted.only(dead_letters).where(sql.col("message_id").isNotNull())
    if groups:
        chosen = chosen.where(sql.col("group").isin(groups))
    if wanted.since_ms is not None:
        chosen = chosen.where(sql.unix_millis("died_at") >= wanted.since_ms)
    if wanted.until_ms is not None:
        chosen = chosen.where(sql.unix_millis("died_at") < wanted.until_ms)
    for name, value in headers.items():
        chosen = chosen.where(sql.element_at("headers", sql.lit(name)) == value)
    return chosen.dropDuplicates(["message_id", "lies_in"]).orderBy("died_at", "message_id").limit(cap)


class Sender:
    """Asks the broker for dead letters, a thousand at a time, and writes down what it asks for and what comes of it.

    It is here, in the driver, and not in a task: a task that fails is run again, and the broker, asked again for what
    it has sent back, would say that there was nothing to send.
    """

    def __init__(self, run: Run, audit: Audit, to: str | None, rate: float | None) -> None:
        self._run = run
        self._audit = audit
        self._to = to
        self._rate = rate
        self._at_once = AT_ONCE if rate is None else max(1, min(AT_ONCE, round(rate)))
        self.asked: list[DeadLetter] = []
        self.redriven = 0

    def send(self, dead_letters: list[DeadLetter]) -> None:
        """Those of the dead letters that were not asked for before."""
        before = set(self.asked)
        new = [one for one in dead_letters if one not in before]
        if self._to is not None:
            for namespace in {dead_letter.namespace for dead_letter in new}:
                self._run.must_find({"queue": self._to}, namespace)
        for namespace, there in itertools.groupby(new, key=lambda dead_letter: dead_letter.namespace):
            with self._run.client(namespace) as client:
                for lies_in, together in itertools.groupby(there, key=lambda dead_letter: dead_letter.lies_in):
                    left = list(together)
                    for start in range(0, len(left), self._at_once):
                        self._send(client, lies_in, left[start : start + self._at_once])

    def _send(self, client: Client, lies_in: str, part: list[DeadLetter]) -> None:
        asking = self._audit.asking(part, self._to)
        ids = [dead_letter.message_id for dead_letter in part]
        redriven = client.redrive(lies_in, message_ids=ids, to=self._to, per_second=self._rate)
        asking.answered(redriven)
        self.asked += part
        self.redriven += redriven


class Audit:
    """A folder with a file for each part, there before the broker is asked, and replaced when it has answered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count(1)

    def asking(self, dead_letters: list[DeadLetter], to: str | None) -> Asking:
        number = next(self._numbers)
        asking = Asking(self.path / f"part-{number:06}.parquet", number, dead_letters, datetime.now(UTC), to)
        asking.write(None)
        return asking


@dataclass(frozen=True, slots=True)
class Asking:
    path: Path
    number: int
    dead_letters: list[DeadLetter]
    asked_at: datetime
    to: str | None

    def answered(self, redriven: int) -> None:
        self.write(redriven)

    def write(self, redriven: int | None) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        instant, count = pa.timestamp("us", tz="UTC"), len(self.dead_letters)
        *texts, died_at_ms = zip(*self.dead_letters, strict=True)
        columns = {name: pa.array(values, pa.string()) for name, values in zip(DeadLetter._fields, texts, strict=False)}
        columns["died_at"] = pa.array([ms * 1000 for ms in died_at_ms], instant)
        columns["asked_at"] = pa.array([self.asked_at] * count, instant)
        columns["to_queue"] = pa.array([self.to] * count, pa.string())
        for name, value in (("part", self.number), ("asked", count), ("redriven", redriven)):
            columns[name] = pa.array([value] * count, pa.int32())
        content = io.BytesIO()
        parquet.write_table(pa.table(columns), content, compression="zstd")
        write_whole(self.path, content.getvalue())


def _summary(dead_letters: list[DeadLetter], facts: dict[str, object]) -> Summary:
    places = Counter((dead_letter.group, dead_letter.queue, dead_letter.lies_in) for dead_letter in dead_letters)
    most = sorted(places.items(), key=lambda each: (-each[1], each[0]))[:SHOWN_MAX]
    shown = [
        {"group": group, "queue": queue, "lies_in": lies_in, "messages": count}
        for (group, queue, lies_in), count in most
    ]
    return Summary({"pipeline": "redrive", "chosen": len(dead_letters), **facts}, shown)


if __name__ == "__main__":
    main(redrive)
