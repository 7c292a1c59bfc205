"""What the HTTP server answers by itself, before or instead of the application: a status, a code, a sentence."""

from __future__ import annotations

from http import HTTPStatus

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    status: HTTPStatus
    code: str
    message: str
    why: str = ""
    """What the answer says instead. It may hold what came in, as a header's value, which stays out of the log."""

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({"error": {"code": self.code, "message": self.why or self.message}})

    def wire(self, standard_lines: bytes) -> bytes:
        """The whole response, with the header lines that every answer has. The connection ends after it."""
        body = self.body
        status_line = b"HTTP/1.1 %d %s\r\n" % (self.status, self.status.phrase.encode())
        lines = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        return status_line + standard_lines + lines + body


MALFORMED = Refusal(HTTPStatus.BAD_REQUEST, "malformed_request", "This is not HTTP/1.1 as the broker can read it.")
UNKNOWN_CODING = Refusal(
    HTTPStatus.NOT_IMPLEMENTED,
    "malformed_request",
    "The only transfer coding that is known here is chunked; send the body without any other.",
)
UNKNOWN_VERSION = Refusal(
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "malformed_request", "Only HTTP/1.1 and HTTP/1.0 are spoken here."
)
UPGRADE_TOO_EARLY = Refusal(
    HTTPStatus.BAD_REQUEST, "malformed_request", "An upgrade has to wait for the answers to the requests before it."
)
NO_HANDSHAKE = Refusal(
    HTTPStatus.BAD_REQUEST, "malformed_request", "This is not the opening handshake of a WebSocket; see RFC 6455."
)
TOO_MANY_HEADERS = Refusal(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "headers_too_large",
    "The request has more than 200 headers; send fewer.",
)

FAULT = Refusal(
    HTTPStatus.INTERNAL_SERVER_ERROR,
    "internal_error",
    "The broker is at fault; its log says more. Nothing was confirmed.",
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
BODY_GIVEN_UP = Refusal(
    HTTPStatus.REQUEST_TIMEOUT,
    "request_timeout",
    "Memory is low, and the body hardly grew; nothing was done. Send it again, at least 1 KiB per second.",
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
