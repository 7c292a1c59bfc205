"""Who is not let in is told in the log, for the operator: at most one line for each reason every ten seconds, with how
many there were and from where."""

from __future__ import annotations

import logging
from collections import Counter

from smista.engine.repeats import Repeats


class Refusing:
    def __init__(self, logger: logging.Logger, what: str = "connections", **fields: object) -> None:
        """`what` is refused; `fields` stand beside each line."""
        self._logger = logger
        self._what = what
        self._fields = fields
        self._repeats: Repeats[str] = Repeats(self._tell)

    def note(self, why: str, host: str = "") -> None:
        """One more, from `host`. In `why` nothing may stand that is secret."""
        self._repeats.note(why, host)

    def close(self) -> None:
        """There will be no more: tell those of which no line has told yet."""
        self._repeats.flush()

    def _tell(self, why: str | None, hosts: Counter[str]) -> None:
        fields = {**self._fields, "count": hosts.total()}
        if set(hosts) != {""}:
            fields["clients"] = dict(hosts)
        self._logger.warning("%s are refused: %s", self._what, why or "for many more reasons", extra={"fields": fields})
