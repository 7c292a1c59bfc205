"""Who may come in, and as whom. For now `guest` with password `guest`, from this machine only, as RabbitMQ ships.

Real users will be looked up here, and nowhere else.
"""

from __future__ import annotations

import hmac
import ipaddress

from smista.service.principal import Principal


def why_refused(name: str, password: str, address: str) -> str | None:
    """Why somebody may not come in, for the broker's own log: the client does not hear it. None where they may."""
    is_guest, is_right = (
        hmac.compare_digest(given.encode("utf-8", "surrogateescape"), b"guest") for given in (name, password)
    )
    if not is_guest:
        return "there is no such user; only guest is known"
    if not is_right:
        return "the password is not right"
    return None if _is_loopback(address) else "guest may come in from the broker's own machine only"


def principal_of(name: str, peer: str) -> Principal:
    """Who somebody is that has come in. There are no permissions yet: everybody may do everything."""
    return Principal(name, "amqp", peer)


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
