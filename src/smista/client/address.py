"""Where the broker is, as people write it, and the URL of its stream."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from smista.core.errors import InvalidArgument

DEFAULT_ADDRESS = "http://127.0.0.1:9324"
DEFAULT_PORT = 9324
ADDRESS_VARIABLE = "SMISTA_URL"
STREAM_PATH = "/v1/stream"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def stream_url(address: str | None) -> str:
    """The WebSocket URL for `http://host:port`, `https`, `ws`, `wss`, or `host:port`; raises `InvalidArgument`.

    None is what the variable SMISTA_URL says, else this machine's port 9324.
    A path stays in front of the stream's own, for brokers behind a proxy; without a port it is 9324, with `https` and
    `wss` their usual 443.
    """
    if address is None:
        address = os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    if not isinstance(address, str):
        raise InvalidArgument(
            f"The address of a broker is text, not {type(address).__name__}; write it as {DEFAULT_ADDRESS}."
        )
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in _SCHEMES or not host or parts.query or parts.fragment or parts.username:
        raise InvalidArgument(f"{address!r} is not the address of a broker; write it as {DEFAULT_ADDRESS}.")
    scheme = _SCHEMES[parts.scheme]
    port = port or (443 if scheme == "wss" else DEFAULT_PORT)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}{parts.path.rstrip('/').removesuffix(STREAM_PATH)}{STREAM_PATH}"


def shown_address(url: str) -> str:
    """The address as people write it, of the URL of its stream."""
    return f"http{url.removeprefix('ws').removesuffix(STREAM_PATH)}"
