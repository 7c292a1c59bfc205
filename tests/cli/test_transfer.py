"""`export` and `import`: what goes out comes back, once."""

import gzip
import json
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Smista

KEPT = (
    "message", "body", "priority", "headers", "group", "max_retries", "content_type", "content_encoding",
    "correlation_id", "reply_to", "type", "state",
)  # fmt: skip


def kept(smista: Smista, queue: str) -> list[dict[str, object]]:
    """The messages of a queue, each by what an import brings back."""
    found = smista("browse", queue, "--json").lines
    return [{name: value for name, value in each.items() if name in KEPT} for each in found]


@pytest.fixture
def filled(smista: Smista, queue: str) -> str:
    """A queue with one message of every kind."""
    smista("put", queue, "text ü", "-p", "3", "-H", "colour=red", "-H", "n:=1.5", "--group", "g")
    smista("put", queue, "--format", "jsonl", stdin=b'{"a": 1.0,  "b": 12345678901234567890}\n')
    smista("put", queue, "--format", "raw", stdin=b"\x00\xff\n")
    smista("put", queue, "--format", "raw", "--content-type", "application/json", stdin=b'{\n  "pretty": true\n}')
    smista("put", queue, "late", "--at", "2099-01-01", "--ttl", "1h")
    smista("put", queue, "said", *("--content-type", "text/plain", "--correlation-id", "c", "--reply-to", "r"))
    return queue


@pytest.mark.parametrize("file", ["orders.jsonl", "orders.jsonl.gz"])
def test_what_was_exported_comes_back(smista: Smista, filled: str, name: str, tmp_path: Path, file: str) -> None:
    done = smista("export", filled, file, directory=tmp_path)
    assert done.out == f"Exported 6 messages to {file}.\n"
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert smista("import", file, name, "--declare", "--json", directory=tmp_path).json["accepted"] == 6
    assert kept(smista, name) == kept(smista, filled)
    assert smista("get", name, "-n", "2", "--body").out == 'text ü\n{"a": 1.0,  "b": 12345678901234567890}\n'


def test_importing_again_doubles_nothing(smista: Smista, filled: str, tmp_path: Path) -> None:
    smista("export", filled, "x", directory=tmp_path)
    smista("delete", filled)
    smista("declare", filled)
    first, second = (smista("import", "x", "--json", directory=tmp_path).json for _ in range(2))
    assert (first["accepted"], second["accepted"], second["duplicates"]) == (6, 0, 6)
    assert smista("stats", filled, "--json").json["depth"] == 6


def test_an_export_may_be_a_pipe_from_one_queue_to_another(smista: Smista, filled: str, name: str) -> None:
    smista("declare", name)
    lines = smista("export", filled, "-").out
    assert smista("import", "-", name, stdin=lines.encode()).out == f"Published 6 messages to queue {name}.\n"


def test_an_export_can_be_narrowed(smista: Smista, filled: str) -> None:
    assert [each["message"] for each in smista("export", filled, "-", "--state", "scheduled").lines] == ["late"]
    assert [each["priority"] for each in smista("export", filled, "-", "--priority", "3").lines] == [3]


def test_lines_go_to_the_queues_they_came_from(smista: Smista, queue: str, name: str) -> None:
    lines = [{"message_id": str(number), "queue": q, "message": q} for number, q in enumerate([queue, name] * 3)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert smista("import", "-", "--declare", "--json", stdin=text.encode()).json["accepted"] == 6
    assert [each["message"] for each in smista("browse", name, "--json").lines] == [name] * 3


def test_an_import_can_go_on_where_it_was_broken_off(smista: Smista, queue: str) -> None:
    lines = [json.dumps({"message_id": str(number), "message": str(number)}) for number in range(4)]
    broken = smista("import", "-", queue, stdin="\n".join([*lines[:2], "{"]).encode())
    assert (broken.code, "Line 3 is not a line of an export" in broken.err) == (2, True)
    done = smista("import", "-", queue, "--skip", "3", "--json", stdin="\n".join(lines).encode())
    assert done.json["accepted"] == 1


def test_what_expired_in_the_file_or_has_no_body_is_left_out_and_counted(smista: Smista, queue: str) -> None:
    past_ms = round(time.time() * 1000) - 1_000
    lines = [
        {"message_id": "1", "message": "x", "ttl_ms": 1_000, "expires_at_ms": past_ms, "state": "ready"},
        {"message_id": "2"},
        {"message_id": "3", "message": "y", "ttl_ms": 60_000, "expires_at_ms": past_ms + 30_000, "state": "ready"},
    ]
    done = smista("import", "-", queue, "--json", stdin="\n".join(map(json.dumps, lines)).encode())
    assert (done.json["accepted"], done.json["expired"], done.json["lost"]) == (1, 1, 1)
    assert smista("browse", queue, "--json").lines[0]["ttl_ms"] <= 29_000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[]", "Line 1 is not a line of an export"),
        (b'{"message_id": "1", "message": {}}', "its message is not text"),
        (b'{"message_id": "1", "message": "x", "priority": 999}', "Line 1 is not a line of an export"),
    ],
)
def test_what_is_no_export_is_wrong_usage(smista: Smista, queue: str, line: bytes, said: str) -> None:
    done = smista("import", "-", queue, stdin=line)
    assert (done.code, said in done.err) == (2, True)


def test_a_line_that_names_no_queue_needs_one(smista: Smista) -> None:
    assert smista("import", "-", stdin=b'{"message_id": "1", "message": "x"}').code == 2


def test_what_the_broker_refuses_is_told_by_its_line(smista: Smista, name: str) -> None:
    smista("declare", name, "--body-bytes-max", "3")
    lines = [{"message_id": "1", "message": "x"}, {"message_id": "2", "message": "too long"}]
    done = smista("import", "-", name, "--json", stdin="\n\n".join(map(json.dumps, lines)).encode())
    assert (done.code, done.json["accepted"], done.json["refused"]) == (1, 1, 1)
    assert done.err.startswith("Error: Line 3: ")
    assert "[message_too_large]" in done.err


def test_a_file_that_cannot_be_written_or_read_is_wrong_usage(smista: Smista, queue: str, tmp_path: Path) -> None:
    assert smista("export", queue, "no/such/directory/x").code == 2
    assert smista("import", "nowhere").code == 2
    whole = gzip.compress(b"x" * 10_000)
    for damaged in (whole[:20], b"no gzip", whole[:12] + b"\xff" * 20):
        (tmp_path / "damaged.gz").write_bytes(damaged)
        done = smista("import", str(tmp_path / "damaged.gz"), queue)
        assert (done.code, "damaged.gz cannot be read" in done.err) == (2, True)


def test_a_failed_export_leaves_what_was_there(smista: Smista, name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("before")
    assert smista("export", name, "x", directory=tmp_path).code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "before"
