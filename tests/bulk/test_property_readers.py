"""The process that reads the log imports no protocol by name, and still reads the properties of all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import smista.server.serve  # noqa: F401  # with all that a server serves
from smista.service import properties

READ_BY_NAME = """
import importlib, sys
import smista.bulk.process
from smista.service import properties
assert not any(name.startswith("smista.protocols") for name in sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted(properties.READERS))
"""


@pytest.mark.slow
def test_every_form_of_properties_is_read() -> None:
    command = [sys.executable, "-c", READ_BY_NAME, *properties.reader_modules()]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [int(number) for number in read.split()] == sorted(properties.READERS)
    assert len(properties.READERS) >= 3
