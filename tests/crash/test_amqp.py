"""kill -9 of a real server under load over AMQP, again and again on the same data and port. See `amqp_crew`."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.amqp_crew import CREWS, AioPikaCrew, AmqpLedger, RawCrew, set_up
from tests.crash.protocol_ledger import body_of
from tests.server_process import ServerProcess
from tests.waiting import eventually

KILLS = {"raw": 170, "aio-pika": 80} if os.environ.get("SMISTA_LONG") else {"raw": 4, "aio-pika": 3}


@contextmanager
def at_work(server: ServerProcess, kind: str, ledger: AmqpLedger) -> Iterator[RawCrew | AioPikaCrew]:
    crew = CREWS[kind](server.amqp_address, ledger, seed=1)
    crew.start()
    try:
        yield crew
    finally:
        crew.stop()


def progress(ledger: AmqpLedger) -> None:
    """Return when this life of the broker has confirmed, delivered and kept something."""
    names = ("confirmed", "delivered", "acks known to be on disk")
    before = {name: ledger.totals[name] for name in names}
    eventually(lambda: all(ledger.totals[name] > before[name] for name in names))


def kill(server: ServerProcess, ledger: AmqpLedger) -> None:
    server.kill()
    ledger.killed()


# aio-pika leaves coroutines behind when its socket is reset in the middle of something.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("kind", CREWS)
def test_no_kill_breaks_a_promise(tmp_path: Path, kind: str, tell: Callable[[str], None]) -> None:
    kills, source, ledger = KILLS[kind], random.Random(1), AmqpLedger()
    with ServerProcess(tmp_path / "data") as server:
        set_up(server.amqp_address)
        with at_work(server, kind, ledger) as crew:
            for _ in range(kills):
                progress(ledger)
                time.sleep(source.uniform(0.0, 0.1))
                kill(server, ledger)
                server.restart()
            progress(ledger)
            crew.is_publishing = False
            eventually(lambda: not ledger.lost())
    totals = ledger.totals
    tell(
        f"kills of a server, AMQP by {kind}: {totals['kills']} kills; {totals['confirmed']} publishes confirmed to two "
        f"queues each, {totals['delivered']} deliveries, {totals['acknowledged']} acks, "
        f"{totals['acks known to be on disk']} of them known to be on disk; delivered again because of "
        f"{dict(ledger.causes)}: {len(ledger.violations)} violations"
    )
    assert ledger.violations == []
    assert ledger.lost() == set()
    assert totals["kills"] == kills
    assert not any("Traceback" in line for line in server.lines)


# -- the check can fail -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_broker_that_comes_back_with_old_data_is_found_out(tmp_path: Path) -> None:
    """What a disk that lies about its syncs, or a restored backup, would do."""
    ledger = AmqpLedger()
    with ServerProcess(tmp_path / "data") as server:
        set_up(server.amqp_address)
        with at_work(server, "raw", ledger) as crew:
            progress(ledger)
            kill(server, ledger)
            shutil.copytree(tmp_path / "data", tmp_path / "old")
            server.restart()
            for _ in range(3):
                progress(ledger)
            kill(server, ledger)
            shutil.rmtree(tmp_path / "data")
            shutil.copytree(tmp_path / "old", tmp_path / "data")
            ledger.give_up_lost()
            server.restart()
            progress(ledger)
            crew.is_publishing = False
    assert {violation.partition(":")[0] for violation in ledger.violations} == {"back"}


@pytest.fixture
def ledger() -> AmqpLedger:
    """With one message published and confirmed."""
    ledger = AmqpLedger()
    ledger.publishing("m", body_of("m", 50))
    ledger.confirmed("m")
    return ledger


def test_what_was_confirmed_and_never_delivered_is_lost(ledger: AmqpLedger) -> None:
    ledger.delivered("left", body_of("m", 50), "a connection")
    assert ledger.lost() == {("m", "right")}


def test_a_second_delivery_needs_a_cause(ledger: AmqpLedger) -> None:
    first = ledger.delivered("left", body_of("m", 50), "a connection")
    ledger.acknowledged(first)
    ledger.delivered("left", body_of("m", 50), "another")
    assert [violation[:9] for violation in ledger.violations] == ["duplicate"]


@pytest.mark.parametrize("cause", ["given back", "connection gone", "killed"])
def test_a_second_delivery_with_a_cause_is_counted(ledger: AmqpLedger, cause: str) -> None:
    first = ledger.delivered("left", body_of("m", 50), "a connection")
    if cause == "given back":
        first.is_returned = True
    elif cause == "killed":
        ledger.killed()
    else:
        ledger.gone("a connection")
    ledger.delivered("left", body_of("m", 50), "another")
    assert ledger.violations == []
    assert sum(ledger.causes.values()) == 1


def test_an_acknowledgement_that_is_known_to_be_on_disk_is_the_end(ledger: AmqpLedger) -> None:
    first = ledger.delivered("left", body_of("m", 50), "a connection")
    ledger.acknowledged(first)
    ledger.known_on_disk([("m", "left")])
    ledger.killed()
    ledger.delivered("left", body_of("m", 50), "another")
    assert [violation[:4] for violation in ledger.violations] == ["back"]


def test_other_bytes_and_other_names_are_noticed(ledger: AmqpLedger) -> None:
    ledger.delivered("left", body_of("m", 60), "a connection")
    ledger.delivered("left", body_of("n", 50), "a connection")
    assert [violation.partition(":")[0] for violation in ledger.violations] == ["changed", "unexpected"]
