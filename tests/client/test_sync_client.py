from __future__ import annotations

import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from smista import AsyncClient, Client
from smista.client import ClientClosed, Publication, Published, Subscription, SyncDelivery, SyncSubscription
from smista.client.portal import run_on
from smista.errors import BrokerError, MessageTooLarge, QueueNotFound, StaleReceipt
from tests.waiting import PATIENCE_S, eventually


def calls(kind: type) -> dict[str, list[str]]:
    """The public methods of a class, with their parameters as written, but for the names of the classes they return."""
    return {
        name: [str(parameter) for parameter in inspect.signature(member).parameters.values()]
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


INSIDE = {"put_batch", "receive_as", "subscribe_as"}


def test_both_clients_have_the_same_calls_with_the_same_parameters() -> None:
    wanted = {name: parameters for name, parameters in calls(AsyncClient).items() if name not in INSIDE}
    found = calls(Client)
    assert found.keys() == wanted.keys()
    # The synchronous one takes no async iterators.
    wanted["put_many"][2] = "messages: 'Iterable[Any]'"
    assert found == wanted
    assert str(inspect.signature(Client.__init__)) == str(inspect.signature(AsyncClient.__init__))


def test_both_clients_explain_every_call_in_the_same_words() -> None:
    # But where threads are not what an event loop is.
    for name in calls(Client).keys() - {"put_many", "receive", "subscribe"}:
        assert inspect.getdoc(getattr(Client, name)) == inspect.getdoc(getattr(AsyncClient, name)), name


def test_both_subscriptions_have_the_same_calls() -> None:
    inside = {"broken", "failed", "opened", "pushed", "start", "stop", "waiting"}
    assert calls(SyncSubscription).keys() == calls(Subscription).keys() - inside


def test_a_program_without_an_event_loop(sync_client: Client, queue: str) -> None:
    assert sync_client.declare_queue(queue, max_retries=2) is True
    published = sync_client.publish(queue, {"n": 1}, priority=3)
    assert isinstance(published, Published)
    assert sync_client.stats(queue).ready == 1
    [delivery] = sync_client.receive(queue, lease_ms=60_000)
    assert isinstance(delivery, SyncDelivery)
    assert (delivery.id, delivery.json()) == (published.id, {"n": 1})
    delivery.extend(120_000)
    delivery.ack()
    with pytest.raises(StaleReceipt):
        delivery.ack()
    with pytest.raises(QueueNotFound):
        sync_client.publish(f"{queue}-not", 1)
    assert sync_client.is_connected


def test_iterating_a_subscription(sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)
    sync_client.put_many(queue, range(300))
    seen = []
    with sync_client.subscribe(queue, prefetch=20) as subscription:
        for delivery in subscription:
            with delivery:
                seen.append(delivery.json())
            if len(seen) == 300:
                break
        subscription.settled()
        assert sync_client.stats(queue).acknowledged_total == 300
    assert seen == list(range(300))


def test_a_subscription_in_batches(sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)
    sync_client.put_many(queue, range(10))
    with sync_client.subscribe(queue) as subscription:
        batch = subscription.next_batch(4)
        assert [delivery.json() for delivery in batch] == [0, 1, 2, 3]
        subscription.ack_up_to(batch[-1])
        subscription.settled()
        assert sync_client.stats(queue).acknowledged_total == 4
        first = subscription.next(timeout_ms=5_000)
        assert first is not None
        assert first.json() == 4
        assert first.nack("no", requeue=False) == "dead_lettered"
    assert (subscription.is_over, subscription.queue) == (True, queue)
    sync_client.info()
    stats = sync_client.stats(queue)
    assert (stats.ready, stats.in_flight, stats.released_total) == (5, 0, 5)


def test_waiting_ends_after_a_while(sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)
    with sync_client.subscribe(queue) as subscription:
        assert subscription.next(timeout_ms=10) is None
        assert subscription.next_batch(timeout_ms=10) == []


def test_an_exception_nacks_and_goes_through(sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)
    sync_client.publish(queue, 1)
    subscription = sync_client.subscribe(queue)
    delivery = next(subscription)
    with pytest.raises(LookupError), delivery:
        raise LookupError("no such pizza")
    subscription.close()
    [message] = sync_client.browse(queue)
    assert message.failures[0].error == "LookupError: no such pizza"


def test_pages_are_iterated(sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)
    sync_client.put_many(queue, range(7))
    assert [message.json() for message in sync_client.browse(queue, page_size=3)] == list(range(7))
    pages = sync_client.browse(queue, page_size=3)
    assert next(pages).json() == 0
    assert [len(pages.next_page()) for _ in range(4)] == [2, 3, 1, 0]
    assert list(sync_client.dead_letters(queue)) == []
    assert list(sync_client.scheduled(queue)) == []


def test_put_many_puts_what_it_was_given_before_its_source_failed(sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)

    def source() -> Iterator[object]:
        yield object()
        yield from range(2_500)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more") as caught:
        sync_client.put_many(queue, source())
    assert caught.value.__notes__ == ["2500 messages before that were accepted, 1 refused."]
    assert sync_client.stats(queue).depth == 2_500


def test_put_many_takes_messages_and_calls_back_in_the_calling_thread(sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue, body_bytes_max=10)
    threads: set[int] = set()
    results: list[Published | BrokerError] = []

    def source() -> Iterator[bytes | Publication]:
        for number in range(1_000):
            threads.add(threading.get_ident())
            assert sync_client.is_connected
            yield b"x" if number != 500 else Publication(b"far too large")
        sync_client.info()  # the source may use the client

    def note(place: int, result: Published | BrokerError) -> None:
        threads.add(threading.get_ident())
        results.append(result)

    summary = sync_client.put_many(queue, source(), batch_count=100, on_result=note)
    assert (summary.accepted, summary.refused, [place for place, _ in summary.errors]) == (999, 1, [500])
    assert isinstance(results[500], MessageTooLarge)
    assert threads == {threading.get_ident()}
    with pytest.raises(QueueNotFound):
        sync_client.put_many(f"{queue}-not", [b"x"] * 5_000)


def test_many_threads_share_a_client(sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)

    def publish(start: int) -> list[str]:
        return [sync_client.publish(queue, number).id for number in range(start, start + 50)]

    with ThreadPoolExecutor(8) as threads:
        ids = [one for found in threads.map(publish, range(0, 400, 50)) for one in found]
    assert len(set(ids)) == 400

    seen: list[int] = []
    with sync_client.subscribe(queue, prefetch=50) as subscription, ThreadPoolExecutor(4) as threads:

        def consume() -> None:
            while len(seen) < 400:
                if (delivery := subscription.next(timeout_ms=100)) is not None:
                    with delivery:
                        seen.append(delivery.json())

        for done in [threads.submit(consume) for _ in range(4)]:
            done.result()
    assert sorted(seen) == list(range(400))


def test_a_closed_client_says_so(broker_url: str, queue: str) -> None:
    client = Client(broker_url)
    client.declare_queue(queue)
    client.publish(queue, 1)
    [delivery] = client.receive(queue)
    client.close()
    client.close()
    assert not client.is_connected
    with pytest.raises(ClientClosed):
        client.info()
    with pytest.raises(ClientClosed):
        client.subscribe(queue).next()
    with pytest.raises(ClientClosed):
        delivery.ack()


def test_closing_waits_for_what_was_settled(
    broker_url: str, sync_client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(broker_url) as client:
        client.declare_queue(queue)
        client.put_many(queue, range(3))
        for delivery in client.receive(queue, 3):
            with delivery:
                delivery.json()
    assert sync_client.stats(queue).acknowledged_total == 3
    assert not caplog.records


def test_closing_ends_those_who_wait(broker_url: str, queue: str) -> None:
    client = Client(broker_url)
    client.declare_queue(queue)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(next, client.subscribe(queue))
        client.info()
        client.close()
        with pytest.raises(ClientClosed):
            waiting.result(PATIENCE_S)


def test_a_client_that_nobody_refers_to_is_closed(broker_url: str) -> None:
    client = Client(broker_url)
    client.info()
    [thread] = [thread for thread in threading.enumerate() if thread is client._portal._thread]
    gone = weakref.ref(client)
    del client

    def is_gone() -> bool:
        gc.collect()  # does nothing while another thread is at it
        return gone() is None

    eventually(is_gone)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_call_from_the_clients_own_thread_is_refused_rather_than_waiting_for_itself(sync_client: Client) -> None:
    async def call() -> None:
        sync_client.info()

    with pytest.raises(RuntimeError, match="wait for itself"):
        run_on(sync_client._portal.loop, call)


def run_program(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_program_that_forgets_to_close_ends_and_has_acked(broker_url: str, sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)
    sync_client.put_many(queue, range(10))
    program = """
import sys
from smista import Client
client = Client(sys.argv[1])
subscription = client.subscribe(sys.argv[2], prefetch=10)
for _ in range(3):
    with next(subscription):
        pass
"""
    done = run_program(program, broker_url, queue)
    assert (done.returncode, done.stderr) == (0, "")
    stats = sync_client.stats(queue)
    assert (stats.acknowledged_total, stats.in_flight) == (3, 0)


def test_after_a_fork_the_child_must_make_its_own(broker_url: str, queue: str) -> None:
    program = """
import os, sys
from smista import Client
from smista.client import ClientClosed
client = Client(sys.argv[1])
client.declare_queue(sys.argv[2])
child = os.fork()
if child == 0:
    try:
        client.info()
    except ClientClosed as error:
        assert "fork" in str(error)
        with Client(sys.argv[1]) as own:
            own.publish(sys.argv[2], "from the child")
        sys.exit(7)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert client.stats(sys.argv[2]).ready == 1
"""
    done = run_program(program, broker_url, queue)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_a_loop_over_a_subscription(broker_url: str, sync_client: Client, queue: str) -> None:
    sync_client.declare_queue(queue)
    sync_client.publish(queue, 1)
    program = """
import sys
from smista import Client
with Client(sys.argv[1]) as client:
    try:
        for delivery in client.subscribe(sys.argv[2]):
            with delivery:
                value = delivery.json()
            print(value, flush=True)
    except KeyboardInterrupt:
        print("stopped")
"""
    command = [sys.executable, "-W", "error", "-c", program, broker_url, queue]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.read() == "stopped\n"
        assert process.wait(PATIENCE_S) == 0
    assert sync_client.stats(queue).acknowledged_total == 1


def test_importing_the_package_imports_nothing_else() -> None:
    program = """
import sys
import smista
assert not [name for name in sys.modules if name.startswith("smista.")], sys.modules
assert smista.__version__ and "Client" in dir(smista)
from smista import AsyncClient, Client, Delivery, Worker
try:
    smista.Server
except AttributeError as error:
    assert "Server" in str(error)
"""
    done = run_program(program)
    assert (done.returncode, done.stderr) == (0, "")
