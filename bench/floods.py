"""What others notice of one hostile AMQP client: how long publishes over HTTP take alone, and beside its flood.

The flood comes from a process of its own, as fast as the broker reads it. What the broker answers is thrown away, or
not even read. The other client publishes to a queue of its own, one message after another.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.machine import percentile
from bench.serving import serving
from smista.protocols.amqp.wire import content, frames, methods
from smista.protocols.amqp.wire.content import BasicProperties
from smista.protocols.amqp.wire.methods import Method

SECONDS = float(os.environ.get("SMISTA_TEST_BENCH_SECONDS", "5"))
PAUSE_S = 0.005
"""Between two publishes of the other client."""
HEARTBEAT = frames.frame(8, 0, b"")


class Flood(NamedTuple):
    chunk: bytes
    """What is sent over and over."""
    setup: tuple[Method, ...] = ()
    reads: bool = True
    first: bytes = b""
    """What is sent once, before the measurement."""


def on(method: Method) -> bytes:
    return frames.method_frame(1, method)


def publish(exchange: str, key: str, body: bytes = b"x" * 100, *, mandatory: bool = False, cc: int = 0) -> bytes:
    basic = BasicProperties(delivery_mode=2)
    if cc:
        basic.headers = {"CC": [f"n{number}" for number in range(cc)]}
    head = content.write_head(len(body), content.write_properties(basic))
    return (
        on(methods.BasicPublish(0, exchange, key, mandatory, False))
        + frames.frame(frames.HEADER, 1, head)
        + frames.frame(frames.BODY, 1, body)
    )


def declared(name: str, **arguments: object) -> Method:
    return methods.QueueDeclare(0, name, False, True, False, False, True, arguments)


def many(count: int, prefix: str) -> Iterator[Method]:
    for number in range(count):
        yield declared(f"{prefix}{number}")
        yield methods.QueueBind(0, f"{prefix}{number}", "amq.fanout", "", True, {})


ENDS_SETUP = methods.QueueDeclare(0, "", False, False, True, False, False, {})
DROPPING = declared("full", **{"x-max-length": 1_000})
FLOODS: dict[str, Callable[[], Flood]] = {
    "publishes to a full queue that drops its oldest": lambda: Flood(publish("", "full") * 500, (DROPPING,)),
    "unroutable publishes": lambda: Flood(publish("amq.direct", "nowhere") * 500),
    "unroutable publishes, each with a key of its own": lambda: Flood(
        b"".join(publish("amq.direct", f"key {number}") for number in range(20_000))
    ),
    "unroutable publishes that are returned": lambda: Flood(publish("amq.direct", "nowhere", mandatory=True) * 500),
    "publishes": lambda: Flood(publish("", "q") * 500, (declared("q", **{"x-max-length-bytes": 50_000_000}),)),
    "publishes to 5,000 queues": lambda: Flood(publish("amq.fanout", "") * 10, tuple(many(5_000, "f"))),
    "publishes with a CC of 10,000": lambda: Flood(
        publish("", "n0", cc=10_000), tuple(declared(f"n{number}") for number in range(10_000))
    ),
    "basic.get of an empty queue": lambda: Flood(on(methods.BasicGet(0, "q", True)) * 1_000, (declared("q"),)),
    "basic.qos": lambda: Flood(on(methods.BasicQos(0, 1, False)) * 1_000),
    "basic.qos by a client that does not read": lambda: Flood(on(methods.BasicQos(0, 1, False)) * 1_000, reads=False),
    "basic.recover of 10,000 messages": lambda: Flood(
        on(methods.BasicRecoverAsync(True)) * 100,
        (declared("q"),),
        first=publish("", "q", b"") * 10_000 + on(methods.BasicConsume(0, "q", "c", False, False, False, True, {})),
    ),
    "heartbeats": lambda: Flood(HEARTBEAT * 5_000),
}


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    start = methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")
    tune = frames.method_frame(0, methods.ConnectionTuneOk(2047, 131_072, 0))
    for sent in (
        frames.PROTOCOL_HEADER,
        frames.method_frame(0, start),
        tune + frames.method_frame(0, methods.ConnectionOpen("/")),
        on(methods.ChannelOpen()),
    ):
        connection.sendall(sent)
        connection.recv(1 << 16)
    return connection


def flood(name: str, port: int) -> None:
    """The hostile client. Says when it is ready, begins when it is answered, and goes on until it is ended."""
    work = FLOODS[name]()
    connection = connect(port)
    connection.sendall(b"".join(map(on, work.setup)) + work.first + on(ENDS_SETUP))
    connection.recv(64)
    if work.reads:
        threading.Thread(target=_read, args=(connection,), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.readline()
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(work.chunk)


def _read(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(1 << 20):
            pass


def times(connection: http.client.HTTPConnection) -> list[float]:
    """How long publishes of the other client take."""
    found, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        command(connection, "queue.publish", b'{"queue": "healthy", "message": "x"}')
        found.append(time.perf_counter() - start)
        time.sleep(PAUSE_S)
    return sorted(found)


def command(connection: http.client.HTTPConnection, name: str, payload: bytes) -> None:
    body = b'{"command": "%s", "payload": %s}' % (name.encode(), payload)
    connection.request("POST", "/v1/command", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    assert response.status < 300, answer


def measure(name: str) -> None:
    with serving() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        command(connection, "queue.declare", b'{"queue": "healthy"}')
        arguments = [sys.executable, "-m", "bench.floods", name, str(server.amqp_port)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hostile:
            try:
                assert hostile.stdin is not None
                assert hostile.stdout is not None
                assert hostile.stdout.readline() == b"ready\n"
                alone = times(connection)
                hostile.stdin.write(b"\n")
                hostile.stdin.flush()
                beside = times(connection)
            finally:
                hostile.kill()
    print(f"{name:<50} {_summary(alone)}   {_summary(beside)}", flush=True)


def _summary(found: list[float]) -> str:
    return "/".join(f"{percentile(found, share) * 1e3:.0f}" for share in (0.5, 0.99)) + f"/{found[-1] * 1e3:.0f}"


def main() -> None:
    chosen = os.environ.get("SMISTA_TEST_BENCH_SCENARIOS", "")
    print(f"{'a publish of another client, ms: p50/p99/longest':<50} alone   beside the flood")
    for name in FLOODS:
        if re.search(chosen, name):
            measure(name)


if __name__ == "__main__":
    flood(sys.argv[1], int(sys.argv[2]))
