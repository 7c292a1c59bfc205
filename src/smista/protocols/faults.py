"""Faults of ours that a request has shown: each is logged with its traceback, at most once every ten seconds.

Whoever has found one could fill the disk with the same traceback else. How often it was seen stands beside the next."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable

from smista.repeats import EVERY_S, KINDS_MAX

Kind = tuple[type[BaseException], str, int]
"""What was raised, and where."""


class Faults:
    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._logged_at_s: dict[Kind | None, float] = {}
        self._repeated: dict[Kind | None, int] = {}

    def note(self, error: BaseException, what: str, **fields: object) -> None:
        """`what` has failed because of `error`; `fields` stand beside the line."""
        kind = self._kind(error)
        now_s = self._now_s()
        logged_at_s = self._logged_at_s.get(kind)
        if logged_at_s is not None and now_s - logged_at_s < EVERY_S:
            self._repeated[kind] = self._repeated.get(kind, 0) + 1
            return
        self._logged_at_s[kind] = now_s
        repeated = self._repeated.pop(kind, 0)
        if repeated:
            fields["repeated"] = repeated
        self._logger.error(what, exc_info=error, extra={"fields": fields})

    def _kind(self, error: BaseException) -> Kind | None:
        place = ("", 0)
        for frame, line in traceback.walk_tb(error.__traceback__):
            place = (frame.f_code.co_filename, line)
        kind = (type(error), *place)
        # All others together, once there are so many.
        return kind if kind in self._logged_at_s or len(self._logged_at_s) < KINDS_MAX else None
