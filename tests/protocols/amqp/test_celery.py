"""Celery, unmodified: a real worker with two processes, results in files, on classic and on quorum queues.

With quorum queues Celery delays tasks in the broker, by 28 queues with a TTL that hand on to each other.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.amqp import celery_app
from tests.protocols.amqp.places import RABBITMQ
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually, with_more_time

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:(celery|kombu|amqp|billiard)")]

PLACES = [("smista", "classic"), ("smista", "quorum"), *([("rabbitmq", "classic")] if RABBITMQ else [])]


class Workshop:
    """A worker, and an application to send it tasks."""

    def __init__(self, broker: str, folder: Path, queue_type: str) -> None:
        self.queue = queue = f"celery-{secrets.token_hex(4)}"
        self.queue_type = queue_type
        self.special = f"{queue}-special"
        (folder / "results").mkdir(parents=True)
        self.app = celery_app.make_app(broker, folder, queue, queue_type)
        environment = {
            **os.environ,
            "SMISTA_CELERY_BROKER": broker,
            "SMISTA_CELERY_FOLDER": str(folder),
            "SMISTA_CELERY_QUEUE": queue,
            "SMISTA_CELERY_QUEUE_TYPE": queue_type,
        }
        command = [sys.executable, "-m", "celery", "-A", "tests.protocols.amqp.celery_app", "worker"]
        self._output = (folder / "worker.log").open("w")
        self.process = subprocess.Popen(
            [*command, "--concurrency", "2", "--loglevel", "INFO", "-n", queue],
            env=environment,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # A worker that is not there yet does not hear it, so it is asked again, and has longer to answer each time.
        answer_s = itertools.chain((1.0, 2.0, 4.0, 8.0, 16.0), itertools.repeat(30.0))

        eventually(
            lambda: self.app.control.ping(timeout=next(answer_s), limit=1),
            as_long_as=lambda: self.process.poll() is None,
            show=(folder / "worker.log").read_text,
        )

    def send(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Of a task, by its name, as an application without its code does it."""
        return self.app.send_task(f"tests.protocols.amqp.celery_app.{name}", arguments, **options)

    def signature(self, name: str, *arguments: Any) -> Any:
        return self.app.signature(f"tests.protocols.amqp.celery_app.{name}", arguments)

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """While the worker takes nothing from the special queue."""
        control, heard = self.app.control, {"reply": True, "timeout": PATIENCE_S, "limit": 1}
        assert control.cancel_consumer(self.special, **heard)
        self._wait_for_consumers(0)
        yield
        assert control.add_consumer(self.special, **heard)
        self._wait_for_consumers(1)

    def _wait_for_consumers(self, count: int) -> None:
        """Of the special queue: the worker answers before it has done it."""
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            eventually(lambda: channel.queue_declare(self.special, passive=True).consumer_count == count)

    @contextlib.contextmanager
    def dead_letters(self) -> Iterator[Any]:
        """Where the special queue's go, as kombu's simple queue."""
        with self.app.connection_for_read() as connection:
            dead = celery_app.kombu.Queue(f"{self.queue}-dead", durable=True)
            simple = connection.SimpleQueue(dead)
            yield simple
            simple.close()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self._output.close()
        self.app.close()


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def workshop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    place, queue_type = request.param
    folder = tmp_path_factory.mktemp("celery")
    if place == "rabbitmq":
        workshop = Workshop(RABBITMQ, folder, queue_type)
        yield workshop
        workshop.close()
        return
    with ServerProcess(folder / "data") as server:
        workshop = Workshop(f"amqp://guest:guest@127.0.0.1:{server.amqp_port}", folder, queue_type)
        yield workshop
        workshop.close()
    assert [line for line in server.lines if "Traceback" in line or " ERROR " in line] == []


def result(pending: Any) -> Any:
    return pending.get(timeout=PATIENCE_S)


def test_a_task_runs_and_its_result_comes_back(workshop: Workshop) -> None:
    assert result(workshop.send("add", 2, 3)) == 5


def test_a_group_of_tasks_runs(workshop: Workshop) -> None:
    tasks = celery_app.group([workshop.signature("add", number, number) for number in range(30)], app=workshop.app)
    assert sorted(result(tasks.apply_async())) == [2 * number for number in range(30)]


def test_a_chain_of_tasks_runs(workshop: Workshop) -> None:
    chain = workshop.signature("add", 1, 1) | workshop.signature("add", 10) | workshop.signature("add", 100)
    assert result(chain.apply_async()) == 112


def test_a_chord_runs_its_body_when_all_are_done(workshop: Workshop) -> None:
    header = [workshop.signature("add", number, number) for number in range(10)]
    chord = celery_app.chord(header, app=workshop.app)
    assert result(chord(workshop.signature("total"))) == 90


def test_a_task_that_fails_is_tried_again(workshop: Workshop) -> None:
    assert result(workshop.send("fail_at_first", 3)) == 3


def test_a_task_waits_for_its_time(workshop: Workshop) -> None:
    for attempt in with_more_time(2, 10, 60):
        with attempt as countdown_s:
            due = time.time() + countdown_s
            pending = workshop.send("now", countdown=countdown_s)
            at_once = result(workshop.send("now"))
            assert result(pending) >= due
            assert at_once < result(pending)


def test_a_task_that_kills_its_process_runs_again(workshop: Workshop) -> None:
    assert result(workshop.send("die_at_first")) is True


def test_a_task_that_refuses_is_put_back_and_then_set_aside(workshop: Workshop) -> None:
    with workshop.dead_letters() as dead:
        refused = workshop.send("refuse", queue=workshop.special)
        message = dead.get(timeout=PATIENCE_S)
        message.ack()
    [death] = message.headers["x-death"]
    assert (message.headers["id"], death["queue"], death["reason"]) == (refused.id, workshop.special, "rejected")


def test_a_task_that_waits_too_long_is_set_aside(workshop: Workshop) -> None:
    with workshop.dead_letters() as dead:
        with workshop.resting():
            late = workshop.send("now", queue=workshop.special, expiration=0.1)
            message = dead.get(timeout=PATIENCE_S)
            message.ack()
        assert (message.headers["id"], message.headers["x-death"][0]["reason"]) == (late.id, "expired")


def test_an_urgent_task_overtakes(workshop: Workshop) -> None:
    with workshop.resting():
        patient = [workshop.send("now", queue=workshop.special, priority=1) for _ in range(20)]
        urgent = workshop.send("now", queue=workshop.special, priority=9)
    ran = result(urgent)
    overtaken = [result(pending) > ran for pending in patient]
    assert sum(overtaken) > 15


def test_tasks_are_routed_by_topic_and_by_headers(workshop: Workshop) -> None:
    topic, headers = f"{workshop.queue}-topic", f"{workshop.queue}-headers"
    assert result(workshop.send("add", 1, 2, exchange=topic, routing_key="orders.eu.paid")) == 3
    assert result(workshop.send("add", 3, 4, exchange=headers, routing_key="any", headers={"kind": "order"})) == 7
    unrouted = [workshop.send("add", 1, 2, exchange=topic, routing_key="orders.eu")]
    if workshop.queue_type == "classic":  # with quorum queues Celery adds bindings to every exchange, without arguments
        unrouted.append(workshop.send("add", 1, 2, exchange=headers, routing_key="any", headers={"kind": "invoice"}))
    result(workshop.send("add", 5, 6, exchange=topic, routing_key="orders.us.paid"))
    assert {pending.state for pending in unrouted} == {"PENDING"}


def test_the_worker_can_be_asked_what_it_does(workshop: Workshop) -> None:
    inspect = workshop.app.control.inspect(timeout=PATIENCE_S, limit=1)
    [registered] = inspect.registered().values()
    assert "tests.protocols.amqp.celery_app.add" in registered
    [queues] = inspect.active_queues().values()
    assert [queue["name"] for queue in queues] == [workshop.queue, workshop.special]


def test_a_revoked_task_does_not_run(workshop: Workshop) -> None:
    for attempt in with_more_time(2, 15, 60):
        with attempt as countdown_s:
            pending = workshop.send("now", countdown=countdown_s)
            workshop.app.control.revoke(pending.id, reply=True, timeout=PATIENCE_S, limit=1)
            later = workshop.send("now", countdown=countdown_s + 1)
            result(later)
            assert pending.state != "SUCCESS"


def test_the_workers_events_are_seen(workshop: Workshop) -> None:
    seen: list[str] = []
    with workshop.app.connection() as connection:
        handlers = {"task-succeeded": lambda event: seen.append(event["uuid"])}
        receiver = workshop.app.events.Receiver(connection, handlers=handlers)
        events = receiver.itercapture(limit=None, timeout=PATIENCE_S, wakeup=False)
        next(events)
        workshop.app.control.enable_events(reply=True, timeout=PATIENCE_S, limit=1)
        pending = workshop.send("add", 1, 1)
        while not seen:
            next(events)
    assert seen == [pending.id]


def test_a_worker_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        workshop = Workshop(f"amqp://guest:guest@127.0.0.1:{server.amqp_port}", tmp_path, "classic")
        assert result(workshop.send("add", 1, 2)) == 3
        waiting = workshop.send("add", 3, 4, countdown=5)
        server.kill()
        server.restart()
        assert result(workshop.send("add", 5, 6)) == 11
        assert result(waiting) == 7
        workshop.close()
