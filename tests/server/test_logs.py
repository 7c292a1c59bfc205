"""What log lines look like, and what never gets into them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from smista.server.logs import JsonFormatter, TextFormatter, configure, fields

logger = logging.getLogger("smista.test")
NAMES = [None, "smista"]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(it, it.level, it.propagate, list(it.handlers)) for it in loggers]
    yield
    for it, level, propagate, handlers in before:
        it.setLevel(level)
        it.propagate = propagate
        it.handlers = handlers


def written(format: Literal["text", "json"], level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure(level, format, stream=stream)
    return stream


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def after_time(stream: io.StringIO) -> str:
    time, _, rest = stream.getvalue().partition(" ")
    assert len(time) == len("2026-01-31T12:00:00.123Z")
    assert time.endswith("Z")
    return rest


def test_a_line_for_people() -> None:
    stream = written("text")
    logger.info("recovered %s", "orders", extra=fields(messages=12, data="/var/lib"))
    assert after_time(stream) == "INFO    smista.test recovered orders messages=12 data=/var/lib\n"


def test_a_line_for_machines() -> None:
    stream = written("json")
    logger.warning("recovered %s", "orders", extra=fields(messages=12, client=("10.0.0.1", 7), nothing=None))
    [line] = json_lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "smista.test",
        "message": "recovered orders",
        "messages": 12,
        "client": ["10.0.0.1", 7],
        "nothing": None,
    }


def test_fields_do_not_hide_what_every_line_has() -> None:
    stream = written("json")
    logger.info("true", extra=fields(message="false", level="false", code="x"))
    [line] = json_lines(stream)
    assert (line["message"], line["level"], line["code"]) == ("true", "info", "x")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ('a"b', '"a\\"b"'),
        ("a=b", '"a=b"'),
        ("line\nline", '"line\\nline"'),
        ("für", "für"),
        (0.5, "0.5"),
    ],
)
def test_a_value_that_could_be_misread_is_quoted(value: object, shown: str) -> None:
    stream = written("text")
    logger.info("said", extra=fields(it=value))
    assert after_time(stream) == f"INFO    smista.test said it={shown}\n"


def test_a_message_cannot_pass_for_another_line() -> None:
    stream = written("text")
    logger.info("a\n2026-01-31T12:00:00.123Z ERROR root forged \x1b[31m")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert "forged \\x1b[31m" in stream.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
def test_bytes_are_shown_by_their_length_only(format: Literal["text", "json"]) -> None:
    stream = written(format)
    nested = {"list": [b"secret"], "tuple": (bytearray(b"secret"),)}
    logger.info("received", extra=fields(body=b"secret", view=memoryview(b"secret"), nested=nested))
    assert "secret" not in stream.getvalue()
    assert "<6 bytes>" in stream.getvalue()


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_half_a_surrogate_pair_does_not_break_the_log(formatter: logging.Formatter) -> None:
    record = logging.makeLogRecord({"msg": "said \ud800", **fields(it="\ud800")})
    assert formatter.format(record).encode().count(b"ud800") == 2


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_traceback_comes_along(format: Literal["text", "json"]) -> None:
    stream = written(format)
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("failed", extra=fields(queue="orders"))
    trace = json_lines(stream)[0]["trace"] if format == "json" else stream.getvalue()
    assert "Traceback (most recent call last)" in trace
    assert "ValueError: broken" in trace


def test_lines_below_the_level_are_left_out() -> None:
    stream = written("text", "warning")
    logger.info("no")
    logger.warning("yes")
    assert after_time(stream) == "WARNING smista.test yes\n"


def test_configuring_again_replaces_what_was() -> None:
    first = written("text")
    second = written("json", "debug")
    logger.debug("once")
    assert first.getvalue() == ""
    assert [line["message"] for line in json_lines(second)] == ["once"]


def test_the_websocket_library_never_gets_the_level_at_which_it_logs_messages() -> None:
    written("text", "debug")
    assert not logging.getLogger("smista.websocket").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("websockets.client").isEnabledFor(logging.DEBUG)
    assert logger.isEnabledFor(logging.DEBUG)
