"""rabbitmq-c, by the command line tools that Debian packages as amqp-tools, unmodified."""

from __future__ import annotations

import subprocess

import pytest

from tests.protocols.amqp.peer import Basic, Channel
from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S
from tools import test_clients as clients

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def amqp_tools() -> None:
    reason = clients.fetch_amqp_tools()
    if reason is not None:
        pytest.skip(reason)


def run(url: str, tool: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [f"amqp-{tool}", "--url", url, *arguments], input=given, capture_output=True, timeout=PATIENCE_S, check=False
    )


def output(url: str, tool: str, *arguments: str, given: bytes = b"") -> bytes:
    done = run(url, tool, *arguments, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_queue_is_declared_and_deleted(place: Place) -> None:
    queue = place.name()
    assert output(place.url, "declare-queue", "-q", queue, "-d") == f"{queue}\n".encode()
    assert output(place.url, "declare-queue", "-q", queue, "-d") == f"{queue}\n".encode()
    output(place.url, "publish", "-r", queue, "-b", "one")
    output(place.url, "publish", "-r", queue, "-b", "two")
    assert output(place.url, "delete-queue", "-q", queue) == b"2\n"


def test_a_message_is_published_and_got(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name())
    output(place.url, "publish", "-r", queue, "-p", "-C", "text/plain", "-H", "tenant: a", "-b", "hello")
    message = channel.got(queue)
    assert (message.body, message.headers) == (b"hello", {"tenant": "a"})
    assert (message.properties.content_type, message.properties.delivery_mode) == ("text/plain", 2)
    channel.nack(message.tag)
    channel.settle(queue)
    assert output(place.url, "get", "-q", queue) == b"hello"
    nothing = run(place.url, "get", "-q", queue)
    assert (nothing.returncode, nothing.stdout) == (2, b"")


def test_lines_are_published_and_consumed_with_prefetch(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name())
    lines = b"".join(b"%d\n" % number for number in range(20))
    output(place.url, "publish", "-r", queue, "-l", given=lines)
    assert output(place.url, "consume", "-q", queue, "-c", "20", "-p", "3", "cat") == lines
    assert channel.count(queue) == (0, 0)


def test_a_queue_is_bound_to_a_topic_exchange_and_consumed_without_acknowledging(
    place: Place, channel: Channel
) -> None:
    exchange = channel.exchange(place.name("x"), "topic")
    consume = subprocess.Popen(
        ["amqp-consume", "--url", place.url, "-e", exchange, "-r", "orders.#", "-A", "-c", "2", "cat"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # It is there when its queue, which the server named, takes what is mandatory.
    channel.confirm()
    while True:
        channel.publish(b"(first)", "orders.eu", exchange, mandatory=True)
        channel.expect(Basic.Ack)
        if not channel.events:
            break
        channel.events.clear()
    output(place.url, "publish", "-e", exchange, "-r", "invoices", "-b", "(no)")
    output(place.url, "publish", "-e", exchange, "-r", "orders.us", "-b", "(second)")
    found, errors = consume.communicate(timeout=PATIENCE_S)
    assert found == b"(first)(second)"
    assert errors.startswith(b"Server provided queue name: amq.gen-")


def test_headers_choose_and_what_is_not_fetched_in_time_goes_to_the_dead_letters(
    place: Place, channel: Channel
) -> None:
    exchange, dead = channel.exchange(place.name("x"), "headers"), channel.declare(place.name("dead"))
    arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = channel.declare(place.name(), arguments)
    channel.bind(queue, exchange, arguments={"x-match": "all", "kind": "order"})
    output(place.url, "publish", "-e", exchange, "-H", "kind: invoice", "-b", "no")
    output(place.url, "publish", "-e", exchange, "-H", "kind: order", "-b", "yes")
    assert output(place.url, "consume", "-q", dead, "-c", "1", "cat") == b"yes"
    assert run(place.url, "get", "-q", dead).returncode == 2


def test_a_command_that_fails_leaves_the_message_in_the_queue(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name())
    channel.publish(b"again", queue)
    channel.settle(queue)
    run(place.url, "consume", "-q", queue, "-c", "1", "false")
    channel.consume(queue)
    message = channel.delivery()
    assert (message.body, message.redelivered) == (b"again", True)


def test_a_large_message_goes_both_ways(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name())
    body = bytes(range(256)) * 3000
    output(place.url, "publish", "-r", queue, given=body)
    assert output(place.url, "get", "-q", queue) == body


def test_errors_are_shown(place: Place) -> None:
    missing = run(place.url, "get", "-q", "nowhere")
    assert missing.returncode != 0
    assert b"server channel error 404, message: NOT_FOUND - no queue 'nowhere' in vhost '/'" in missing.stderr
    reserved = run(place.url, "declare-queue", "-q", "amq.mine")
    assert b"server channel error 403, message: ACCESS_REFUSED - queue name 'amq.mine'" in reserved.stderr
    host, port = place.address
    wrong = run(f"amqp://guest:wrong@{host}:{port}", "get", "-q", "q")
    assert b"ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in wrong.stderr


def test_what_was_published_is_there_after_a_restart(mortal: ServerProcess) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{mortal.amqp_port}"
    output(url, "declare-queue", "-q", "lasting", "-d")
    output(url, "publish", "-r", "lasting", "-p", "-b", "kept")
    # amqp-publish asks for no confirm; that the queue answers shows that the message is in it.
    output(url, "declare-queue", "-q", "another", "-d")
    mortal.kill()
    mortal.restart()
    assert output(url, "get", "-q", "lasting") == b"kept"
