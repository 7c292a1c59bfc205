"""Names of queues and exchanges for shell completion, from the broker if it answers at once.

Uses plain HTTP: the client takes too long to load for a press of Tab.
"""

from __future__ import annotations

from typing import Any

import typer

from smista.address import http_url

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
    """A field of the broker's answer; empty if there is no answer in time or it cannot be read."""
    import http.client
    import json
    from urllib.parse import urlsplit

    if namespace := _option(context, "namespace"):
        payload = {**payload, "namespace": namespace}
    try:
        parts = urlsplit(http_url(_option(context, "url")))
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            body = json.dumps({"command": command, "payload": payload})
            connection.request("POST", parts.path + "/v1/command", body, {"Content-Type": "application/json"})
            found = json.loads(connection.getresponse().read())[field]
        finally:
            connection.close()
    except Exception:
        # Completion must never print an error into the line being typed.
        return []
    return found if isinstance(found, list) else []


def _option(context: Any, name: str) -> str | None:
    """The value of an option on the unfinished command line, after the command or before it."""
    while context is not None:
        value = context.params.get(name)
        if isinstance(value, str):
            return value
        context = context.parent
    return None
