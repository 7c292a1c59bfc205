"""Somebody on the stream: one WebSocket, in JSON or in MessagePack, read only when asked to."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections import deque
from typing import Any, NamedTuple, Self

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.protocols.http.caller import Caller
from tests.server.raw_http import HANDSHAKE, Client, Opcode, frame
from tests.waiting import PATIENCE_S


def encode(speaks: str, value: object) -> bytes:
    return msgspec.json.encode(value) if speaks == "json" else msgspec.msgpack.encode(value)


def decode(speaks: str, data: str | bytes) -> Any:
    if speaks == "json":
        return msgspec.json.decode(data)
    assert isinstance(data, bytes)
    return msgspec.msgpack.decode(data)


class Refusal(NamedTuple):
    code: str
    message: str


class Talk(contextlib.closing["Talk"]):
    def __init__(self, address: tuple[str, int], speaks: str = "json") -> None:
        super().__init__(self)
        self.address = address
        self.speaks = speaks
        self._stack = contextlib.ExitStack()
        self.socket = self._stack.enter_context(
            connect(
                f"ws://{address[0]}:{address[1]}/v1/stream",
                subprotocols=[Subprotocol(f"smista.{speaks}")],
                compression=None,
                max_size=None,
                open_timeout=PATIENCE_S,
                close_timeout=PATIENCE_S,
                ping_interval=None,
            )
        )
        self.pushed: deque[tuple[int, dict[str, Any]]] = deque()
        """Messages that have come, each with its subscription."""
        self.ended: list[tuple[int, Refusal]] = []
        self._ids = itertools.count(1)

    def another(self, speaks: str | None = None) -> Talk:
        return Talk(self.address, speaks or self.speaks)

    def close(self) -> None:
        self._stack.close()

    # -- frames -------------------------------------------------------------------------------------------------------

    def send_frame(self, data: bytes, *, text: bool | None = None) -> None:
        is_text = self.speaks == "json" if text is None else text
        self.socket.send(data, text=is_text)

    def send(self, value: object) -> None:
        self.send_frame(encode(self.speaks, value))

    def next(self) -> Any:
        """The next frame that answers something; what is pushed meanwhile is kept."""
        while True:
            frame = self._receive()
            if isinstance(frame, dict) and "subscription" in frame:
                self._keep(frame)
            else:
                return frame

    def _receive(self) -> Any:
        data = self.socket.recv(timeout=PATIENCE_S)
        assert isinstance(data, str) == (self.speaks == "json")
        return decode(self.speaks, data)

    def _keep(self, frame: dict[str, Any]) -> None:
        subscription = frame["subscription"]
        if "ended" in frame:
            assert list(frame) == ["subscription", "ended"]
            self.ended.append((subscription, _refusal(frame["ended"])))
        else:
            assert list(frame) == ["subscription", "messages"]
            self.pushed += [(subscription, message) for message in frame["messages"]]

    # -- requests -----------------------------------------------------------------------------------------------------

    def request(self, command: str, **payload: Any) -> dict[str, Any]:
        """A request with an id of its own."""
        return {"id": next(self._ids), "command": command, "payload": payload}

    def ask(self, command: str, **payload: Any) -> Any:
        """What a command answers."""
        answer = self._answered(self.request(command, **payload))
        assert "result" in answer, answer
        return answer["result"]

    def refused(self, command: str, **payload: Any) -> Refusal:
        """How a command is refused."""
        answer = self._answered(self.request(command, **payload))
        assert "error" in answer, answer
        return _refusal(answer["error"])

    def unread(self, data: bytes, *, text: bool | None = None) -> tuple[Any, Refusal]:
        """How a frame is refused, and with which id."""
        self.send_frame(data, text=text)
        answer = self.next()
        assert list(answer) == ["id", "error"], answer
        return answer["id"], _refusal(answer["error"])

    def _answered(self, request: dict[str, Any]) -> dict[str, Any]:
        self.send(request)
        answer: dict[str, Any] = self.next()
        assert answer["id"] == request["id"], answer
        return answer

    # -- what tests do again and again --------------------------------------------------------------------------------

    def subscribe(self, queue: str, **payload: Any) -> int:
        number: int = self.ask("subscribe", queue=queue, **payload)["subscription"]
        return number

    def messages(self, count: int) -> list[dict[str, Any]]:
        """The next messages, to whichever subscription."""
        while len(self.pushed) < count:
            frame = self._receive()
            assert "subscription" in frame, frame
            self._keep(frame)
        return [self.pushed.popleft()[1] for _ in range(count)]

    def tags(self, count: int) -> list[int]:
        return [message["tag"] for message in self.messages(count)]

    def end(self) -> Refusal:
        """How the broker ends a subscription."""
        while not self.ended:
            self._keep(self._receive())
        return self.ended.pop(0)[1]

    def close_code(self) -> int:
        """The code with which the broker closes; what comes before is thrown away."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.socket.recv(timeout=PATIENCE_S)
        code = self.socket.close_code
        assert code is not None
        return code


def _refusal(error: dict[str, Any]) -> Refusal:
    """What an error says. Its shape is checked on the way."""
    assert list(error) == ["code", "message"]
    assert error["message"].endswith((".", "!", "?")), error
    assert "Traceback" not in error["message"]
    return Refusal(error["code"], error["message"])


def bodies(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["message"] for message in messages]


def fill(http: Caller, queue: str, count: int) -> None:
    """Publish 0, 1, 2, ..."""
    http.call("queue.publish_batch", queue=queue, messages=[{"message": number} for number in range(count)])


class Stubborn(Client):
    """A raw connection to the stream, in MessagePack, that does only what it is told to: it answers no pings, and reads
    nothing unless asked."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int | None = None) -> None:
        super().__init__(address, receive_buffer=receive_buffer)
        self.send(b"GET /v1/stream HTTP/1.1\r\nSec-WebSocket-Protocol: smista.msgpack\r\n" + HANDSHAKE)
        assert self.answer().status == 101

    def ask(self, command: str, **payload: Any) -> None:
        """Send a request that nobody will read the answer to."""
        self.send(asked(command, **payload))

    def __enter__(self) -> Self:
        return self

    def reset(self) -> None:
        """End the connection as the kernel does for a process that was killed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    @property
    def is_refused(self) -> bool:
        """Whether what is sent is refused, as the connection is gone."""
        try:
            self.send(frame(Opcode.PONG, b""))
        except OSError:
            return True
        return False


def asked(command: str, *, request_id: int | None = 1, **payload: Any) -> bytes:
    """A request as it goes over a raw connection."""
    return frame(Opcode.BINARY, msgspec.msgpack.encode({"id": request_id, "command": command, "payload": payload}))
