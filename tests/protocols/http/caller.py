"""Somebody who calls HTTP over a real socket, in JSON or in MessagePack."""

from __future__ import annotations

import contextlib
import http.client
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from tests.served import Served
from tests.waiting import PATIENCE_S

CONTENT_TYPES = {"json": "application/json", "msgpack": "application/msgpack"}
ENCODERS = {"json": msgspec.json.encode, "msgpack": msgspec.msgpack.encode}

_numbers = itertools.count(1)


class Refusal(NamedTuple):
    status: int
    code: str
    message: str


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    @property
    def value(self) -> Any:
        """The body, read by its content type."""
        kind = self.headers["content-type"]
        assert kind in CONTENT_TYPES.values(), kind
        return (msgspec.json if kind == "application/json" else msgspec.msgpack).decode(self.body)

    @property
    def refusal(self) -> Refusal:
        """What an error says. Its shape is checked on the way."""
        assert 400 <= self.status < 600, (self.status, self.body)
        content = self.value
        assert list(content) == ["error"]
        assert list(content["error"]) == ["code", "message"]
        return Refusal(self.status, content["error"]["code"], content["error"]["message"])


class Caller(contextlib.closing["Caller"]):
    """One connection. It is opened anew when the server has closed it."""

    def __init__(self, address: tuple[str, int], speaks: str = "json") -> None:
        super().__init__(self)
        self.address = address
        self.speaks = speaks
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)

    def close(self) -> None:
        self._connection.close()

    def another(self, speaks: str | None = None) -> Caller:
        return Caller(self.address, speaks or self.speaks)

    # -- any request --------------------------------------------------------------------------------------------------

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send a request as it is; underscores in names of headers are hyphens."""
        self.start(method, path, body, **headers)
        return self.answer()

    def start(self, method: str, path: str, body: bytes | None = None, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, named)

    def answer(self) -> Answer:
        response = self._connection.getresponse()
        return Answer(response.status, dict(response.headers.items()), response.read())

    def write(self, data: bytes) -> None:
        """Put bytes on the wire behind what was sent."""
        assert self._connection.sock is not None
        self._connection.sock.sendall(data)

    # -- commands -----------------------------------------------------------------------------------------------------

    def post(self, command: str, payload: object, **headers: str) -> Answer:
        self.start_command(command, payload, **headers)
        return self.answer()

    def start_command(self, command: str, payload: object, **headers: str) -> None:
        """Send a command and do not wait for the answer."""
        body = ENCODERS[self.speaks]({"command": command, "payload": payload})
        self.start("POST", "/v1/command", body, content_type=CONTENT_TYPES[self.speaks], **headers)

    def call(self, command: str, **payload: Any) -> Any:
        """What a command answers."""
        answer = self.post(command, payload)
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"] == CONTENT_TYPES[self.speaks]
        return answer.value

    def refused(self, command: str, **payload: Any) -> Refusal:
        """How a command is refused."""
        return self.post(command, payload).refusal

    def octets(self, data: bytes) -> bytes | str:
        """Bytes as this format writes them in a field, so also as it shows them."""
        value: bytes | str = data if self.speaks == "msgpack" else msgspec.json.decode(msgspec.json.encode(data))
        return value

    # -- REST ---------------------------------------------------------------------------------------------------------

    def rest(self, method: str, *parts: str, fields: object = None, **query: object) -> Answer:
        """A REST request: the parts of the path under /v1, what the body says, and the query."""
        path = "/v1/" + "/".join(quote(part, safe="") for part in parts)
        if query:
            path += "?" + urlencode({name: _query_text(value) for name, value in query.items()}, doseq=True)
        if fields is None:
            return self.send(method, path)
        return self.send(method, path, ENCODERS[self.speaks](fields), content_type=CONTENT_TYPES[self.speaks])

    # -- what tests do again and again --------------------------------------------------------------------------------

    def new_queue(self, **settings: Any) -> str:
        """Declare a queue that no other test knows."""
        name = f"queue-{next(_numbers)}"
        self.call("queue.declare", queue=name, settings=settings)
        return name

    def publish(self, queue: str, *messages: Any, **fields: Any) -> list[str]:
        """Publish messages one after the other; their ids."""
        return [
            self.call("queue.publish", queue=queue, message=message, **fields)["message_id"] for message in messages
        ]

    def receive(self, queue: str, limit: int = 1, **fields: Any) -> list[dict[str, Any]]:
        received: list[dict[str, Any]] = self.call("queue.receive", queue=queue, limit=limit, **fields)["messages"]
        return received

    def stats(self, queue: str, **fields: Any) -> dict[str, Any]:
        stats: dict[str, Any] = self.call("queue.stats", queue=queue, **fields)
        return stats


def _query_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else value


def new_name(kind: str) -> str:
    """A name that no other test uses."""
    return f"{kind}-{next(_numbers)}"


def tracebacks(server: Served, since: int = 0) -> str:
    """What the server wrote about faults of its own, from its line `since` on."""
    lines = server.lines[since:]
    starts = [number for number, line in enumerate(lines) if "Traceback" in line]
    return "\n".join(lines[max(0, starts[0] - 3) :]) if starts else ""
