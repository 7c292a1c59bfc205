"""`smista` whose log goes wrong while a file of that name lies beside its data, given by SMISTA_FAULTS_IN:

full     there is no room for a block
slow     a block takes until the file has gone
broken   the log cannot be closed
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from unittest import mock

from smista.cli.app import run
from smista.log import SqliteLog
from smista.log.errors import LogFailed, LogFull

FAULTS = Path(os.environ.pop("SMISTA_FAULTS_IN"))
_append, _close = SqliteLog.append, SqliteLog.close


def append(log: SqliteLog, position: int, data: bytes) -> None:
    if (FAULTS / "full").exists():
        raise LogFull("there")
    while (FAULTS / "slow").exists():
        time.sleep(0.01)
    _append(log, position, data)


def close(log: SqliteLog) -> None:
    _close(log)
    if (FAULTS / "broken").exists():
        raise LogFailed("there", why="a page is damaged")


if __name__ == "__main__":
    with mock.patch.object(SqliteLog, "append", append), mock.patch.object(SqliteLog, "close", close):
        sys.exit(run())
