"""Which of the formats a request is written in, and which it is to be answered in."""

from __future__ import annotations

from smista.protocols.http.formats import JSON, MESSAGE_PACK, Format
from smista.protocols.web.asgi import Scope, header, kind_of, unsupported

_MESSAGE_PACK_TYPES = frozenset(
    (b"application/msgpack", b"application/x-msgpack", b"application/vnd.msgpack", b"application/messagepack")
)


def format_of(content_type: bytes) -> Format | None:
    """The format a content type stands for; None where it is neither of ours."""
    kind = kind_of(content_type)
    if kind == b"application/json" or kind.endswith(b"+json"):
        return JSON
    return MESSAGE_PACK if kind in _MESSAGE_PACK_TYPES else None


def request_format(scope: Scope) -> Format:
    """What a body is written in. It has to say so: a page of anybody's can send one that does not, or that says
    text/plain or a form, without asking first."""
    content_type = header(scope, b"content-type")
    found = None if content_type is None else format_of(content_type)
    if found is None:
        raise unsupported(content_type)
    return found


def answer_format(scope: Scope, default: Format) -> Format:
    """What `Accept` asks for, if that is one of ours."""
    accept = header(scope, b"accept")
    if accept is None:
        return default
    for choice in accept.split(b","):
        found = format_of(choice)
        if found is not None:
            return found
    return default


def wants_octets(scope: Scope) -> bool:
    """Whether `Accept` asks for bytes as they are, before any of our formats."""
    for choice in (header(scope, b"accept") or b"").split(b","):
        if kind_of(choice) == b"application/octet-stream":
            return True
        if format_of(choice) is not None:
            return False
    return False
