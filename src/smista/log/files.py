"""Changes of a directory that must survive a power cut. Modules call these through this module, so that the
tests that cut the power see them too."""

from __future__ import annotations

import os
from pathlib import Path


def rename(old: Path, new: Path) -> None:
    """Atomic, and durable after `sync_directory`."""
    os.replace(old, new)


def remove(path: Path) -> None:
    """Remove the file if it is there; durable after `sync_directory`."""
    path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make every name created, renamed or removed in the directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
