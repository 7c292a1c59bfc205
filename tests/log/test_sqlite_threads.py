"""Reading in one thread while another one writes."""

from __future__ import annotations

import threading
from pathlib import Path

from smista.log import SqliteLog
from smista.log.errors import LogClosed, LogDropped
from tests.log.benches import block, tidy_up

COUNT = 600


def test_blocks_can_be_read_and_scanned_while_others_are_appended_and_dropped(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0, wal_bytes=1 << 20, slack_bytes=0)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for position in range(1, COUNT + 1):
                log.append(position, block(position))
                if position % 50 == 0:
                    log.drop(position - 30)
                    tidy_up(log)
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while writer.is_alive() or seen == 0:
        try:
            expected = log.first_position
            for position, data in log.scan(expected):
                assert (position, data) == (expected, block(position))
                expected += 1
                seen += 1
                assert log.read(position) == data
        except LogDropped:
            continue  # overtaken; the next scan starts further on
    writer.join()
    assert errors == []
    assert log.next_position == COUNT + 1
    log.close()


def test_closing_stops_a_scan_in_another_thread(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    for position in range(1, 301):
        log.append(position, block(position))
    has_started, outcome = threading.Event(), []

    def scan() -> None:
        try:
            while True:
                for _ in log.scan(1):
                    has_started.set()
        except LogClosed as error:
            outcome.append(error.code)

    reader = threading.Thread(target=scan)
    reader.start()
    has_started.wait()
    log.close()
    reader.join()
    assert outcome == ["log_closed"]
