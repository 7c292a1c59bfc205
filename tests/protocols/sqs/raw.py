"""Requests written by hand, for what no SDK would send."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.served import Served
from tests.waiting import PATIENCE_S

JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    server: Served, method: str, path: str, body: str | bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
    data = body.encode() if isinstance(body, str) else body
    connection.request(method, path, data, dict(headers or {}))
    answer = connection.getresponse()
    text = answer.read().decode()
    found = Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    connection.close()
    return found


def act(server: Served, action: str, body: str | bytes | dict[str, Any] = b"{}", path: str = "/") -> Answer:
    """An action in the JSON protocol."""
    data = json.dumps(body) if isinstance(body, dict) else body
    return ask(server, "POST", path, data, {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": JSON})


def form(server: Served, body: str, path: str = "/") -> Answer:
    return ask(server, "POST", path, body, {"Content-Type": FORM})


def command(server: Served, name: str, **payload: object) -> Any:
    """A command over HTTP, which succeeds."""
    data = json.dumps({"command": name, "payload": payload})
    answer = ask(server, "POST", "/v1/command", data, {"Content-Type": "application/json"})
    assert answer.status == 200, answer.body
    return answer.json()
