"""Every error of the broker has its reply code, and stands in the docs with it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import smista.core
import smista.engine
import smista.protocols.amqp
import smista.service
from smista.errors import (
    BrokerError,
    BrokerStopped,
    BulkReaderFailed,
    InvalidRequest,
    LogInMemory,
    LogPositionDropped,
    QueueNotFound,
    RequestError,
    TooManyReaders,
)
from smista.protocols.amqp.errors import REPLY_CODES, closing
from smista.protocols.amqp.wire.replies import NAMES, AmqpError, ChannelClosing, ConnectionClosing

ROOT = Path(__file__).parents[3]
CAN_REACH_A_CLIENT = (smista.core, smista.engine, smista.service, smista.protocols.amqp)
NEVER_RAISED = {"broker_error", "resource_low"}
"""Roots of others."""
ELSEWHERE = (RequestError, BulkReaderFailed, LogInMemory, LogPositionDropped, TooManyReaders)
"""Of requests over HTTP, but for one that commands raise too, and of the log in bulk."""


def every_error() -> Iterator[type[BrokerError]]:
    for package in CAN_REACH_A_CLIENT:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    prefixes = ("smista.errors", "smista.exchange_errors", *(package.__name__ for package in CAN_REACH_A_CLIENT))
    pending: list[type[BrokerError]] = [BrokerError]
    while pending:
        error = pending.pop()
        pending += error.__subclasses__()
        is_of_amqp = error is InvalidRequest or not issubclass(error, ELSEWHERE)
        if error.__module__.startswith(prefixes) and is_of_amqp:
            yield error


def test_every_error_that_can_reach_a_client_has_a_reply_code() -> None:
    assert set(REPLY_CODES) == {error.code for error in every_error()} - NEVER_RAISED


def test_every_reply_code_is_one_of_amqp() -> None:
    assert set(REPLY_CODES.values()) <= set(NAMES)


def test_every_reply_code_stands_in_the_docs() -> None:
    text = (ROOT / "docs/errors.md").read_text().split("## Over AMQP")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d{3}) \| (.+) \|$", text, re.MULTILINE)
    assert {code: int(reply) for reply, named in rows for code in re.findall(r"`(\w+)`", named)} == REPLY_CODES


@pytest.mark.parametrize(
    ("error", "text", "closes", "reply"),
    [
        (QueueNotFound("Queue 'q' is gone."), "", ChannelClosing, "NOT_FOUND - Queue 'q' is gone."),
        (QueueNotFound("Queue 'q' is gone."), "no queue 'q'", ChannelClosing, "NOT_FOUND - no queue 'q'"),
        (BrokerStopped("It stopped."), "", ConnectionClosing, "INTERNAL_ERROR - It stopped."),
    ],
)
def test_the_reply_code_says_what_is_closed(error: BrokerError, text: str, closes: type[AmqpError], reply: str) -> None:
    found = closing(error, text)
    assert type(found) is closes
    assert found.reply_text == reply
