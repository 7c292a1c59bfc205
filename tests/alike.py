"""Messages that are alike, for tests of what takes them together."""

from __future__ import annotations

from collections.abc import Sequence

from smista.core.message import Alike, Publication


def alike(bodies: Sequence[bytes], like: Publication | None = None) -> Alike:
    """Messages that differ in their bodies only."""
    like = like or Publication(b"")
    return Alike(like, bodies, [like.envelope] * len(bodies))
