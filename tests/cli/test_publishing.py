"""`put` and `publish`: sources of bodies, and their properties."""

import asyncio
import base64
import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smista import AsyncClient
from smista.cli.output import Output
from smista.cli.publishing import Input, MessageOptions, put
from smista.client import ConnectionLost
from tests.cli.conftest import Smista, plain_environment
from tests.client.fake_broker import FakeBroker
from tests.waiting import PATIENCE_S


def bodies(smista: Smista, queue: str) -> list[object]:
    return [each.get("message", each.get("body")) for each in smista("browse", queue, "--json").lines]


def test_one_body_is_published_and_its_id_printed(smista: Smista, queue: str) -> None:
    done = smista("put", queue, "two pizzas", "--json")
    assert (done.json["position"], done.json["duplicate"]) == (1, False)
    [message] = smista("browse", queue, "--json").lines
    assert (message["message"], message["message_id"]) == ("two pizzas", done.json["message_id"])
    assert smista("put", queue, "three").out.startswith("Published ")


def test_a_body_that_is_a_json_object_or_array_is_stored_as_json(smista: Smista, queue: str) -> None:
    smista("put", queue, '{"n": 1.0}', "[1]", "12", "{not json", "[brackets] and text")
    found = smista("browse", queue, "--json").lines
    assert [each["message"] for each in found] == [{"n": 1.0}, [1], "12", "{not json", "[brackets] and text"]
    assert [each.get("content_type") for each in found] == ["application/json"] * 2 + [None] * 3
    assert smista("get", queue, "--body").out == '{"n": 1.0}\n'
    smista("purge", queue, "--yes")
    smista("put", queue, "--format", "raw", '{"n":1}')
    assert bodies(smista, queue) == ['{"n":1}']


def test_publishing_to_a_missing_exchange_fails_also_without_a_message(smista: Smista) -> None:
    for done in (smista("publish", "nowhere", "key", "x"), smista("publish", "nowhere", "key", stdin=b"")):
        assert done.code == 1
        assert "[exchange_not_found]" in done.err


def test_several_bodies_are_counted(smista: Smista, queue: str) -> None:
    done = smista("put", queue, "a", "b", "c")
    assert done.out == f"Published 3 messages to queue {queue}.\n"
    assert bodies(smista, queue) == ["a", "b", "c"]


def test_many_that_cannot_be_put_are_one_error(smista: Smista, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x\n" * 20_000)
    done = smista("put", "nowhere", "--file", "lines", directory=tmp_path)
    assert (done.code, done.out) == (1, "")
    error, note = done.err.splitlines()
    assert (error[:6], error[-17:]) == ("Error:", "[queue_not_found]")
    assert note == "0 messages before these were accepted."


def test_lines_of_standard_input_are_bodies(smista: Smista, queue: str) -> None:
    done = smista("put", queue, "--json", stdin=b"one\n\ntwo\r\nthree")
    assert (done.json["accepted"], bodies(smista, queue)) == (4, ["one", "", "two", "three"])


def test_lines_come_through_as_they_are_written(url: str, smista: Smista, queue: str) -> None:
    command = [sys.executable, "-m", "smista", "--url", url, "put", queue]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=plain_environment()) as putting:
        assert putting.stdin is not None
        putting.stdin.write(b"first\n")
        putting.stdin.flush()
        arrived = smista("get", queue, "--wait", "20s", "--body")
        putting.communicate(b"second\n", timeout=PATIENCE_S)
    assert (arrived.out, putting.returncode) == ("first\n", 0)


def test_json_lines_keep_every_digit_and_are_known_as_json(smista: Smista, queue: str) -> None:
    smista("put", queue, "--format", "jsonl", stdin=b'{"a": 1.0}\n\n["b",  12345678901234567890]\n')
    raw = smista("get", queue, "-n", "2", "--body").out
    assert raw == '{"a": 1.0}\n["b",  12345678901234567890]\n'
    assert {each["content_type"] for each in smista("browse", queue, "--json").lines} == {"application/json"}


def test_the_items_of_a_json_array_are_bodies(smista: Smista, queue: str, tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text('[{"a": 1}, "text", [2]]')
    smista("put", queue, "--file", "orders.json", directory=tmp_path)
    assert bodies(smista, queue) == [{"a": 1}, "text", [2]]


def test_a_gzipped_file_of_json_lines_is_known_by_its_name(smista: Smista, queue: str, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    smista("put", queue, "-f", str(tmp_path / "orders.jsonl.gz"))
    assert bodies(smista, queue) == [{"a": 1}, {"a": 2}]


def test_lines_may_be_longer_than_what_is_read_at_once(smista: Smista, queue: str, tmp_path: Path) -> None:
    lines = ["a" * 150_000, "b", "c" * 70_000]
    (tmp_path / "lines").write_text("\n".join(lines))
    smista("put", queue, "--file", str(tmp_path / "lines"))
    assert bodies(smista, queue) == lines


def test_raw_input_is_one_body_byte_for_byte(smista: Smista, queue: str) -> None:
    smista("put", queue, "--format", "raw", stdin=b"\x00\xff\nline\n")
    assert bodies(smista, queue) == [base64.b64encode(b"\x00\xff\nline\n").decode()]


def test_what_is_not_json_is_named_by_its_line(smista: Smista, queue: str) -> None:
    done = smista("put", queue, "--format", "jsonl", stdin=b'{"a": 1}\n{"a": \n')
    assert done.code == 2
    assert done.err.startswith("Error: Line 2 is not JSON")
    assert done.err.endswith(" 1 message before that was accepted.\n")
    assert bodies(smista, queue) == [{"a": 1}]
    through = smista("publish", "", queue, "--format", "jsonl", stdin=b'{"a": 2}\n{"a": 3}\n{"a": \n')
    assert through.err.endswith(" 2 messages before that were published.\n")


def test_properties_go_with_the_message(smista: Smista, queue: str) -> None:
    smista(
        *("put", queue, "x", "-p", "7", "--ttl", "1h", "--group", "g", "-H", "colour=red", "-H", "n:=[1]"),
        *("--content-type", "text/plain", "--correlation-id", "c", "--reply-to", "r", "--type", "t"),
        *("--max-retries", "1", "--content-encoding", "identity", "--timestamp", "2026-01-31T12:00:00+00:00"),
        *("--app-id", "oven", "--user-id", "rosa", "--external-id", "e-1"),
    )
    [message] = smista("browse", queue, "--json").lines
    assert (message["priority"], message["ttl_ms"], message["group"]) == (7, 3_600_000, "g")
    assert message["headers"] == {"colour": "red", "n": [1]}
    assert (message["content_type"], message["correlation_id"], message["reply_to"]) == ("text/plain", "c", "r")
    assert (message["type"], message["max_retries"], message["content_encoding"]) == ("t", 1, "identity")
    assert (message["app_id"], message["user_id"], message["external_id"]) == ("oven", "rosa", "e-1")
    assert message["timestamp_ms"] == 1_769_860_800_000


def test_a_delay_and_an_instant_schedule_it(smista: Smista, queue: str) -> None:
    smista("put", queue, "x", "--delay", "1h")
    smista("put", queue, "y", "--at", "2099-01-01T00:00")
    assert {each["state"] for each in smista("browse", queue, "--json").lines} == {"scheduled"}


def test_a_deduplication_id_stores_it_once(smista: Smista, queue: str) -> None:
    first = smista("put", queue, "x", "--dedup-id", "order-1", "--json").json
    second = smista("put", queue, "x", "--dedup-id", "order-1", "--json").json
    assert (second["duplicate"], second["message_id"]) == (True, first["message_id"])


def test_many_under_one_deduplication_id_are_distinguished_by_their_places(smista: Smista, queue: str) -> None:
    for _ in range(2):
        done = smista("put", queue, "--dedup-id", "file-1", "--json", stdin=b"a\nb\n")
    assert (done.json["accepted"], done.json["duplicates"]) == (0, 2)
    assert bodies(smista, queue) == ["a", "b"]


def test_put_may_make_the_queue(smista: Smista, name: str) -> None:
    assert smista("put", name, "x").code == 1
    assert smista("put", name, "x", "--declare").code == 0
    assert smista("put", name, "x", "--declare").code == 0


def test_what_is_refused_is_reported_and_the_rest_is_stored(smista: Smista, name: str) -> None:
    smista("declare", name, "--max-depth", "2")
    done = smista("put", name, "a", "b", "c")
    assert done.code == 1
    assert done.out == f"Published 2 messages to queue {name}. 1 was refused.\n"
    assert "Message 3: " in done.err
    assert "[queue_full]" in done.err


def test_a_header_without_a_value_is_wrong_usage(smista: Smista, queue: str) -> None:
    assert smista("put", queue, "x", "-H", "colour").code == 2
    assert smista("put", queue, "x", "-H", "n:={").code == 2


def test_bodies_and_a_file_together_are_wrong_usage(smista: Smista, queue: str) -> None:
    assert smista("put", queue, "x", "--file", "-").code == 2


def test_a_file_that_is_not_there_is_wrong_usage(smista: Smista, queue: str) -> None:
    done = smista("put", queue, "--file", "nowhere.txt")
    assert done.code == 2
    assert done.err == "Error: nowhere.txt cannot be read: No such file or directory.\n"


def test_publish_tells_which_queues_it_reached(smista: Smista, queue: str) -> None:
    smista("bind", "amq.topic", queue, "--key", f"{queue}.*")
    done = smista("publish", "amq.topic", f"{queue}.new", "x", "--json")
    assert [each["queue"] for each in done.json["routed"]] == [queue]
    assert bodies(smista, queue) == ["x"]


def test_publish_may_route_by_several_keys(smista: Smista, queue: str, name: str) -> None:
    for each in (name + "one", name + "two"):
        smista("declare", each)
        smista("bind", "amq.direct", each, "--key", each)
    done = smista("publish", "amq.direct", name + "one", "x", "--extra-key", name + "two", "--extra-key", "q", "--json")
    assert [each["queue"] for each in done.json["routed"]] == [name + "one", name + "two"]


def test_what_no_binding_matches_went_nowhere_and_that_is_4(smista: Smista, name: str) -> None:
    done = smista("publish", "amq.topic", name, "x")
    assert done.code == 4
    assert "went nowhere" in done.err


@pytest.mark.parametrize(
    ("dedup_id", "advice"),
    [(None, "It may have been stored"), ("order-1", "stored once")],
    ids=["without", "with an id"],
)
@pytest.mark.parametrize("bodies", [["x"], ["x", "y"]], ids=len)
async def test_where_nobody_knows_whether_it_was_published_it_says_how_not_to_have_it_twice(
    dedup_id: str | None, advice: str, bodies: list[str]
) -> None:
    is_asked = asyncio.Event()

    def never(request: dict[str, Any]) -> None:
        is_asked.set()

    async with AsyncClient((broker := await FakeBroker(never).__aenter__()).address, retry_for_ms=50) as client:
        source, options = Input(bodies=bodies), MessageOptions(dedup_id=dedup_id)
        putting = asyncio.create_task(put(client, Output(is_json=False), "orders", source, options))
        await is_asked.wait()
        await broker.__aexit__()
        with pytest.raises(ConnectionLost) as raised:
            await putting
    assert advice in raised.value.__notes__[-1]
