"""What all commands share: help, exit codes, errors on standard error, the address of the broker."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smista import __version__
from tests.cli.conftest import Smista, plain_environment
from tests.waiting import PATIENCE_S

NOBODY = "http://127.0.0.1:1"


def test_without_arguments_it_prints_help_with_examples(offline: Smista) -> None:
    done = offline()
    assert done.code == 0
    assert done.out.startswith("Usage: smista ")
    assert "smista put orders 'two pizzas'" in done.out


def test_version(offline: Smista) -> None:
    assert offline("--version").out == f"smista {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["quues"], "Error: No such command 'quues'. Did you mean 'queues'"),
        (["queues", "--josn"], "Error: No such option: --josn (Possible options: --json)"),
        (["delete"], "Error: Missing argument 'QUEUE'"),
        (["dlq"], "Error: Missing command."),
        (["get", "q", "--wait", "soon"], "'soon' is not a duration; write it as 250ms, 30s, 5m, 1h30m or 2d."),
        (["get", "q", "-n", "0"], "0 is out of range: at least 1."),
        (["browse", "q", "--since", "soon"], "'soon' is not an instant"),
        (["browse", "q", "--state", "gone"], "gone"),
        (["queues", "--url", "ftp://x"], "'ftp://x' is not the address of a broker"),
        (["queues", "--namespace", "\x07"], "--namespace"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_2_and_one_clear_line(offline: Smista, arguments: list[str], expected: str) -> None:
    done = offline(*arguments)
    assert (done.code, done.out) == (2, "")
    assert expected in done.err.splitlines()[0]
    assert len(done.err.splitlines()) <= 2


def test_no_broker_is_3_and_says_how_to_start_one(offline: Smista) -> None:
    done = offline("--url", NOBODY, "queues")
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "Error: No broker can be reached at http://127.0.0.1:1 (Connection refused): is it running? "
        "Start it with `smista serve`. [connection_failed]\n"
    )


def test_what_the_broker_refuses_is_1_with_its_code(smista: Smista, name: str) -> None:
    done = smista("stats", name, "--json")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"Error: There is no queue '{name}'")
    assert done.err.endswith("[queue_not_found]\n")


def test_the_address_may_stand_before_or_after_the_command_or_in_a_variable(offline: Smista, url: str) -> None:
    assert offline("--url", url, "info").code == 0
    assert offline("info", "--url", url.removeprefix("http://")).code == 0
    assert offline("info", environment={"SMISTA_URL": url}).code == 0
    assert offline("--url", NOBODY, "info", "--url", url, environment={"SMISTA_URL": NOBODY}).code == 0


def test_json_may_stand_before_the_command_too(smista: Smista) -> None:
    assert smista("--json", "info").json["version"] == __version__


def test_an_interrupt_is_130_without_a_word(smista: Smista, url: str, queue: str) -> None:
    command = [sys.executable, "-m", "smista", "--url", url, "put", queue]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_environment(),
    ) as putting:
        assert putting.stdin is not None
        putting.stdin.write(b"first\nsecond\n")
        putting.stdin.flush()
        assert smista("get", queue, "--wait", "20s").code == 0
        putting.send_signal(signal.SIGINT)
        out, err = putting.communicate(timeout=PATIENCE_S)
    assert (putting.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_goes_away_ends_it_without_a_word(smista: Smista, url: str, queue: str) -> None:
    smista("put", queue, *("x" * 500 for _ in range(400)))
    script = f"{sys.executable} -m smista --url {url} browse {queue} --limit 1000 --json | head -1 | wc -l"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=plain_environment(), timeout=PATIENCE_S
    )
    assert (done.stdout.strip(), done.stderr) == ("1", "")


def test_a_terminal_gets_bold_headings_and_a_pipe_gets_none(smista: Smista, url: str, queue: str) -> None:
    smista("put", queue, "x")
    assert "\x1b" not in smista("queues", queue).out
    shown = on_a_terminal("--url", url, "queues", queue)
    assert "\x1b[1m" in shown
    assert queue in shown


def test_at_a_terminal_it_asks_before_it_destroys(smista: Smista, url: str, queue: str) -> None:
    smista("put", queue, "x")
    refused = on_a_terminal("--url", url, "purge", queue, typed=b"n\n")
    assert "Delete all messages" in refused
    assert "Nothing was changed." in refused
    assert smista("stats", queue, "--json").json["ready"] == 1
    on_a_terminal("--url", url, "purge", queue, typed=b"y\n")
    assert smista("stats", queue, "--json").json["ready"] == 0


def test_a_progress_bar_is_for_terminals(smista: Smista, url: str, queue: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n" * 2_000)
    assert smista("put", queue, "--file", str(tmp_path / "lines")).err == ""
    assert "Publishing" in on_a_terminal("--url", url, "put", queue, "--file", str(tmp_path / "lines"))


def on_a_terminal(*arguments: str, typed: bytes = b"", interrupt_after: str = "\0") -> str:
    """What somebody sees who runs this at a terminal, types that, and presses Ctrl-C after having seen this."""
    ours, theirs = pty.openpty()
    environment = {**plain_environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "smista", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        os.write(ours, typed)
        seen = b""
        try:
            while chunk := os.read(ours, 65_536):
                seen += chunk
                if interrupt_after.encode() in seen:
                    running.send_signal(signal.SIGINT)
        except OSError:
            pass  # so Linux says that the other end is closed
        finally:
            os.close(ours)
        running.wait(timeout=PATIENCE_S)
    return seen.decode()


def test_a_wrong_choice_is_explained_in_plain_words(smista: Smista, name: str) -> None:
    done = smista("exchange", "declare", name, "--kind", "topics")
    assert done.code == 2
    assert "Value error" not in done.err
    assert "'topics' is not one of 'direct', 'fanout', 'topic', 'headers'." in done.err
