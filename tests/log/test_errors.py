"""The errors of the log: stable codes, helpful sentences, and a line for each in the documentation."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from smista.errors import BrokerError
from smista.log import SqliteLog, errors
from smista.log.errors import (
    LogClosed,
    LogDamaged,
    LogDropped,
    LogError,
    LogFailed,
    LogFenced,
    LogForeign,
    LogFull,
    LogLocked,
    LogNewer,
    LogUnreadable,
)

PAGE = (Path(__file__).parents[2] / "docs" / "log.md").read_text()
EVERY_ERROR = [
    LogError("the log in /data cannot be used"),
    LogDamaged("/data", position=7, what="its CRC does not match"),
    LogUnreadable("/data", position=7, what="it cannot be read (I/O error)"),
    LogForeign("/data", what="it holds notes.txt"),
    LogNewer("/data", found=2, known=1),
    LogLocked("/data", pid=42),
    LogFull("/data"),
    LogFailed("/data", why="fsync failed"),
    LogDropped("/data", position=3, first_position=9),
    LogFenced("/data", position=4),
    LogClosed("/data"),
]


def test_every_error_is_in_the_list_below() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LogError)]
    assert {type(error) for error in EVERY_ERROR} == set(classes)
    assert len({error.code for error in EVERY_ERROR}) == len(classes)


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: error.code)
def test_an_error_names_the_log_and_is_documented(error: LogError) -> None:
    assert isinstance(error, BrokerError)
    assert "/data" in str(error)
    assert f"`{error.code}`" in PAGE
    assert type(error).__name__ in (errors.__doc__ or "")


def test_every_setting_is_documented() -> None:
    for setting in inspect.signature(SqliteLog.open).parameters:
        if setting not in ("directory", "vfs"):
            assert f"`{setting}`" in PAGE
