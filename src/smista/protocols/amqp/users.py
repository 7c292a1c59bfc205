"""Who may come in. For now `guest` with password `guest`, from this machine only, as RabbitMQ ships.

Real users will be looked up here, and nowhere else.
"""

from __future__ import annotations

import hmac
import ipaddress

from smista.protocols.amqp import values
from smista.protocols.amqp.values import Reader, SyntaxFault

MECHANISMS = b"PLAIN AMQPLAIN"


def read_credentials(mechanism: str, response: bytes) -> tuple[str, str] | None:
    """Name and password out of a SASL response; None where it is malformed or the mechanism is not one of ours."""
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


def why_refused(name: str, password: str, peer: str) -> str | None:
    """Why somebody may not come in, for the broker's own log: the client is not told. None where they may."""
    is_guest, is_right = (
        hmac.compare_digest(said.encode("utf-8", "surrogateescape"), b"guest") for said in (name, password)
    )
    if not is_guest:
        return "there is no such user; only guest is known"
    if not is_right:
        return "the password is not right"
    return None if _is_loopback(peer) else "guest may come in from the broker's own machine only"


def _is_loopback(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
