"""Damage to files at rest."""

from __future__ import annotations

import os
from pathlib import Path


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of the byte at `offset`."""
    with path.open("r+b") as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def truncate(path: Path, size_bytes: int) -> None:
    """Cut the file off at that size."""
    os.truncate(path, size_bytes)
