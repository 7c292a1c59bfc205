"""Names of queues and exchanges for the shell's completion: asked of the broker in a moment, or nothing at all.

Not through the client, which takes longer to load than somebody who pressed Tab wants to wait.
"""

from __future__ import annotations

import os
from typing import Any

import typer

from smista.cli.reach import DEFAULT_URL, URL_VARIABLE

TIMEOUT_S = 0.3
NAMES_MAX = 100


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    queues = _asked(context, "queue.list", {"prefix": incomplete, "limit": NAMES_MAX}, "queues")
    return [queue for queue in queues if isinstance(queue, str)]


def exchange_names(context: typer.Context, incomplete: str) -> list[str]:
    exchanges = _asked(context, "exchange.list", {}, "exchanges")
    names = [str(exchange.get("exchange", "")) for exchange in exchanges if isinstance(exchange, dict)]
    return [name for name in names if name and name.startswith(incomplete)][:NAMES_MAX]


def _asked(context: typer.Context, command: str, payload: dict[str, object], field: str) -> list[Any]:
    """What the broker answers in `field`; nothing where there is no broker, no time or no sense in the answer."""
    import http.client
    import json
    from urllib.parse import urlsplit

    url = _said(context, "url") or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if namespace := _said(context, "namespace"):
        payload = {**payload, "namespace": namespace}
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_secure = parts.scheme in ("https", "wss")
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port or (443 if is_secure else 9324), timeout=TIMEOUT_S)
        try:
            body = json.dumps({"command": command, "payload": payload})
            connection.request(
                "POST", parts.path.rstrip("/") + "/v1/command", body, {"Content-Type": "application/json"}
            )
            found = json.loads(connection.getresponse().read())[field]
        finally:
            connection.close()
    except Exception:
        # A shell that completes must not show an error in the middle of somebody's line, whatever it is.
        return []
    return found if isinstance(found, list) else []


def _said(context: Any, name: str) -> str | None:
    """What the unfinished command line says about `name`, after the command or before it."""
    while context is not None:
        value = context.params.get(name)
        if isinstance(value, str):
            return value
        context = context.parent
    return None
