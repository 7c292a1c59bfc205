"""`demo`: the story, and that it leaves nothing behind."""

import signal
from pathlib import Path

from tests.cli.conftest import Smista, process
from tests.waiting import PATIENCE_S


def brokers(directory: Path) -> list[str]:
    """The command lines of brokers whose data is under `directory`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().split("\0")
        except OSError:
            continue  # it has ended
        if "serve" in words and any(word.startswith(str(directory)) for word in words):
            found.append(" ".join(words))
    return found


def test_it_tells_the_story_and_leaves_nothing_behind(offline: Smista, tmp_path: Path) -> None:
    done = offline("demo", "--fast", environment={"TMPDIR": str(tmp_path), "SMISTA_MEMORY": "nonsense"})
    assert (done.code, done.err) == (0, "")
    assert "200 orders are on disk" in done.out
    assert "ValueError: order 40 names no pizza" in done.out
    ending = dict(line.rsplit(maxsplit=1) for line in done.out.split("The end:\n")[1].splitlines() if line)
    assert ending["set aside as dead letters"] == ending["redriven"] == "5"
    assert ending["orders cooked, each counted once"] == ending["acknowledged"] == "200"
    assert ending["lost"] == ending["left in the queue"] == "0"
    assert list(tmp_path.iterdir()) == []
    assert brokers(tmp_path) == []


def test_it_can_run_on_a_broker_that_runs(smista: Smista) -> None:
    assert smista("demo", "--fast").code == 0
    assert smista("queues", "demo-orders", "--json").out == ""


def test_a_signal_ends_it_and_its_broker(tmp_path: Path) -> None:
    with process("demo", directory=tmp_path, TMPDIR=str(tmp_path)) as telling:
        assert telling.stdout is not None
        for line in telling.stdout:
            if "workers start" in line:
                break
        assert brokers(tmp_path) != []
        telling.send_signal(signal.SIGTERM)
        assert telling.wait(PATIENCE_S) == 130
    assert brokers(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["stderr.txt"]
