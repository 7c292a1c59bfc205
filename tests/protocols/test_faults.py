"""A fault of ours is logged with its traceback, and not a thousand times."""

from __future__ import annotations

import logging

import pytest

from smista.protocols.faults import Faults
from smista.repeats import EVERY_S, KINDS_MAX


def fail(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_the_same_fault_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    faults = Faults(logging.getLogger("smista.test"), lambda: now_s)
    for number in range(1000):
        faults.note(fail(str(number)), "a request failed", path="/")
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.__dict__["fields"] == {"path": "/"}
    now_s = EVERY_S
    faults.note(fail("again"), "a request failed", path="/")
    assert caplog.records[-1].__dict__["fields"] == {"path": "/", "repeated": 999}


def test_another_fault_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(logging.getLogger("smista.test"), lambda: 0.0)
    faults.note(fail("one"), "a request failed")
    try:
        raise ValueError("elsewhere")
    except ValueError as error:
        faults.note(error, "a request failed")
    assert len(caplog.records) == 2


def test_kinds_of_faults_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(logging.getLogger("smista.test"), lambda: 0.0)
    for number in range(3 * KINDS_MAX):
        faults.note(type(f"Fault{number}", (Exception,), {})(), "a request failed")
    assert len(caplog.records) == KINDS_MAX + 1
