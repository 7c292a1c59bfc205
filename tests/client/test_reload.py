from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smista.client import reload
from tests.waiting import PATIENCE_S

CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(os.write(1, b"stopped\\n") and 0))
import tasks
print("began with", tasks.VALUE, flush=True)
time.sleep(60)
"""


def change(path: Path, text: str) -> None:
    """As an editor does; with a time of modification that differs however fast this goes."""
    time_ns = 2_000_000_000 + (path.stat().st_mtime_ns if path.exists() else 0)
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    os.utime(draft, ns=(time_ns, time_ns))
    draft.replace(path)


def test_the_command_is_run_anew_when_a_file_changes(tmp_path: Path) -> None:
    change(tmp_path / "tasks.py", "VALUE = 1")
    (tmp_path / "child.py").write_text(CHILD)
    program = (
        "import sys; from pathlib import Path; from smista.client import reload; "
        "sys.exit(reload.run([sys.executable, 'child.py'], [Path('.')], poll_s=0.05))"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began with 1\n"
        change(tmp_path / "tasks.py", "VALUE = 2")
        assert "stopped\n" in iter(process.stdout.readline, "")
        assert "began with 2\n" in iter(process.stdout.readline, "")
        change(tmp_path / "tasks.py", "this is no Python")
        # Only when the broken one has ended: a change before that would start the next one twice.
        assert "It ended with 1; waiting for a change.\n" in iter(process.stdout.readline, "")
        change(tmp_path / "tasks.py", "VALUE = 4")
        assert "began with 4\n" in iter(process.stdout.readline, "")
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "stopped\n"
        assert process.wait(PATIENCE_S) == 0


def test_only_python_files_outside_of_hidden_places_count(tmp_path: Path) -> None:
    for name in ("app.py", "deep/more.py", "notes.txt", ".git/hook.py", "__pycache__/app.py", "env/lib/site.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "env/pyvenv.cfg").write_text("")
    assert sorted(reload.times([tmp_path])) == [str(tmp_path / "app.py"), str(tmp_path / "deep/more.py")]


def test_a_command_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "STOP_TIMEOUT_S", 0.1)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
        assert reload._stop(child) == -signal.SIGKILL
