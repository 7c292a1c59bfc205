"""Thousands of requests drawn at random, sensible and otherwise: each is answered, and none is a fault of ours.

What they are made of is read from the commands themselves, so that a new command or field is drawn too.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from smista.engine import Broker
from smista.log import MemoryLog
from smista.protocols.http.commands import COMMANDS
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Format
from smista.protocols.http.stream import Stream
from smista.protocols.http.stream_frames import STREAM_COMMANDS
from smista.service.principal import anyone
from smista.service.service import Service

COUNT = 5_000
FIELDS = {
    name: [field.encode_name for field in msgspec.structs.fields(kind)]
    for name, kind in {**COMMANDS, **STREAM_COMMANDS}.items()
}
COMMON = ["queue.declare", "queue.publish", "queue.receive", "subscribe", "ack"]
NEEDED = ("queue", "exchange", "subscription", "tags", "receipt")
SENSIBLE: dict[str, list[Any]] = {
    "exchange": ["", "amq.direct", "amq.topic", "e"],
    "kind": ["direct", "fanout", "headers", "topic"],
    "lease_ms": [1, 1_000],
    "limit": [1, 2],
    "message": [1, "x", {"a": 1}],
    "messages": [[{"message": 1}], [{"body": "eA=="}, {"message": 2}, {}]],
    "namespace": ["/"],
    "per_second": [1e9],
    "prefetch": [1, 3, 10],
    "queue": ["q", "q", "q", "r", "q_dlq"],
    "settings": [{}, {"max_retries": 1}, {"lease_ms": 5}],
    "subscription": [1, 2, 3],
    "tags": [[1], [1, 2], [3]],
    "timeout": [0, 0.001],
    "wait_ms": [0, 1],
}
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 65_536, 1 << 31, 1 << 52, (1 << 63) - 1, -(1 << 63), 0.5, -0.5, 1e308, 5e-324),
    *("", "a", "/", "\x00", "é", "x" * 256, "x" * 1_025, "*", "#", "a.b", "0" * 36, "AAAA", "application/json"),
    *([], {}, ["q"], [0], [1, 1], [[]], {"a": 1}, {"": None}, {"x-match": "any", "a": 1}),
]
ODD_TEXT: list[Any] = [10**30, {"a": [-(10**30)]}]
ODD_BINARY: list[Any] = [b"", b"x", b"\xff\xfe", {b"k": 1}, {1: 2}, {None: 3}, msgspec.msgpack.Ext(3, b"z")]


class Drawer:
    def __init__(self, spoken: Format, seed: int) -> None:
        self._draw = random.Random(seed)
        self._odd = ODD + (ODD_TEXT if spoken is JSON else ODD_BINARY)
        self.message_ids = ["?"]
        self.receipts = ["?"]

    def request(self) -> tuple[str, dict[str, Any]]:
        draw = self._draw
        name = draw.choice([*FIELDS, *COMMON, *COMMON, *COMMON])
        often = draw.choice((0.1, 0.4))
        return name, {
            field: self._value(field) for field in FIELDS[name] if draw.random() < (0.9 if field in NEEDED else often)
        }

    def _value(self, field: str) -> Any:
        draw = self._draw
        if field in ("wait_ms", "timeout", "per_second"):
            return draw.choice(SENSIBLE[field])  # or it would take its time
        if draw.random() < 0.1:
            return draw.choice(self._odd)
        if field in ("message_id", "message_ids"):
            return draw.choice(self.message_ids) if field == "message_id" else draw.sample(self.message_ids, 1)
        if field in ("receipt", "receipts"):
            return draw.choice(self.receipts) if field == "receipt" else draw.sample(self.receipts, 1)
        return draw.choice(SENSIBLE.get(field, self._odd))

    def learn(self, result: Any) -> None:
        """Keep the names of what an answer tells of."""
        messages = result.get("messages") if isinstance(result, dict) else None
        for message in messages if isinstance(messages, list) else ():
            self.message_ids.append(message["message_id"])
            if "receipt" in message:
                self.receipts.append(message["receipt"])


@pytest.mark.parametrize("spoken", [JSON, MESSAGE_PACK], ids=["json", "msgpack"])
@pytest.mark.parametrize("seed", range(2))
async def test_no_request_is_a_fault_of_ours(spoken: Format, seed: int) -> None:
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(event: Any) -> None:
        frames.put_nowait(event)

    drawer = Drawer(spoken, seed)
    decode = msgspec.json.decode if spoken is JSON else msgspec.msgpack.decode
    async with await Broker.open(MemoryLog()) as broker:
        stream = Stream(
            Service(broker),
            anyone("http", "test"),
            spoken,
            events.get,
            send,
            output_bytes_max=1 << 20,
        )
        running = asyncio.create_task(stream.run())
        for number in range(COUNT):
            command, payload = drawer.request()
            data = spoken.encode({"id": number, "command": command, "payload": payload})
            key, frame = ("text", data.decode()) if spoken is JSON else ("bytes", data)
            events.put_nowait({"type": "websocket.receive", key: frame})
            answer: Any = {}
            while "id" not in answer:
                event = await frames.get()
                assert event["type"] == "websocket.send", (event, command, payload)
                answer = decode(event[key])
            assert answer["id"] == number
            if "error" in answer:
                error = answer["error"]
                assert error["code"] != "internal_error", (command, payload)
                assert error["message"].endswith((".", "!", "?")), (command, payload, error)
            else:
                drawer.learn(answer["result"])
        events.put_nowait({"type": "websocket.disconnect"})
        await running
