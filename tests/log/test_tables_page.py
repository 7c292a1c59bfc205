"""docs/log-format.md says what the tables of `log.db` are, and what stands in them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from smista.log.sqlite import SqliteLog

TEXT = (Path(__file__).parents[2] / "docs/log-format.md").read_text()
PAGE = TEXT[TEXT.index("## The tables") : TEXT.index("## A block")]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[apsw.Connection]:
    """Of a log with two blocks."""
    log = SqliteLog.open(tmp_path / "data")
    for position in (1, 2):
        log.append(position, b"block %d" % position)
    log.close()
    connection = apsw.Connection(str(tmp_path / "data/log.db"), flags=apsw.SQLITE_OPEN_READONLY)
    yield connection
    connection.close()


def columns(table: str, database: apsw.Connection) -> list[str]:
    return [row[1] for row in database.execute(f"PRAGMA table_info({table})")]


def test_the_page_has_every_table_as_it_is_made(database: apsw.Connection) -> None:
    [shown] = re.findall(r"```sql\n(.*?)\n```", PAGE, re.DOTALL)
    made = [sql for (sql,) in database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rootpage")]
    assert shown.splitlines() == made
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)[:3] == columns("blocks", database)


def test_the_page_has_the_header_as_it_is_written(database: apsw.Connection) -> None:
    assert f"`application_id` 0x{database.pragma('application_id'):X} " in PAGE
    assert f"`user_version` {database.pragma('user_version')}," in PAGE
    assert f"pages have {database.pragma('page_size'):,} bytes" in PAGE
    assert database.pragma("journal_mode") == "wal"
    assert database.pragma("auto_vacuum") == 2


def test_the_page_has_every_value_of_meta(database: apsw.Connection) -> None:
    rows = {name: (value, crc) for name, value, crc in database.execute("SELECT name, value, crc FROM meta")}
    listed = PAGE[PAGE.index("| `name` in `meta`") :]
    assert sorted(re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)) == sorted(rows)
    assert all(crc == zlib.crc32(name.encode() + value) for name, (value, crc) in rows.items())
    numbers = {name: value.hex() for name, (value, _) in rows.items() if name != "identity"}
    assert numbers == {"floor": "01" + "00" * 7, "fold": "01" + "00" * 7, "left_out": "00" * 8}
    assert len(rows["identity"][0]) == 32


def test_blocks_are_as_the_page_says(database: apsw.Connection, tmp_path: Path) -> None:
    rows = list(database.execute("SELECT position, crc, data FROM blocks"))
    assert [(position, data) for position, _, data in rows] == [(1, b"block 1"), (2, b"block 2")]
    assert all(crc == zlib.crc32(position.to_bytes(8, "little") + data) for position, crc, data in rows)
    mark = (tmp_path / "data/mark").read_bytes()
    [(identity,)] = database.execute("SELECT value FROM meta WHERE name = 'identity'")
    assert int.from_bytes(mark[:8], "little") == 3
    assert int.from_bytes(mark[8:], "little") == zlib.crc32(mark[:8], zlib.crc32(identity))
