"""For development: runs a command, and restarts it whenever a Python file changes.

The modification times of files are compared a few times a second. The command runs in a session of its own, so that
Ctrl-C at the terminal reaches only this process, which stops the command once, in order.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger("smista.worker")
POLL_S = 0.4
STOP_TIMEOUT_S = 30.0


def run(command: Sequence[str], directories: Sequence[Path], *, poll_s: float = POLL_S) -> int:
    """Run until SIGTERM or SIGINT; returns the command's exit code. A command that ends by itself is restarted at the
    next change."""
    stopping = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        seen = times(directories)
        child = _start(command)
        is_end_logged = False
        while not stopping.wait(poll_s):
            present = times(directories)
            if present != seen:
                changed = [path for path in present.keys() | seen.keys() if present.get(path) != seen.get(path)]
                logger.warning("%s changed: restarting.", ", ".join(sorted(changed)[:3]))
                seen = present
                _stop(child)
                child = _start(command)
                is_end_logged = False
            elif child.poll() is not None and not is_end_logged:
                logger.warning("It ended with %d; waiting for a change.", child.returncode)
                is_end_logged = True
        return _stop(child)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def times(directories: Sequence[Path]) -> dict[str, int]:
    """When each Python file below these directories was modified, except in hidden ones and virtual environments."""
    found: dict[str, int] = {}
    for top in directories:
        for directory, names, files in os.walk(top):
            names[:] = [name for name in names if not _is_left_out(directory, name)]
            for file in files:
                if file.endswith(".py"):
                    path = os.path.join(directory, file)
                    try:
                        found[path] = os.stat(path).st_mtime_ns
                    except FileNotFoundError:
                        continue  # deleted since
    return found


def _is_left_out(directory: str, name: str) -> bool:
    is_hidden = name.startswith(".") or name in ("__pycache__", "node_modules")
    return is_hidden or os.path.exists(os.path.join(directory, name, "pyvenv.cfg"))


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, start_new_session=True)


def _stop(child: subprocess.Popen[bytes]) -> int:
    """Stop it in order, or kill it if that takes too long; returns its exit code."""
    if child.poll() is None:
        child.terminate()
        try:
            return child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()
