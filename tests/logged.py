"""What was logged, whatever the formatter: another library in the same process may have left its own behind."""

from __future__ import annotations

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """The messages, and the exceptions that were logged with them."""
    lines: list[str] = []
    for record in caplog.records:
        lines.append(record.getMessage())
        if record.exc_info:
            lines.append(repr(record.exc_info[1]))
    return "\n".join(lines)
