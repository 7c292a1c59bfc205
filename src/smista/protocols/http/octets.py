"""A message as its bytes and nothing else; its metadata stands in headers."""

from __future__ import annotations

import re

import msgspec

from smista.protocols.http.commands.receiving import Messages
from smista.protocols.http.messages import MessageView
from smista.protocols.web.asgi import Send, respond

DEFAULT_TYPE = "application/octet-stream"
HEADERS_MAX = 64
"""Clients refuse answers with many more."""

# RFC 9110: a name is a token; a value holds no control characters, and no space at its ends.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[!-~](?:[ -~]{0,998}[!-~])?")


async def respond_message(send: Send, answer: object) -> None:
    """The one message of an answer; 204 where there is none."""
    assert isinstance(answer, Messages)
    if not answer.messages:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    [view] = answer.messages
    assert isinstance(view.body, bytes)
    content_type = view.content_type
    if not isinstance(content_type, str) or not _VALUE.fullmatch(content_type):
        content_type = DEFAULT_TYPE
    await respond(send, 200, content_type.encode(), view.body, tuple(_headers(view)))


def _headers(view: MessageView) -> list[tuple[bytes, bytes]]:
    shown: dict[str, object] = {
        "smista-message-id": view.message_id,
        "smista-receipt": view.receipt,
        "smista-delivery-count": view.delivery_count,
        "smista-priority": view.priority,
    }
    for name, value in list(view.headers.items())[:HEADERS_MAX]:
        shown[f"smista-header-{name}"] = value
    return [
        (name.lower().encode(), text.encode())
        for name, value in shown.items()
        if _NAME.fullmatch(name) and _VALUE.fullmatch(text := _text(value))
    ]


def _text(value: object) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
