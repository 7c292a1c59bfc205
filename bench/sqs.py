"""Rates over SQS beside moto's server: the same loader, requests as boto3 writes them, the same machine, one run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import uvloop

from bench.machine import percentile
from bench.serving import serving

SECONDS = float(os.environ.get("SMISTA_TEST_BENCH_SECONDS", "4"))
CONNECTIONS = 32
BODY = "x" * 256

# As boto3 1.40 sends them; neither server verifies the signature.
_HEADERS = (
    "Accept-Encoding: identity\r\n"
    "Content-Type: application/x-amz-json-1.0\r\n"
    "User-Agent: Boto3/1.40.61 md/Botocore#1.40.61 ua/2.1 os/linux md/arch#x86_64 lang/python#3.11 md/pyimpl#CPython "
    "m/Z,b,D cfg/retry-mode#legacy Botocore/1.40.61\r\n"
    "x-amzn-query-mode: true\r\n"
    "X-Amz-Date: 20260131T120000Z\r\n"
    "Authorization: AWS4-HMAC-SHA256 Credential=test/20260131/us-east-1/sqs/aws4_request, "
    "SignedHeaders=content-type;host;x-amz-date;x-amz-target;x-amzn-query-mode, "
    "Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7\r\n"
    "amz-sdk-invocation-id: 8b1b5f0e-6c8b-4c0a-9a53-1f0f3f6f6d0a\r\n"
    "amz-sdk-request: attempt=1\r\n"
)


def request(action: str, parameters: dict[str, object]) -> bytes:
    body = json.dumps(parameters)
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: AmazonSQS.{action}\r\n{_HEADERS}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


# -- servers ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def moto() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5):
                break
            if server.poll() is not None:
                raise RuntimeError(f"moto's server ended with {server.returncode}")
            time.sleep(0.1)
        yield port
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


# -- the loader -------------------------------------------------------------------------------------------------------


class Link(asyncio.Protocol):
    """One connection that asks again as soon as it is answered; opened anew where the server closes it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self._wanted = -1
        self._is_last = False
        self._asked = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self._wanted < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            place = head.find(b"content-length:")
            self._wanted = end + 4 + int(head[place + 15 :].partition(b"\r\n")[0])
            self._is_last = b"\r\nconnection: close" in head
        if len(self._buffer) >= self._wanted:
            answer, self._buffer, self._wanted = self._buffer, b"", -1
            goes_on = self._load.answered(answer, time.perf_counter() - self._asked)
            if goes_on and not self._is_last:
                self._ask()
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.lost()


class Load:
    """One request over and over, on many connections, for a while or until `is_enough` says so of an answer."""

    def __init__(self, port: int, request: bytes, is_enough: Callable[[bytes], bool]) -> None:
        self.request = request
        self._port = port
        self._is_enough = is_enough
        self._end = 0.0
        self._is_over = False
        self._open = CONNECTIONS
        self._done = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self.latencies: list[float] = []

    async def run(self) -> float:
        """Returns how long it took."""
        start = time.perf_counter()
        self._end = start + SECONDS
        await asyncio.gather(*(self._connect() for _ in range(CONNECTIONS)))
        await self._done.wait()
        return time.perf_counter() - start

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: Link(self), "127.0.0.1", self._port)
        except OSError:
            self.lost()

    def answered(self, answer: bytes, took: float) -> bool:
        if self._is_enough(answer):
            self._is_over = True
        elif not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
            raise RuntimeError(answer.decode())
        else:
            self.latencies.append(took)
        return not self._is_over and time.perf_counter() < self._end

    def lost(self) -> None:
        if not self._is_over and time.perf_counter() < self._end:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            return
        self._open -= 1
        if not self._open:
            self._done.set()


class Result(NamedTuple):
    requests: float
    messages: float
    p50_ms: float
    p99_ms: float


async def measure(port: int, sent: bytes, per_request: int) -> Result:
    # Nothing is left, or as much is in flight as SQS allows.
    load = Load(port, sent, lambda answer: answer.endswith(b"\r\n\r\n{}") or b"#OverLimit" in answer)
    took = await load.run()
    ordered = sorted(load.latencies)
    rate = len(ordered) / took
    return Result(rate, rate * per_request, percentile(ordered, 0.5) * 1e3, percentile(ordered, 0.99) * 1e3)


def scenarios(url: str, batch_url: str) -> Iterator[tuple[str, bytes, int]]:
    """Two queues, so that the second finds nothing in flight."""
    entries = [{"Id": str(number), "MessageBody": BODY} for number in range(10)]
    yield "send", request("SendMessage", {"QueueUrl": url, "MessageBody": BODY}), 1
    yield "receive", request("ReceiveMessage", {"QueueUrl": url, "VisibilityTimeout": 600}), 1
    yield "send batch of 10", request("SendMessageBatch", {"QueueUrl": batch_url, "Entries": entries}), 10
    received = {"QueueUrl": batch_url, "VisibilityTimeout": 600, "MaxNumberOfMessages": 10}
    yield "receive batch of 10", request("ReceiveMessage", received), 10


async def create(port: int, name: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("CreateQueue", {"QueueName": name}))
    text = (await reader.readuntil(b"}")).decode()
    writer.close()
    found = re.search(r'"QueueUrl": ?"([^"]+)"', text)
    assert found is not None, text
    return found[1]


async def run(port: int) -> dict[str, Result]:
    urls = await create(port, "bench"), await create(port, "bench-batches")
    return {name: await measure(port, sent, count) for name, sent, count in scenarios(*urls)}


def main() -> None:
    print(f"{CONNECTIONS} connections, {len(BODY)}-byte bodies, up to {SECONDS:.0f} s each; Smista syncs every answer")
    with serving() as server:
        smistas = uvloop.run(run(server.port))
    with moto() as port:
        motos = uvloop.run(run(port))
    for scenario, ours in smistas.items():
        theirs = motos[scenario]
        print(
            f"{scenario:<20} smista {ours.requests:>7,.0f} requests/s {ours.messages:>8,.0f} msg/s "
            f"p50 {ours.p50_ms:5.1f} p99 {ours.p99_ms:6.1f} ms; moto {theirs.requests:>6,.0f} requests/s; "
            f"{ours.requests / theirs.requests:5.1f} times",
            flush=True,
        )
