"""The disk that the power-cut tests believe in."""

from __future__ import annotations

from pathlib import Path

from smista.log import SqliteLog
from tests.faults.powercut import SECTOR_BYTES, Trace, recording

OLD, NEW = b"o" * 2_048, b"n" * 2_048


def trace(*, is_lying: bool = False) -> Trace:
    return Trace(Path("/d"), vfs="", is_lying=is_lying)


def outcomes(trace: Trace) -> list[dict[str, bytes]]:
    return [trace.cut(len(trace.operations), seed=seed).contents for seed in range(200)]


def test_what_was_synced_is_there() -> None:
    disk = trace()
    disk.note("create", "/d/a")
    disk.note("write", "/d/a", 0, OLD)
    disk.note("sync", "/d/a")
    assert outcomes(disk) == [{"a": OLD}] * 200


def test_what_was_not_synced_is_there_or_not_by_sectors() -> None:
    disk = trace()
    disk.note("create", "/d/a")
    disk.note("write", "/d/a", 0, OLD)
    disk.note("sync", "/d/a")
    disk.note("write", "/d/a", 0, NEW)
    found = {contents["a"] for contents in outcomes(disk)}
    assert {OLD, NEW} < found
    for content in found:
        assert len(content) == len(OLD)
        for at in range(0, len(content), SECTOR_BYTES):
            assert content[at : at + SECTOR_BYTES] in (OLD[:SECTOR_BYTES], NEW[:SECTOR_BYTES])


def test_a_write_across_a_sector_boundary_is_torn_at_the_boundary() -> None:
    disk = trace()
    disk.note("create", "/d/a")
    disk.note("write", "/d/a", 0, OLD)
    disk.note("sync", "/d/a")
    disk.note("write", "/d/a", 500, b"n" * 24)
    found = {contents["a"][500:524] for contents in outcomes(disk)}
    assert found == {b"o" * 24, b"n" * 24, b"n" * 12 + b"o" * 12, b"o" * 12 + b"n" * 12}


def test_a_file_may_have_grown_without_its_bytes() -> None:
    disk = trace()
    disk.note("create", "/d/a")
    disk.note("sync", "/d/a")
    disk.note("write", "/d/a", 0, NEW)
    assert {b"", bytes(2_048), NEW} < {contents["a"] for contents in outcomes(disk)}


def test_a_truncation_may_be_lost() -> None:
    disk = trace()
    disk.note("create", "/d/a")
    disk.note("write", "/d/a", 0, OLD)
    disk.note("sync", "/d/a")
    disk.note("truncate", "/d/a", 100)
    assert {contents["a"] for contents in outcomes(disk)} == {OLD, OLD[:100]}


def test_names_may_be_lost_until_they_are_synced_and_keep_their_order() -> None:
    disk = trace()
    for name in ("/d/a", "/d/b", "/d/c"):
        disk.note("create", name)
    disk.note("sync", "/d/a")
    disk.note("rename", "/d/a", to="/d/z")
    disk.note("delete", "/d/b")
    found = {frozenset(contents) for contents in outcomes(disk)}
    assert found == {frozenset(names) for names in ("a", "ab", "abc", "zbc", "zc")}
    disk.note("sync_directory", "/d")
    assert {frozenset(contents) for contents in outcomes(disk)} == {frozenset("zc")}


def test_a_lying_disk_has_synced_nothing() -> None:
    disk = trace(is_lying=True)
    disk.note("create", "/d/a")
    disk.note("write", "/d/a", 0, OLD)
    disk.note("sync", "/d/a")
    disk.note("sync_directory", "/d")
    assert {} in outcomes(disk)
    assert {"a": b""} in outcomes(disk)


def test_a_cut_knows_the_marks_before_it() -> None:
    disk = trace()
    disk.mark("start")
    disk.note("create", "/d/a")
    disk.mark("created")
    disk.note("sync", "/d/a")
    disk.mark("synced")
    assert [disk.cut(point, seed=0).marks for point in (0, 1, 2)] == [
        ["start"],
        ["start", "created"],
        ["start", "created", "synced"],
    ]


def test_files_that_were_there_before_are_part_of_the_disk(tmp_path: Path) -> None:
    SqliteLog.open(tmp_path / "a", reserve_bytes=0).close()
    with recording(tmp_path / "a") as run:
        SqliteLog.open(tmp_path / "a", vfs=run.vfs, reserve_bytes=0).close()
    cut = run.cut(len(run.operations), seed=0)
    assert cut.contents["log.db"] == (tmp_path / "a" / "log.db").read_bytes()
