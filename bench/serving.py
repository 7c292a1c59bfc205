"""A broker on disk, in a process and a folder of its own that go with the measurement."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.server_process import ServerProcess


@contextlib.contextmanager
def serving(python: str = sys.executable) -> Iterator[ServerProcess]:
    """`python` of the checkout that is served."""
    folder = tempfile.mkdtemp(prefix="smista-bench-")
    try:
        server = ServerProcess(Path(folder))
        server.python = python
        with server:
            yield server
    finally:
        shutil.rmtree(folder)
