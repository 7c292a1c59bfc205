"""Faults of ours that a request has shown: each is told with its traceback, at most once every ten seconds.

Whoever has found one could fill the disk with the same traceback else. How often it was seen stands beside the next."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable

from smista.engine.repeats import EVERY_S, KINDS_MAX

Kind = tuple[type[BaseException], str, int]
"""What was raised, and where."""


class Faults:
    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._told_at_s: dict[Kind | None, float] = {}
        self._untold: dict[Kind | None, int] = {}

    def note(self, error: BaseException, what: str, **fields: object) -> None:
        """`what` has failed because of `error`; `fields` stand beside the line."""
        kind = self._kind(error)
        now_s = self._now_s()
        told_at_s = self._told_at_s.get(kind)
        if told_at_s is not None and now_s - told_at_s < EVERY_S:
            self._untold[kind] = self._untold.get(kind, 0) + 1
            return
        self._told_at_s[kind] = now_s
        untold = self._untold.pop(kind, 0)
        if untold:
            fields["untold"] = untold
        self._logger.error(what, exc_info=error, extra={"fields": fields})

    def _kind(self, error: BaseException) -> Kind | None:
        place = ("", 0)
        for frame, line in traceback.walk_tb(error.__traceback__):
            place = (frame.f_code.co_filename, line)
        kind = (type(error), *place)
        # All others together, once there are so many.
        return kind if kind in self._told_at_s or len(self._told_at_s) < KINDS_MAX else None
