"""The broker's address as a person writes it, its URL, and that of its stream."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from smista.errors import InvalidArgument

DEFAULT_ADDRESS = "http://127.0.0.1:9324"
DEFAULT_PORT = 9324
ADDRESS_VARIABLE = "SMISTA_URL"
STREAM_PATH = "/v1/stream"
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def http_url(address: str | None) -> str:
    """`http://host:port` or `https`, for that, `ws`, `wss`, or `host:port`; raises `InvalidArgument`.

    None means the address in the variable SMISTA_URL, or this machine's port 9324. A path is kept as a prefix, for
    brokers behind a proxy. The default port is 9324, and 443 with `https` and `wss`.
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
    port = port or (443 if scheme == "https" else DEFAULT_PORT)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}{parts.path.rstrip('/').removesuffix(STREAM_PATH)}"


def stream_url(address: str | None) -> str:
    """The URL of the broker's WebSocket, for the same."""
    return f"ws{http_url(address).removeprefix('http')}{STREAM_PATH}"


def shown_address(url: str) -> str:
    """The address as a person would write it, from the URL of the stream."""
    return f"http{url.removeprefix('ws').removesuffix(STREAM_PATH)}"
