"""Text that is safe to print: data from messages must not control the terminal or look like output of ours."""

from __future__ import annotations

PREVIEW_CHARACTERS = 120


def safe(text: str) -> str:
    """`text` with unprintable characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def preview(body: bytes | None, characters_max: int = PREVIEW_CHARACTERS) -> str:
    """The beginning of a body on one line."""
    if body is None:
        return "(lost)"
    # A character has at most four bytes, so these are enough to know whether the text is longer.
    start = body[: 4 * (characters_max + 1)]
    try:
        text = start.decode(errors="strict" if len(start) == len(body) else "ignore")
    except UnicodeDecodeError:
        return f"({len(body):,} bytes)"
    return shortened(safe(text), characters_max)


def shortened(text: str, characters_max: int = PREVIEW_CHARACTERS) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def count(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`, `2 queues`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def were(number: int) -> str:
    return "was" if number == 1 else "were"


def shown(value: object) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def shown_bytes(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"
