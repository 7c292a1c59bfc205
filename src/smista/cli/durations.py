"""Durations and instants as people write them: `250ms`, `30s`, `1h30m`, `2026-01-31T12:00`."""

from __future__ import annotations

import re
import time
from datetime import datetime

import typer

MS_MAX = 1 << 52
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|[smhdw])")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")


def duration_ms(text: str | int) -> int:
    """`text` in milliseconds; a plain number counts seconds. Raises `typer.BadParameter`."""
    if isinstance(text, int):
        return text  # an option's default, which typer has read like what people write
    written = text.strip().lower()
    if _NUMBER.fullmatch(written):
        written += "s"
    parts = _PART.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        raise typer.BadParameter(f"{text!r} is not a duration; write it as 250ms, 30s, 5m, 1h30m or 2d.")
    total_ms = round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
    if total_ms > MS_MAX:
        raise typer.BadParameter(f"{text!r} is longer than anything lasts here.")
    return total_ms


def past_ms(text: str) -> int:
    """An instant in milliseconds since 1970: ISO 8601, local time unless it names a zone; or a duration, which means so
    long ago. Raises `typer.BadParameter`."""
    return _instant_ms(text, -1, "5m for five minutes ago")


def future_ms(text: str) -> int:
    """As `past_ms`; a duration means so long from now."""
    return _instant_ms(text, 1, "5m for in five minutes")


def _instant_ms(text: str, direction: int, example: str) -> int:
    written = text.strip()
    try:
        return round(datetime.fromisoformat(written).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return max(0, round(time.time() * 1000) + direction * duration_ms(written))
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is not an instant; write it as 2026-01-31T12:00, or as {example}."
        ) from None


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
