"""How a client says who it is: name and password in the responses of two SASL mechanisms."""

from __future__ import annotations

from smista.protocols.amqp.wire import values
from smista.protocols.amqp.wire.values import Reader, SyntaxFault

MECHANISMS = b"PLAIN AMQPLAIN"


def read_credentials(mechanism: str, response: bytes) -> tuple[str, str] | None:
    """Name and password out of a response; None where it is malformed or the mechanism is not one of ours."""
    match mechanism:
        case "PLAIN":
            return _plain(response)
        case "AMQPLAIN":
            return _amqplain(response)
    return None


def _plain(response: bytes) -> tuple[str, str] | None:
    """RFC 4616, without a name to act under: NUL, name, NUL, password."""
    try:
        nobody, name, password = response.decode().split("\0")
    except ValueError:
        return None
    return None if nobody else (name, password)


def _amqplain(response: bytes) -> tuple[str, str] | None:
    """A field table without its length."""
    try:
        table = Reader(values.long_string(response)).table()
    except SyntaxFault:
        return None
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    return (name, password) if isinstance(name, str) and isinstance(password, str) else None
