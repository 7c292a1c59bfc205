"""kill -9 of a real server while batches are staged, committed, claimed, read and acknowledged, again and again.

Two threads outlive every kill and repeat what was not answered, as Spark does: one stages parts and commits batches,
one claims, reads twice and goes on. Each row must be in exactly one claim.
"""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.crash.bulk_ledger import BulkLedger
from tests.protocols.http.arrow_reader import STREAM, stream, table
from tests.protocols.http.caller import Answer, Caller
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually

KILLS = 60 if os.environ.get("SMISTA_LONG") else 4
QUEUE = "work"
PARTITIONS = 3
ROWS = 1_500
MAX_ROWS = 4_000
LOST = (OSError, http.client.HTTPException)


class Steady:
    """Repeats each request until it is answered."""

    def __init__(self, address: tuple[str, int], ledger: BulkLedger) -> None:
        self.address = address
        self.ledger = ledger
        self.is_stopping = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.is_stopping.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def again(self, request: Callable[[Caller], Any]) -> Any:
        def ask() -> list[Any]:
            try:
                with Caller(self.address) as caller:
                    return [request(caller)]
            except LOST:
                self.ledger.totals["not answered"] += 1
                return []

        [answer] = eventually(ask, every_s=0.02)
        return answer

    def _run(self) -> None:
        try:
            while not self.is_stopping.is_set():
                self.turn()
        except BaseException as failure:
            self.failure = failure

    def turn(self) -> None:
        raise NotImplementedError


def whole(answer: Answer) -> Answer:
    """Not one of a broker that is still starting."""
    if answer.status == 503:
        raise ConnectionError(answer.body)
    return answer


def answered(answer: Answer) -> Any:
    assert whole(answer).status == 200, answer.body
    return answer.value


def stage(caller: Caller, path: str, data: bytes) -> Any:
    return answered(caller.send("PUT", path, data, content_type=STREAM))


class Committer(Steady):
    batch = 0

    def turn(self) -> None:
        self.batch += 1
        batch = str(self.batch)
        rows: list[bytes] = []
        for partition in range(PARTITIONS):
            part = [b"%d/%d/%d " % (self.batch, partition, place) + b"x" * 200 for place in range(ROWS)]
            data = stream(pa.record_batch({"body": part}))
            path = f"/v1/staged/job/{batch}/{partition}/0"
            self.again(lambda caller, path=path, data=data: stage(caller, path, data))  # type: ignore[misc]
            rows += part
        self.ledger.committing(rows)
        done = self.again(lambda caller: self.commit(caller, batch))
        self.ledger.committed(rows, published=done["published"])
        if self.batch % 2:
            again = self.again(lambda caller: self.commit(caller, batch))
            self.ledger.committed_again(rows, published=again["published"], is_repeated=again["repeated"])

    @staticmethod
    def commit(caller: Caller, batch: str) -> Any:
        fields = {"queue": QUEUE, "parts": [[partition, 0] for partition in range(PARTITIONS)]}
        return answered(caller.rest("POST", "staged", "job", batch, "commit", fields=fields))


class Claimer(Steady):
    after = 0

    def turn(self) -> None:
        made = self.again(self.claim)
        if not made["rows"]:
            time.sleep(0.01)
            return
        number, half = made["number"], made["rows"] // 2
        for _ in range(2):
            self.ledger.read(number, self.read(number, 0, half) + self.read(number, half, made["rows"]))
        if number % 3 == 0:
            # Most are acknowledged by the next claim, some by themselves, and then by the next claim too.
            self.again(
                lambda caller: answered(
                    caller.rest(
                        "POST", "queues", QUEUE, "claims", "c", "acknowledge", fields={"session": "s", "up_to": number}
                    )
                )
            )
        self.after = number
        self.ledger.totals["claimed"] += 1

    def claim(self, caller: Caller) -> Any:
        fields = {"consumer": "c", "session": "s", "after": self.after, "max_rows": MAX_ROWS, "wait_ms": 50}
        return answered(caller.rest("POST", "queues", QUEUE, "claims", fields=fields))

    def read(self, number: int, start: int, end: int) -> list[bytes]:
        query = {"from": start, "to": end, "session": "s"}
        rows: list[bytes] = self.again(
            lambda caller: (
                table(whole(caller.rest("GET", "queues", QUEUE, "claims", "c", str(number), **query)))
                .column("body")
                .to_pylist()
            )
        )
        assert len(rows) == end - start
        return rows


@contextmanager
def crew(server: ServerProcess, ledger: BulkLedger) -> Iterator[tuple[Committer, Claimer]]:
    committer, claimer = Committer(server.address, ledger), Claimer(server.address, ledger)
    try:
        yield committer, claimer
    finally:
        committer.is_stopping.set()
        claimer.is_stopping.set()


def progress(ledger: BulkLedger, one: Steady) -> None:
    """Return when one of them has got something done."""
    total = "committed" if isinstance(one, Committer) else "claimed"
    before = ledger.totals[total]
    eventually(lambda: ledger.totals[total] > before or one.failure is not None)
    assert one.failure is None


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_no_kill_loses_or_doubles_a_row(tmp_path: Path, tell: Callable[[str], None]) -> None:
    source, ledger = random.Random(1), BulkLedger()
    server = ServerProcess(tmp_path / "data").start()
    with Caller(server.address) as caller:
        caller.call("queue.declare", queue=QUEUE, settings={"max_retries": None})
    with crew(server, ledger) as (committer, claimer):
        committer.start()
        claimer.start()
        for number in range(KILLS):
            # Now one of them gets on in this life of the broker, then the other.
            progress(ledger, committer if number % 2 else claimer)
            time.sleep(source.uniform(0.0, 0.6))
            server.kill()
            server.__exit__()
            server.restart()
        committer.stop()
        with Caller(server.address) as caller:

            def is_all_claimed() -> bool:
                assert claimer.failure is None
                return claimer.after > 0 and caller.stats(QUEUE)["depth"] <= caller.stats(QUEUE)["claimed"]

            eventually(is_all_claimed)
        claimer.stop()
        claimer.turn()
        with Caller(server.address) as caller:
            assert caller.stats(QUEUE)["depth"] == 0
            assert caller.stats(QUEUE)["acknowledged_late_total"] == 0
    ledger.finish()
    server.__exit__()
    totals = ledger.totals
    tell(
        f"kills while in bulk: {KILLS} kills, {totals['not answered']} requests repeated; "
        f"{totals['committed']} batches committed, {totals['committed again']} of them again; "
        f"{totals['claimed']} claims: {len(ledger.violations)} violations"
    )
    assert ledger.violations == []
    assert totals["not answered"] >= KILLS // 2
    assert min(totals["committed"], totals["claimed"]) >= KILLS // 2


@pytest.mark.slow
def test_a_commit_that_was_cut_off_is_rolled_forward_without_anybody_asking(tmp_path: Path) -> None:
    """Killed as soon as some rows are there and not all."""
    cut_off = 0
    server = ServerProcess(tmp_path / "data").start()
    with Caller(server.address) as caller:
        caller.call("queue.declare", queue=QUEUE)
    expected = 0
    for batch in range(1, 51):
        if batch > 5 and cut_off:
            break
        count = 30_000
        with Caller(server.address) as caller, Caller(server.address) as other:
            data = stream(pa.record_batch({"body": [b"%d " % batch + b"x" * 100] * count}))
            stage(caller, f"/v1/staged/job/{batch}/0/0", data)
            payload = {"job": "job", "batch": str(batch), "queue": QUEUE, "parts": [[0, 0]]}
            other.start_command("staged.commit", payload)
            while (depth := caller.stats(QUEUE)["ready"]) == expected:
                pass
            server.kill()
        server.__exit__()
        cut_off += depth < expected + count
        server.restart()
        expected += count
        with Caller(server.address) as caller:
            eventually(lambda caller=caller, expected=expected: caller.stats(QUEUE)["ready"] >= expected)  # type: ignore[misc]
            assert caller.stats(QUEUE)["ready"] == expected, "published twice"
            done = answered(caller.rest("POST", "staged", "job", str(batch), "commit", fields=payload_of(payload)))
            assert (done["published"], done["repeated"]) == (count, True)
            assert caller.stats(QUEUE)["ready"] == expected
    server.stop()
    server.__exit__()
    assert cut_off, "no commit was cut off: nothing was shown"


def payload_of(payload: dict[str, Any]) -> dict[str, Any]:
    return {name: payload[name] for name in ("queue", "parts")}


# -- the check can fail -----------------------------------------------------------------------------------------------

ROW, OTHER = b"1/0/0", b"1/0/1"


@pytest.fixture
def ledger() -> BulkLedger:
    """A batch of two rows is committed."""
    ledger = BulkLedger()
    ledger.committing([ROW, OTHER])
    ledger.committed([ROW, OTHER], published=2)
    return ledger


def test_nothing_is_found_in_a_good_story(ledger: BulkLedger) -> None:
    ledger.read(1, [ROW])
    ledger.read(1, [ROW])
    ledger.read(2, [OTHER])
    ledger.committed_again([ROW, OTHER], published=2, is_repeated=True)
    ledger.finish()
    assert ledger.violations == []


def test_a_row_that_nobody_reads_is_lost(ledger: BulkLedger) -> None:
    ledger.read(1, [ROW])
    ledger.finish()
    assert ledger.kinds == {"lost"}


def test_a_row_in_two_claims_or_twice_in_one_is_doubled(ledger: BulkLedger) -> None:
    ledger.read(1, [ROW])
    ledger.read(2, [ROW])
    assert ledger.kinds == {"doubled"}
    ledger.violations.clear()
    ledger.read(3, [OTHER, OTHER])
    assert ledger.kinds == {"doubled"}


def test_a_claim_that_reads_differently_is_changed(ledger: BulkLedger) -> None:
    ledger.read(1, [ROW, OTHER])
    ledger.read(1, [OTHER])
    assert ledger.kinds == {"changed"}


def test_a_row_that_was_never_committed_is_told(ledger: BulkLedger) -> None:
    ledger.read(1, [b"2/0/0"])
    assert ledger.kinds == {"unstaged"}


def test_a_second_commit_that_publishes_is_told(ledger: BulkLedger) -> None:
    ledger.committed_again([ROW, OTHER], published=2, is_repeated=False)
    assert ledger.kinds == {"repeated"}
