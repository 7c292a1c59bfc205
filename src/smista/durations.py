"""Durations and instants as people write them: `250ms`, `30s`, `1h30m`, `2026-01-31T12:00`. The one place that reads
and writes them, for the command line, the pipelines and the options of Spark."""

from __future__ import annotations

import re
import time
from datetime import datetime

MS_MAX = 1 << 52
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_PART = re.compile(rf"({_NUMBER})\s*(ms|[smhdw])")


def duration_ms(text: str, *, unit: str = "s") -> int:
    """A duration in milliseconds; a plain number is in `unit`. Raises `ValueError` with a sentence."""
    written = text.strip().lower()
    if re.fullmatch(_NUMBER, written):
        written += unit
    if not re.fullmatch(f"(?:{_PART.pattern})+", written):
        raise ValueError(f"{text!r} is not a duration; write it as 250ms, 30s, 5m, 1h30m or 2d.")
    total_ms = round(sum(float(number) * _UNITS_MS[part] for number, part in _PART.findall(written)))
    if total_ms > MS_MAX:
        raise ValueError(f"{text!r} is too long for a duration.")
    return total_ms


def past_ms(text: str) -> int:
    """An instant in milliseconds since 1970: ISO 8601, local time unless it has a zone; or a duration before now.
    Raises `ValueError` with a sentence."""
    return _instant_ms(text, -1, "5m for five minutes ago")


def future_ms(text: str) -> int:
    """As `past_ms`, but a duration is from now on."""
    return _instant_ms(text, 1, "5m for in five minutes")


def _instant_ms(text: str, direction: int, example: str) -> int:
    try:
        return round(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return max(0, round(time.time() * 1000) + direction * duration_ms(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an instant; write it as 2026-01-31T12:00, or as {example}.") from None


def shown_duration(duration_ms: float) -> str:
    """A duration in its two largest units: `1h30m`, `4m12s`, `3.2s`, `250ms`."""
    whole_ms = round(duration_ms)
    if whole_ms < 1_000:
        return f"{whole_ms}ms"
    if whole_ms < 60_000:
        return f"{whole_ms / 1000:.1f}".removesuffix(".0") + "s"
    for unit, smaller in (("d", "h"), ("h", "m"), ("m", "s")):
        if whole_ms >= _UNITS_MS[unit]:
            count, rest_ms = divmod(whole_ms, _UNITS_MS[unit])
            rest = rest_ms // _UNITS_MS[smaller]
            return f"{count}{unit}{rest}{smaller}" if rest else f"{count}{unit}"
    raise AssertionError(whole_ms)


def shown_instant(at_ms: int) -> str:
    """An instant in local time, to the second."""
    try:
        return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms since 1970"
