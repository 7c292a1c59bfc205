"""A broker on disk, in a process and a folder of its own that go with the measurement."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.server_process import ServerProcess


@contextlib.contextmanager
def serving() -> Iterator[ServerProcess]:
    folder = tempfile.mkdtemp(prefix="smista-bench-")
    try:
        with ServerProcess(Path(folder)) as server:
            yield server
    finally:
        shutil.rmtree(folder)
