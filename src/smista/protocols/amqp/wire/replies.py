"""Reply codes, and errors that close a channel or a connection."""

from __future__ import annotations

from smista.protocols.amqp.wire import values

NO_ROUTE = 312
CONNECTION_FORCED = 320
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

NAMES = {
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

Ids = tuple[int, int]
"""Class and method, as a close names what it was about; zeros for nothing in particular."""


class AmqpError(Exception):
    """What the client did cannot be; `text` is what RabbitMQ would say, without the name of the code.

    `ids` name the method that was at fault where the frame that brought it up is another one's. A text that quotes what
    came is for the client alone: a password may be in it.
    """

    def __init__(self, code: int, text: str, *, ids: Ids | None = None, is_quoting: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.ids = ids
        self._is_quoting = is_quoting

    @property
    def reply_text(self) -> str:
        """As a short string holds it: at most 255 bytes."""
        return values.cut(f"{NAMES[self.code]} - {self.text}")

    @property
    def log_text(self) -> str:
        return NAMES[self.code] if self._is_quoting else self.reply_text


class ChannelClosing(AmqpError):
    """Closes the channel it happened on."""


class ConnectionClosing(AmqpError):
    """Closes the connection."""


class LoginRefused(ConnectionClosing):
    """Closes it because nobody may come in so. `why` is for the broker's log; the client hears what RabbitMQ says."""

    def __init__(self, mechanism: str, why: str) -> None:
        super().__init__(
            ACCESS_REFUSED,
            f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
            ids=(0, 0),
        )
        self.why = why


class HeaderRefused(ConnectionClosing):
    """What came first is something else; the client hears what we speak."""

    def __init__(self) -> None:
        super().__init__(FRAME_ERROR, "what came first is not the header of AMQP 0-9-1")

    @property
    def log_text(self) -> str:
        return self.text


# -- frames and bytes that cannot be, as RabbitMQ shows them ----------------------------------------------------------

SNIPPET_BYTES = 16


def frame_error(kind: int, payload: bytes, why: str) -> ConnectionClosing:
    """What came is no frame."""
    return ConnectionClosing(FRAME_ERROR, f"{_snippet(kind, payload)}: {why}", ids=(0, 0), is_quoting=True)


def unexpected_frame(kind: int, payload: bytes) -> ConnectionClosing:
    """A frame that should not come here."""
    return ConnectionClosing(UNEXPECTED_FRAME, _snippet(kind, payload), ids=(0, 0), is_quoting=True)


def undecodable(payload: bytes, ids: Ids) -> ConnectionClosing:
    """A method whose arguments cannot be read."""
    return ConnectionClosing(FRAME_ERROR, f"cannot decode {shown(payload)}", ids=ids, is_quoting=True)


def _snippet(kind: int, payload: bytes) -> str:
    if len(payload) <= SNIPPET_BYTES:
        return f"type {kind}, all octets = {shown(payload)}"
    return f"type {kind}, first {SNIPPET_BYTES} octets = {shown(payload[:SNIPPET_BYTES])}"


def shown(data: bytes) -> str:
    """Bytes in Erlang's notation; no more of them than a reply text could hold."""
    data = data[: values.SHORT_BYTES_MAX]
    if data and all(0x20 <= each < 0x7F for each in data):
        text = data.decode("ascii").replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{text}">>'
    return f"<<{','.join(map(str, data))}>>"
