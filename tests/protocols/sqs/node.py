"""AWS's SDK for JavaScript, installed once per machine into a cache folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGE = "@aws-sdk/client-sqs"
VERSION = "3.1164.0"


def modules() -> Path:
    """The folder that has the SDK under `node_modules`; without node or npm the test is skipped."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smista" / f"aws-sdk-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "installed").exists():
            (cache / "package.json").write_text("{}")
            command = [npm, "install", "--no-audit", "--no-fund", "--no-save", f"{PACKAGE}@{VERSION}"]
            subprocess.run(command, cwd=cache, check=True, capture_output=True, timeout=240)
            (cache / "installed").touch()
    return cache
