"""Mode `consume`: the query is a consumer of a queue, and what it has processed is acknowledged.

An offset is the number of a claim: a batch of messages that the broker has set aside for this consumer, frozen, under
a number. So a batch is read again and again as the same rows, until the query has it behind itself:

    latestOffset(n)        all up to claim n is in Spark's commit log: acknowledge it, and claim the next
    partitions(n, m)       claim m in slices; also of a process that knows nothing but these two numbers
    commit(m)              acknowledges as well; but Spark calls it only once there is a next batch, so the last
                           batch before a pause would stay in flight if it were the only place

While the query lives a thread renews its claims, so that the lease only matters when the driver is gone. If it does run
out, the messages go back to the queue and come again, and reading the claim is an error: never a short batch.

Every process of a query is a **session** of its consumer's name. The broker lets one session at a time use a name, so
that a second query under the same name cannot take the first one's claims; it takes over once the first has not been
seen for a while, or at once where it can tell that the first is dead.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from smista.spark import columns
from smista.spark.errors import BrokerRefused, CheckpointForeign, ClaimLost
from smista.spark.heartbeat import Heartbeat
from smista.spark.log_reader import IDLE_S, Offset, describe
from smista.spark.options import Consuming
from smista.spark.wire import PLANNING_PATIENCE_S, Wire

T = TypeVar("T")
TAKE_OVER_S = 25.0
"""How long a restarted query waits for the broker to forget the one before."""
SLICE_ROWS = 5_000
"""Below that, a task of its own costs more than it saves."""
ALL_ROWS = 1_000_000
"""What one batch takes when Spark asks for all there is (Trigger.Once)."""
_GONE = frozenset({"claim_expired", "claim_not_found", "claim_broken"})


@dataclass
class ClaimPartition(InputPartition):
    session: str
    number: int
    start: int
    end: int


class ClaimStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, consuming: Consuming, schema: StructType) -> None:
        """Nothing may happen here: a second instance is made to be pickled for executors."""
        self._consuming = consuming
        self._schema = columns.to_arrow(schema)
        self._wire = Wire(consuming.server)
        self._claims = ("queues", consuming.queues[0], "claims")
        self._consumer = (*self._claims, consuming.consumer)
        self._heartbeat: Heartbeat | None = None
        self._rows_left: int | None = None
        """What a query that ends by itself has yet to claim."""
        self._short_since: float | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name, as below
        """Before the first claim of this checkpoint, whatever the consumer claimed earlier. Always the same: Spark asks
        again when it repeats the first batch, and must not hear that it lies behind."""
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._consuming.limits.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # Claims that are open but in no batch yet, as after a crash, are there to be read as well.
        claimed = sum(claim["rows"] for one in self._known() for claim in one["claims"])
        self._rows_left = self._stats()["ready"] + claimed

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        after = self._number(start)
        beat = self._beating()
        if self._rows_left == 0 or self._is_too_short():
            self._acknowledge(after)
            return start
        limits = self._consuming.limits
        rows = ALL_ROWS if isinstance(limit, ReadAllAvailable) else limits.max_rows
        content = {
            "consumer": self._consuming.consumer,
            "session": beat.session,
            "after": after or self._acknowledged(),
            "max_rows": rows if self._rows_left is None else min(rows, self._rows_left),
            "max_bytes": limits.max_bytes,
            "lease_ms": self._consuming.lease_ms,
            "wait_ms": 0 if self._rows_left is not None else int(IDLE_S * 1000),
            **self._wire.place,
        }
        given = {name: value for name, value in content.items() if value is not None}
        claim = self._as_owner(lambda: self._wire.post(*self._claims, content=given))
        if self._rows_left is not None:
            # A claim that was made before a crash may be larger than what is left.
            self._rows_left = max(0, self._rows_left - claim["rows"]) if claim["rows"] else 0
        return self._offset(claim["number"]) if claim["rows"] else start

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        stats = self._stats()
        backlog = {name: stats[name] for name in ("ready", "in_flight", "scheduled", "dead", "oldest_message_age_secs")}
        return backlog | {"acknowledged_late": stats["acknowledged_late_total"]}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        self._number(start)
        number = self._number(end)
        beat = self._beating()
        rows = self._row_count(number)
        count = self._consuming.partition_count or min(os.cpu_count() or 1, -(-rows // SLICE_ROWS))
        bounds = [rows * part // count for part in range(count + 1)] if count else []
        return [
            ClaimPartition(beat.session, number, first, last)
            for first, last in itertools.pairwise(bounds)
            if first < last
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ClaimPartition):
            return
        query = {"from": partition.start, "to": partition.end, "session": partition.session, **self._wire.place}
        arrived = 0
        try:
            for batch in self._wire.batches(*self._consumer, str(partition.number), query=query):
                arrived += batch.num_rows
                yield columns.fit(batch, self._schema)
        except BrokerRefused as refusal:
            raise self._lost(partition.number, refusal) if refusal.code in _GONE else refusal from refusal
        if arrived != partition.end - partition.start:
            raise ClaimLost(f"Claim {partition.number} gave {arrived} rows of {partition.end - partition.start}.")

    def commit(self, end: Offset) -> None:
        self._acknowledge(self._number(end))

    def stop(self) -> None:
        """Spark calls this when the query fails and when the JVM is gone, but not always when it is stopped."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    # -- claims -------------------------------------------------------------------------------------------------------

    def _known(self) -> list[dict[str, Any]]:
        """What the broker knows of the consumer: nothing, or one entry."""
        try:
            answer = self._wire.get(*self._consumer, query=self._wire.place, patience_s=PLANNING_PATIENCE_S)
        except BrokerRefused as refusal:
            if refusal.code != "claim_not_found":
                raise
            return []
        consumers: list[dict[str, Any]] = answer["consumers"]
        return consumers

    def _acknowledged(self) -> int:
        """Up to which claim all is done with, for a checkpoint that has none of its own yet."""
        return max([one["acknowledged"] for one in self._known()], default=0)

    def _acknowledge(self, number: int) -> None:
        beat = self._beating()
        content = {"session": beat.session, "up_to": number, **self._wire.place}
        try:
            self._as_owner(lambda: self._wire.post(*self._consumer, "acknowledge", content=content))
        except BrokerRefused as refusal:
            if refusal.code == "claim_expired":
                # The batch is where it belongs, but the broker has given its messages back.
                print(f"smista: {refusal} They will come twice.", file=sys.stderr)
            elif number or refusal.code != "claim_not_found":  # nothing may have been claimed yet
                raise

    def _row_count(self, number: int) -> int:
        """How many rows a claim has, whose session is ours from now on; 0 where it is over and that may be."""
        refused = None
        try:
            held = self._as_owner(self._beating().beat)["claims"]
        except BrokerRefused as refusal:
            if refusal.code not in _GONE:
                raise
            held, refused = [], refusal
        for claim in held:
            if claim["number"] == number:
                return int(claim["rows"])
        lost = self._lost(number, refused)
        if self._consuming.is_loss_an_error:
            raise lost
        print(f"smista: {lost}", file=sys.stderr)
        return 0

    def _lost(self, number: int, refusal: BrokerRefused | None) -> ClaimLost:
        consuming = self._consuming
        why = f" ({refusal})" if refusal is not None else ""
        return ClaimLost(
            f"Claim {number} of consumer {consuming.consumer!r} on queue {consuming.queues[0]!r} is over{why}: it ran "
            "out while the query was away for longer than leaseMs, or was acknowledged or released meanwhile. What was "
            "not acknowledged is in the queue again and will come in a later batch. Raise leaseMs; to go on now, set "
            "option failOnDataLoss=false for one run."
        )

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _beating(self) -> Heartbeat:
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(self._wire, self._consumer, self._consuming.lease_ms)
        self._heartbeat.check()
        return self._heartbeat

    def _as_owner(self, ask: Callable[[], T]) -> T:
        """Ask, and where another session has the name, again until the broker has forgotten that one."""
        gives_up_at = time.monotonic() + TAKE_OVER_S
        while True:
            try:
                answer = ask()
            except BrokerRefused as refusal:
                is_over = self._is_owner or time.monotonic() >= gives_up_at
                if refusal.code != "consumer_in_use" or is_over:
                    raise
                if not self._beating().release_dead():
                    time.sleep(1.0)
            else:
                self._beating().start()
                return answer

    @property
    def _is_owner(self) -> bool:
        """Whether the name was ours already: then another query has taken it, and there is nothing to wait for."""
        return self._heartbeat is not None and self._heartbeat.is_started

    # -- offsets, limits ----------------------------------------------------------------------------------------------

    def _stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self._wire.get("queues", self._consuming.queues[0], query=self._wire.place)
        return stats

    def _is_too_short(self) -> bool:
        limits = self._consuming.limits
        if not limits.min_rows or self._rows_left is not None:
            return False
        now = time.monotonic()
        is_short = self._stats()["ready"] < limits.min_rows
        since = self._short_since if self._short_since is not None else now
        if is_short and (now - since) * 1000 < limits.delay_ms:
            self._short_since = since
            time.sleep(min(IDLE_S, limits.delay_ms / 1000))
            return True
        self._short_since = None
        return False

    def _offset(self, number: int) -> Offset:
        return {"claim": number, "queue": self._consuming.queues[0], "consumer": self._consuming.consumer}

    def _number(self, offset: Offset) -> int:
        ours = self._offset(offset.get("claim", 0))
        if offset != ours:
            raise CheckpointForeign(
                f"The checkpoint is of a query that reads {describe(offset)}, this one reads {describe(ours)}. Give "
                "each query a checkpointLocation of its own."
            )
        return int(ours["claim"])
