"""What the HTTP door answers by itself, before or instead of the application: a status, a code, a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    status: HTTPStatus
    code: str
    message: str

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({"error": {"code": self.code, "message": self.message}})

    def wire(self, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The whole response. The connection ends after it."""
        body = self.body
        lines = [
            b"HTTP/1.1 %d %s" % (self.status, self.status.phrase.encode()),
            *(b"%s: %s" % header for header in default_headers),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"connection: close",
        ]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body


MALFORMED = Refusal(HTTPStatus.BAD_REQUEST, "malformed_request", "This is not HTTP/1.1 as the broker can read it.")
UPGRADE_TOO_EARLY = Refusal(
    HTTPStatus.BAD_REQUEST, "malformed_request", "An upgrade has to wait for the answers to the requests before it."
)
NO_HANDSHAKE = Refusal(
    HTTPStatus.BAD_REQUEST, "malformed_request", "This is not the opening handshake of a WebSocket; see RFC 6455."
)

STOPPING = Refusal(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "broker_closed",
    "The broker is stopping, and the request was not complete; nothing was done. Send it again in a moment.",
)
CUT_OFF = Refusal(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "outcome_unknown",
    "The broker stopped before this was done, so it may or may not be; repeat it under the same deduplication id.",
)


def too_many_connections(connections_max: int) -> Refusal:
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too_many_connections",
        f"{connections_max} connections are open, which is the limit; close some, or raise connections_max.",
    )


def no_place(why: str) -> Refusal:
    """The process may have no more files open."""
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too_many_connections", f"{why}.")


def headers_too_large(header_bytes_max: int) -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "headers_too_large",
        f"Request line and headers are over {header_bytes_max} bytes; shorten them, or raise header_bytes_max.",
    )


def request_too_large(bytes_max: int, setting: str = "request_bytes_max") -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "request_too_large",
        f"The body is over {bytes_max} bytes; send it in parts, or raise {setting}.",
    )


def header_too_slow(header_timeout_s: float) -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_TIMEOUT,
        "request_timeout",
        f"Request line and headers did not come within {header_timeout_s:g} s; send them at once.",
    )


def body_too_slow(body_timeout_s: float) -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_TIMEOUT,
        "request_timeout",
        f"The body hardly grew for {body_timeout_s:g} s; send at least 1 KiB per second.",
    )
