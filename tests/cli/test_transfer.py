"""`export` and `import`: what goes out comes back, once."""

import datetime
import decimal
import gzip
import json
import os
import stat
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]  # it has no types
import pytest

from smista import Client
from smista.client import Publication
from tests.cli.conftest import Smista
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S

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
    smista("put", queue, "text", *("--content-type", "text/plain", "--correlation-id", "c", "--reply-to", "r"))
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


def lines_of(count: int, **fields: object) -> list[str]:
    return [json.dumps({"message_id": str(number), "message": str(number), **fields}) for number in range(count)]


BAD = [
    ("{", "is not a line of an export"),
    ('{"message_id": "x", "message": {}, "queue": "q"}', "has a message that is not text"),
    ('{"message_id": "x", "message": "x", "queue": ""}', "does not name its queue"),
]


@pytest.mark.parametrize(("bad", "problem"), BAD, ids=["no JSON", "no text", "no queue"])
def test_what_stands_before_a_bad_line_is_put_and_the_line_can_be_left_out(
    smista: Smista, queue: str, bad: str, problem: str, tmp_path: Path
) -> None:
    lines = lines_of(5_000, queue=queue)
    lines[3_000] = bad
    (tmp_path / "x").write_text("\n".join(lines))
    broken = smista("import", "x", directory=tmp_path)
    assert broken.code == 2
    assert broken.err.startswith(f"Error: Line 3001 {problem}")
    assert broken.err.endswith(
        " 3,000 messages were published. Lines 1 to 3000 are done; --skip 3001 leaves line 3001 out.\n"
    )
    again = smista("import", "x", "--skip", "2000", directory=tmp_path)
    assert " 0 messages were published, 1,000 were there already. Lines 1 to 3000 are done;" in again.err
    assert smista("import", "x", "--skip", "3001", "--json", directory=tmp_path).json["accepted"] == 1_999
    assert smista("stats", queue, "--json").json["depth"] == 4_999


def test_a_bad_first_line_can_be_left_out(smista: Smista, queue: str) -> None:
    broken = smista("import", "-", queue, stdin=b"{\n")
    assert broken.err.endswith("0 messages were published. --skip 1 leaves line 1 out.\n")
    assert smista("import", "-", queue, "--skip", "1", stdin=b"{\n").code == 0


def test_what_stands_before_the_damage_of_a_file_is_put(smista: Smista, queue: str, tmp_path: Path) -> None:
    # With what does not compress, so that the beginning is readable without the end.
    lines = lines_of(2_000, correlation_id=os.urandom(50).hex())
    packed = gzip.compress("\n".join(lines).encode())
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    broken = smista("import", "cut.gz", queue, directory=tmp_path)
    depth = smista("stats", queue, "--json").json["depth"]
    assert (broken.code, depth > 0) == (2, True)
    assert f"Lines 1 to {depth} are done; repeat it, or go on with --skip {depth}." in broken.err


def test_skipping_more_lines_than_there_are_is_wrong_usage(smista: Smista, queue: str) -> None:
    text = "\n".join(lines_of(3)).encode()
    beyond = smista("import", "-", queue, "--skip", "4", stdin=text)
    assert (beyond.code, "--skip 4 is beyond the end: there are 3 lines." in beyond.err) == (2, True)
    assert smista("import", "-", queue, "--skip", "3", stdin=text).code == 0


def test_an_import_that_is_refused_counts_all_it_has_put(smista: Smista, queue: str, name: str) -> None:
    text = "\n".join([*lines_of(3, queue=queue), *lines_of(3, queue=name)]).encode()
    refused = smista("import", "-", stdin=text)
    assert (refused.code, "[queue_not_found]" in refused.err) == (1, True)
    assert refused.err.endswith("\n3 messages were published.\n")


def test_a_queue_that_an_import_makes_takes_what_is_in_the_file(
    smista: Smista, url: str, queue: str, name: str, tmp_path: Path
) -> None:
    smista("alter", queue, "--body-bytes-max", "5000000")
    smista("put", queue, "small")
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    smista("put", queue, "--format", "raw", "--file", "large", directory=tmp_path)
    assert exact(url, moved(smista, queue, name, tmp_path)) == exact(url, queue)


def test_an_export_says_that_a_body_is_too_large_for_an_import(tmp_path: Path, offline: Smista) -> None:
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        client.declare_queue("scans", body_bytes_max=3_000_000)
        client.publish("scans", b"x" * 2_000_000)
    with ServerProcess(tmp_path / "data", "--websocket-frame-bytes-max", "2000000") as server:
        environment = {"SMISTA_URL": server.url}
        exported = offline("export", "scans", "x", environment=environment, directory=tmp_path)
        assert (exported.code, "--websocket-frame-bytes-max" in exported.err) == (0, True)
        refused = offline("import", "x", environment=environment, directory=tmp_path)
        assert (refused.code, "--websocket-frame-bytes-max" in refused.err) == (1, True)


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
    ("line", "problem"),
    [
        (b"[]", "Line 1 is not a line of an export"),
        (b'{"message_id": "1", "message": {}}', "has a message that is not text"),
        (b'{"message_id": "1", "message": "x", "priority": 999}', "Line 1 is not a line of an export"),
    ],
)
def test_what_is_no_export_is_wrong_usage(smista: Smista, queue: str, line: bytes, problem: str) -> None:
    done = smista("import", "-", queue, stdin=line)
    assert (done.code, problem in done.err) == (2, True)


def test_a_line_that_names_no_queue_needs_one(smista: Smista) -> None:
    assert smista("import", "-", stdin=b'{"message_id": "1", "message": "x"}').code == 2


def test_what_the_broker_refuses_is_named_by_its_line(smista: Smista, name: str) -> None:
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


def test_a_file_that_holds_something_is_replaced_only_with_force(smista: Smista, filled: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("precious")
    refused = smista("export", filled, "x", directory=tmp_path)
    assert (refused.code, "x exists already; give --force" in refused.err) == (2, True)
    assert (tmp_path / "x").read_text() == "precious"
    assert smista("export", filled, "x", "--force", directory=tmp_path).code == 0
    assert len((tmp_path / "x").read_text().splitlines()) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_an_empty_file_is_filled_and_keeps_its_mode(smista: Smista, filled: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    assert smista("export", filled, "secret", directory=tmp_path).code == 0
    assert (stat.S_IMODE(secret.stat().st_mode), len(secret.read_text().splitlines())) == (0o600, 6)
    secret.chmod(0o640)
    assert smista("export", filled, "secret", "--force", directory=tmp_path).code == 0
    assert stat.S_IMODE(secret.stat().st_mode) == 0o640


def test_a_link_stays_and_what_it_leads_to_is_written(smista: Smista, filled: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/target").touch()
    (tmp_path / "link").symlink_to("folder/target")
    (tmp_path / "to nothing").symlink_to("folder/new")
    for link, target in (("link", "folder/target"), ("to nothing", "folder/new")):
        assert smista("export", filled, link, directory=tmp_path).code == 0
        assert (tmp_path / link).is_symlink()
        assert len((tmp_path / target).read_text().splitlines()) == 6


def test_a_pipe_is_written_to_whoever_reads_it(smista: Smista, filled: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as other:
        reading = other.submit(pipe.read_text)
        assert smista("export", filled, "pipe", directory=tmp_path).code == 0
        assert len(reading.result(PATIENCE_S).splitlines()) == 6
    assert pipe.is_fifo()


def test_standard_output_may_be_named_and_devices_stay_devices(smista: Smista, filled: str) -> None:
    assert len(smista("export", filled, "/dev/stdout").out.splitlines()) == 6
    assert smista("export", filled, "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


def test_somebody_elses_part_of_a_file_is_left_alone(smista: Smista, filled: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.part").write_text("mine")
    assert smista("export", filled, "x.jsonl", directory=tmp_path).code == 0
    assert (tmp_path / "x.jsonl.part").read_text() == "mine"


def test_a_new_file_has_the_usual_mode(smista: Smista, filled: str, tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    smista("export", filled, "x", directory=tmp_path)
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "usual").stat().st_mode


JSON = "application/json"
BODIES = [
    (b' {"a": 1} ', JSON), (b"\t[1]", JSON), (b"1 ", JSON), (b"1\r", JSON), (b"\n1", JSON), (b"", JSON), (b"  ", JSON),
    (b'{"a":1.0000000000000000000000001e0,"a":2}', JSON), (b'"\\ud800"', JSON), (b"nope", JSON),
    (b"\xef\xbb\xbf1", JSON),
    (b"  null", "application/problem+json"), (b'{"a": NaN}', JSON), (b"1e400", JSON),
    (b'{"x": 123456789012345678901}', JSON),
    (b'"\xff"', JSON), (b"", None), (b"a\r", None), (b"\r\n", "text/plain"), (b"\xff", "text/plain"), (b"\x00", None),
    ("\u00e9\u2028\u0085".encode(), None), (b"x", "text/plain; charset=latin-1"), (bytes(range(256)), "image/x"),
    (b"\xed\xa0\x80", None),
]  # fmt: skip
PROPERTIES: list[dict[str, Any]] = [
    {"headers": {"text": "x", "whole": 1, "real": 1.0, "large": 2**63 - 1, "small": -(2**63)}},
    {"headers": {"none": None, "yes": True}},
    {"headers": {"list": [1, "a", None, {"z": 1.5}], "\u00e9\n": "\x00\n", "": "e", "huge": 1e308}},
    {"correlation_id": "", "reply_to": "", "type": "", "app_id": "", "user_id": "", "external_id": ""},
    {"content_encoding": "gzip", "correlation_id": "\u00e9", "external_id": "e", "timestamp_ms": 0},
    {"priority": 0, "group": "g \u00e9", "max_retries": 0},
]  # fmt: skip
EXACT = (
    "body", "priority", "headers", "group", "max_retries", "content_type", "content_encoding", "correlation_id",
    "reply_to", "type", "app_id", "user_id", "external_id", "timestamp_ms", "properties", "state",
)  # fmt: skip


def exact(url: str, queue: str) -> list[str]:
    """The messages of a queue, down to the types of their values."""
    with Client(url) as client:
        return [repr([getattr(message, name) for name in EXACT]) for message in client.browse(queue)]


def moved(smista: Smista, queue: str, name: str, folder: Path) -> str:
    """Export a queue and import it into another, which is returned."""
    assert smista("export", queue, "x.jsonl", directory=folder).code == 0
    done = smista("import", "x.jsonl", name, "--declare", directory=folder)
    assert done.code == 0, done.err
    return name


def test_every_body_and_every_property_comes_back_to_the_byte(
    smista: Smista, url: str, queue: str, name: str, tmp_path: Path
) -> None:
    publications = [Publication(body=body, content_type=kind) for body, kind in BODIES]
    publications += [Publication(body=b"x", **properties) for properties in PROPERTIES]
    with Client(url) as client:
        assert client.put_many(queue, publications).refused == 0
    assert exact(url, moved(smista, queue, name, tmp_path)) == exact(url, queue)


def test_what_amqp_published_comes_back_with_the_types_of_its_headers(
    smista: Smista, broker: ServerProcess, queue: str, name: str, tmp_path: Path
) -> None:
    headers = {
        "bytes": b"\xff\x00",
        "time": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
        "decimal": decimal.Decimal("1.50"),
        "table": {"x": 1},
        "list": [1, "a", b"\x01"],
        "large": 2**40,
        "none": None,
        "yes": True,
    }
    properties = pika.BasicProperties(
        headers=headers, delivery_mode=2, priority=3, expiration="3600000", message_id="m", timestamp=1_600_000_000,
        type="t", user_id="guest", app_id="a", cluster_id="c", reply_to="r", correlation_id="", content_type="x/y",
    )  # fmt: skip
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"body", properties)
        moved(smista, queue, name, tmp_path)
        (_, first, _), (_, second, body) = channel.basic_get(queue, True), channel.basic_get(name, True)
        assert vars(second) == vars(first)
        assert body == b"body"


def test_what_sqs_sent_comes_back_with_its_attributes(
    smista: Smista, url: str, queue: str, name: str, tmp_path: Path
) -> None:
    attributes = {
        "text": {"DataType": "String.mine", "StringValue": "x"},
        "number": {"DataType": "Number", "StringValue": "1.50"},
        "bytes": {"DataType": "Binary", "BinaryValue": "/wA="},
    }

    def ask(action: str, **fields: Any) -> Any:
        request = urllib.request.Request(f"{url}/", json.dumps(fields).encode())
        request.add_header("X-Amz-Target", f"AmazonSQS.{action}")
        request.add_header("Content-Type", "application/x-amz-json-1.0")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    place = f"{url}/000000000000/"
    ask("SendMessage", QueueUrl=place + queue, MessageBody="hello", MessageAttributes=attributes)
    moved(smista, queue, name, tmp_path)
    answer = ask("ReceiveMessage", QueueUrl=place + name, MessageAttributeNames=["All"])
    assert answer["Messages"][0]["MessageAttributes"] == attributes


@pytest.mark.parametrize(
    ("properties", "others"),
    [
        (b"\x01\x80", {}),
        (b"", {}),
        (b"\x09x", {}),
        (b"\x02", {}),
        (b"\x02\x80\x00\x05x", {}),
        (b"\x03\x91\x81\xa1.\x92\xa6String\xa1x", {}),
        (b"\x02\x00\x00", {"headers": {"a": 1}}),
        (b"\x02\x00\x00", {"content_type": JSON}),
        (b"\x02\x00\x00" + b"x" * 70_000, {}),
    ],
)
def test_properties_that_no_protocol_can_have_kept_are_refused(
    url: str, queue: str, properties: bytes, others: dict[str, Any]
) -> None:
    with Client(url) as client:
        done = client.put_many(queue, [Publication(body=b"x", properties=properties, **others), b"y"])
        assert (done.accepted, done.refused) == (1, 1)
