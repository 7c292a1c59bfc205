"""The pages on ideas show each by client, command line and HTTP, and last by the broker in process. All of it is run as
it stands there, and the first three have to come to the same end."""

import contextlib
import http.client
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from smista import Client
from tests.cli.conftest import Smista
from tests.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
PAGES = [
    "messages.md",
    "queues.md",
    "leases-and-retries.md",
    "dead-letters.md",
    "ordering.md",
    "deduplication.md",
    "time.md",
    "exchanges.md",
]
FIRST, LAST = "By client, command line and HTTP", "In process"
COUNTED = ("ready", "scheduled", "in_flight", "dead", "published_total", "delivered_total", "acknowledged_total")
COUNTED_TOO = ("nacked_total", "dead_lettered_total", "redriven_total", "purged_total", "duplicates_total")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections(page: str) -> dict[str, str]:
    """What stands below each heading, in order."""
    parts = re.split(r"^## (.*)\n", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture
def empty(server: ServerProcess) -> str:
    """The address of a broker that holds nothing."""
    clear(server.url)
    return server.url


def clear(url: str) -> None:
    with Client(url) as client:
        for queue in client.queues():
            client.delete_queue(queue)
        for exchange in made(client):
            client.delete_exchange(exchange)


def made(client: Client) -> list[str]:
    return [each.name for each in client.exchanges() if each.name and not each.name.startswith("amq.")]


def end(url: str) -> dict[str, Any]:
    """All that a way has led to."""
    with Client(url) as client:
        return {
            "queues": {
                name: {
                    "settings": client.queue_settings(name),
                    "counts": {each: getattr(client.stats(name), each) for each in COUNTED + COUNTED_TOO},
                    "messages": [
                        (each.value(), each.priority, each.group, each.state, each.headers, each.ttl_ms, causes(each))
                        for each in client.browse(name)
                    ],
                }
                for name in client.queues()
            },
            "exchanges": [each for each in client.exchanges() if each.name in made(client)],
            "bindings": [each for each in client.bindings() if each.exchange],
        }


def causes(message: Any) -> list[str]:
    return [each.error for each in message.failures] + [each.reason for each in message.deaths]


class Answers(dict[str, str]):
    """The values of RECEIPT and MESSAGE_ID: those of the last answer that has one."""

    def learn(self, answer: dict[str, Any]) -> None:
        for found in (answer, *answer.get("messages", ())):
            if found.get("receipt"):
                self["RECEIPT"] = found["receipt"]
            if found.get("message_id"):
                self["MESSAGE_ID"] = found["message_id"]

    def filled(self, text: str) -> str:
        return re.sub(r"\b(RECEIPT|MESSAGE_ID)\b", lambda found: self[found[1]], text)


def run_program(program: str) -> None:
    """What it prints stands as a comment behind each `print`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "page", "exec"), {"__name__": "__main__"})
    assert printed.getvalue().splitlines() == re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)


def run_commands(text: str, offline: Smista, url: str) -> None:
    answers = Answers()
    for line in text.splitlines():
        command, *words = shlex.split(answers.filled(line))
        assert command == "smista"
        # Without --json the same is printed as sentences and columns.
        words += ["--json"] if words[0] in ("put", "get") else []
        done = offline(*words, environment={"SMISTA_URL": url})
        assert done.code == 0, (line, done.err)
        if "--json" in words:
            for answer in done.lines:
                answers.learn(answer)


def run_requests(text: str, url: str) -> None:
    answers = Answers()
    for line in text.replace("\\\n", "").splitlines():
        method, path, headers, body = request_of(answers.filled(line))
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        assert answer.status in (200, 201), (line, content)
        answers.learn(json.loads(content))


def request_of(line: str) -> tuple[str, str, dict[str, str], bytes | None]:
    """What `curl` would send."""
    command, *words = shlex.split(line)
    assert command == "curl"
    method = path = ""
    headers: dict[str, str] = {}
    body: bytes | None = None
    while words:
        match words.pop(0):
            case "-X":
                method = words.pop(0)
            case "-d":
                body = words.pop(0).encode()
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name.lower()] = value
            case address:
                found = re.fullmatch(r"(?:http://)?(?:localhost|127\.0\.0\.1):9324(/.*)", address)
                assert found is not None, address
                path = found[1]
    assert (body is None) == ("content-type" not in headers), "curl would say that it sends a form"
    return method or ("GET" if body is None else "POST"), path, headers, body


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_the_three_ways_and_ends_with_the_broker_in_process(page: str) -> None:
    headings = list(sections(page))
    assert (headings[0], headings[-1]) == (FIRST, LAST)
    assert [language for language, _ in BLOCK.findall(sections(page)[FIRST])] == ["python", "sh", "sh"]


@pytest.mark.parametrize("page", PAGES)
def test_the_three_ways_come_to_the_same_end(
    page: str, empty: str, offline: Smista, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, program), (_, commands), (_, requests) = BLOCK.findall(sections(page)[FIRST])
    monkeypatch.setenv("SMISTA_URL", empty)
    run_program(program)
    by_client = end(empty)
    assert by_client["queues"]
    clear(empty)
    run_commands(commands, offline, empty)
    assert end(empty) == by_client
    clear(empty)
    run_requests(requests, empty)
    assert end(empty) == by_client


@pytest.mark.parametrize("page", PAGES)
def test_the_program_in_process_runs(page: str) -> None:
    [(language, program)] = BLOCK.findall(sections(page)[LAST])
    assert language == "python"
    run_program(program)


def test_what_the_readme_does_without_python_works(empty: str, offline: Smista) -> None:
    [lines] = [text for _, text in BLOCK.findall((ROOT / "README.md").read_text()) if text.startswith("curl ")]
    request, command = lines.replace("\\\n", "").splitlines()
    with Client(empty) as client:
        client.declare_queue("orders")
    run_requests(request, empty)
    run_commands(command.removeprefix(".venv/bin/"), offline, empty)
    with Client(empty) as client:
        assert client.stats("orders").in_flight == 1
