"""The root of every error a caller can act on.

What a peer or the machine did wrong is a `BrokerError`; what we did wrong is an `assert`. Each package draws
its own part of the tree in its `errors.py`.
"""

from __future__ import annotations

from typing import ClassVar


class BrokerError(Exception):
    """Something the caller can act on. Its message is a sentence that names the thing, what happened and the
    cure."""

    code: ClassVar[str] = "broker_error"
    """Stable over releases, so that programs may compare it; the sentence is for people and may change."""
