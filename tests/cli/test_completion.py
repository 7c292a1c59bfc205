"""What shell completion offers."""

import pytest

from tests.cli.conftest import Smista
from tests.cli.launcher import Done


def completed(run: Smista, line: str, **environment: str) -> Done:
    """What bash is given for the last word of `line`."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return run(environment={"_SMISTA_COMPLETE": "complete_bash", **words, **environment})


def test_commands_are_completed(offline: Smista) -> None:
    assert completed(offline, "smista pur").out.split() == ["purge"]


@pytest.mark.parametrize("command", ["get", "dlq list", "bind amq.topic", "dlq redrive x --to"])
def test_queues_are_completed_by_asking_the_broker(smista: Smista, queue: str, command: str) -> None:
    assert completed(smista, f"smista {command} {queue[:-2]}").out.split() == [queue]


def test_exchanges_are_completed_too(smista: Smista) -> None:
    assert completed(smista, "smista route amq.to").out.split() == ["amq.topic"]


def test_the_broker_asked_is_the_one_that_the_line_names(offline: Smista, url: str, queue: str) -> None:
    assert completed(offline, f"smista --url {url} get {queue[:-2]}").out.split() == [queue]
    assert completed(offline, f"smista get --url {url} {queue[:-2]}").out.split() == [queue]


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense://", "http://[", "127.0.0.1:notaport"])
def test_without_a_broker_nothing_is_printed(offline: Smista, address: str) -> None:
    done = completed(offline, "smista get x", SMISTA_URL=address)
    assert (done.code, done.out.strip(), done.err) == (0, "", "")


def test_the_shell_can_be_given_its_script(offline: Smista) -> None:
    assert "_SMISTA_COMPLETE" in offline("--show-completion", "bash").out
