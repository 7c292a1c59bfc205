"""`peek` and `browse`, and how untrusted text is printed."""

import os

import pytest

from tests.cli.conftest import Smista


def test_peek_shows_what_comes_next_and_leaves_it(smista: Smista, queue: str) -> None:
    smista("put", queue, "low")
    smista("put", queue, "high", "-p", "9")
    assert smista("peek", queue).out.splitlines()[1].split()[-1] == "high"
    assert [each["message"] for each in smista("peek", queue, "-n", "5", "--json").lines] == ["high", "low"]


def test_peek_into_an_empty_queue_is_4(smista: Smista, queue: str) -> None:
    assert smista("peek", queue).code == 4


def test_browse_shows_every_state(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    smista("put", queue, "c", "--delay", "1h")
    smista("get", queue)
    states = [line.split("  ")[1] for line in smista("browse", queue).out.splitlines()[1:]]
    assert states == ["in flight", "ready", "scheduled"]


@pytest.fixture(scope="module")
def browsed(smista: Smista) -> str:
    queue = f"browsed-{os.getpid()}"
    smista("put", queue, "late", "--delay", "1h", "--declare")
    smista("put", queue, "important", "-p", "3")
    smista("put", queue, "grouped", "--group", "g")
    smista("put", queue, "red", "-H", "colour=red")
    smista("put", queue, "tried", "-p", "200")
    smista("get", queue, "--lease", "1h")
    return queue


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--state", "scheduled"], ["late"]),
        (["--priority", "3"], ["important"]),
        (["--group", "g"], ["grouped"]),
        (["--header", "colour=red"], ["red"]),
        (["--since", "1h"], ["late", "important", "grouped", "red", "tried"]),
        (["--until", "1h"], []),
        (["--since", "2099-01-01"], []),
        (["--deliveries", "1"], ["tried"]),
        (["--limit", "2"], ["late", "important"]),
        (["--reason", "rejected"], []),
        (["--source", "elsewhere"], []),
        (["--error", "dough"], []),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_browse_can_be_narrowed(smista: Smista, browsed: str, options: list[str], found: list[str]) -> None:
    done = smista("browse", browsed, "--json", *options)
    assert [each["message"] for each in done.lines] == found
    assert done.code == (0 if found else 4)


def test_browse_says_when_there_are_more(smista: Smista, queue: str) -> None:
    smista("put", queue, "a", "b")
    assert smista("browse", queue, "--limit", "2").err == ""
    assert smista("browse", queue, "--limit", "1").err == "These are the first 1; --limit shows more.\n"


def test_browse_without_bodies_leaves_them_out(smista: Smista, queue: str) -> None:
    smista("put", queue, "secret")
    assert "secret" not in smista("browse", queue, "--no-bodies").out


def test_one_message_is_shown_with_all_that_is_known_of_it(smista: Smista, queue: str) -> None:
    message_id = smista("put", queue, "x", "-H", "colour=red", "--json").json["message_id"]
    shown = dict(line.split(maxsplit=1) for line in smista("browse", queue, "--id", message_id).out.splitlines())
    assert (shown["body"], shown["headers"], shown["state"]) == ("x", "{'colour': 'red'}", "ready")
    assert smista("browse", queue, "--id", message_id, "--json").json["message"] == "x"
    assert smista("browse", queue, "--id", "rubbish").code == 1


def test_what_others_wrote_cannot_move_the_cursor_or_fake_a_line(smista: Smista, queue: str) -> None:
    smista("put", queue, "--format", "raw", "-H", "colour=\x1b[2J", stdin=b"\x1b[31mred\nfake line")
    for done in (smista("browse", queue), smista("get", queue)):
        assert "\x1b" not in done.out
        assert r"\x1b[31mred\nfake line" in done.out


def test_a_long_body_is_cut_and_a_binary_one_counted(smista: Smista, queue: str) -> None:
    smista("put", queue, "x" * 1_000)
    smista("put", queue, "--format", "raw", stdin=bytes(range(256)))
    _, long, binary = smista("browse", queue).out.splitlines()
    assert long.endswith("xxx…")
    assert binary.endswith("(256 bytes)")
