"""The stream in this process, its peer played."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from smista.engine import Broker
from smista.protocols.http.formats import JSON, Format
from smista.protocols.http.stream import Stream
from smista.service.held import Held, HeldBytes
from smista.service.principal import anyone
from smista.service.service import Service


class Peer:
    """The other side of a stream, without a socket."""

    def __init__(self, broker: Broker, spoken: Format = JSON) -> None:
        self._spoken = spoken
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.held = HeldBytes()
        self.stream = Stream(
            Service(broker),
            anyone("http", "test"),
            spoken,
            self._events.get,
            self._send,
            output_bytes_max=1 << 20,
            held=Held(self.held),
        )
        self.running = asyncio.create_task(self.stream.run())

    async def _send(self, event: Any) -> None:
        self._frames.put_nowait(event)

    def send(self, command: str, **payload: Any) -> None:
        request = {"id": command, "command": command, "payload": payload}
        self._send_frame(request)

    def send_array(self, *requests: tuple[str, dict[str, Any]]) -> None:
        """Requests in one frame, numbered from 0."""
        self._send_frame(
            [{"id": number, "command": name, "payload": payload} for number, (name, payload) in enumerate(requests)]
        )

    def _send_frame(self, frame: Any) -> None:
        data = self._spoken.encode(frame)
        data_of = {"text": data.decode()} if self._spoken is JSON else {"bytes": data}
        self._events.put_nowait({"type": "websocket.receive", **data_of})

    @property
    def waiting_count(self) -> int:
        """Of frames that it has sent and nobody has read."""
        return self._events.qsize()

    async def next(self) -> Any:
        """The next frame, or the code of the close."""
        event = await self._frames.get()
        if event["type"] == "websocket.close":
            return event["code"]
        return msgspec.json.decode(event["text"]) if self._spoken is JSON else msgspec.msgpack.decode(event["bytes"])

    async def go(self) -> None:
        self._events.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await self.running
