"""Logs: lines for people or JSON lines for machines, to standard error, through the standard `logging`.

    logger = logging.getLogger(__name__)
    logger.info("recovered", extra=fields(messages=12, took_ms=80))

    2026-01-31T12:00:00.123Z INFO    smista.server recovered messages=12 took_ms=80
    {"time":"2026-01-31T12:00:00.123Z","level":"info","logger":"smista.server","message":"recovered","messages":12,...}

Never log a body, a header's value or a secret. What can be kept out by machine is: a field of bytes is shown by its
length only, and the WebSocket library never gets the level at which it logs what it reads and writes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

from smista.text import safe

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def fields(**values: object) -> dict[str, dict[str, object]]:
    """What to pass as `extra` to a logger so that `values` stand beside the message."""
    return {"fields": values}


def configure(level: str, format: Literal["text", "json"], *, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (standard error) from `level` on. May be called again; the last call counts."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for former in [found for found in root.handlers if isinstance(found, _Handler)]:
        root.removeHandler(former)
    root.addHandler(handler)

    threshold = LEVELS[level]
    logging.getLogger("smista").setLevel(threshold)
    # What libraries log at level info is for whoever looks for a fault. At debug, websockets logs whole messages.
    root.setLevel(logging.INFO if threshold == logging.DEBUG else max(threshold, logging.WARNING))


def announcement(line: str, format: Literal["text", "json"], **values: object) -> str:
    """What is printed for whoever started the server: the bare line for people, an object as of the log for machines,
    with `values` beside it."""
    if format == "text":
        return line
    record = {"name": "smista.server", "levelno": logging.INFO, "levelname": "INFO", "msg": line, "fields": values}
    return JsonFormatter().format(logging.makeLogRecord(record))


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that `configure` finds the one it set before."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """A line that cannot be put together, since what it says does not go with its arguments: without them. Where
        the stream itself is gone, the line is lost."""
        error = sys.exception()
        if isinstance(error, OSError):
            return
        known = {"name": record.name, "levelno": logging.ERROR, "levelname": "ERROR", "msg": str(record.msg)}
        broken = logging.makeLogRecord({**known, "fields": {"broken": repr(error)}})
        with contextlib.suppress(Exception):
            self.stream.write(self.format(broken) + self.terminator)
            self.flush()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname:<7} {record.name} {_one_line(record.getMessage())}"
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        trace = _trace(self, record)
        return f"{line}{pairs}\n{trace}" if trace else line + pairs


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _fields(record).items():
            content.setdefault(name, value)
        if trace := _trace(self, record):
            content["trace"] = trace
        # Not msgspec: it refuses text that holds half a surrogate pair, and a log line must come out whatever it says.
        return json.dumps(content, default=str, separators=(",", ":"))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    values: dict[str, object] = getattr(record, "fields", {})
    return {name: _shown(value) for name, value in values.items()}


def _shown(value: object) -> object:
    """The value with its bytes left out: they may be somebody's body."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return {str(name): _shown(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _one_line(text: str) -> str:
    """Text in which nothing passes for a line, or an escape sequence, of its own."""
    return text if text.isprintable() else safe(text.rstrip())


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text and text.isprintable() and not any(c in ' "=' for c in text)
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())
