"""Log lines for the operator about who is not let in, or cut off: at most one for each reason every ten seconds, with
how many and from where."""

from __future__ import annotations

import logging
from collections import Counter

from smista.repeats import Repeats


class Refusing:
    def __init__(
        self,
        logger: logging.Logger,
        what: str = "connections are refused",
        *,
        level: int = logging.WARNING,
        **fields: object,
    ) -> None:
        """`fields` stand beside each line."""
        self._logger = logger
        self._what = what
        self._level = level
        self._fields = fields
        self._repeats: Repeats[str] = Repeats(self._log)

    def note(self, why: str, host: str = "") -> None:
        """One more, from `host`. In `why` nothing may stand that is secret."""
        self._repeats.note(why, host)

    def close(self) -> None:
        """There will be no more: log those that no line has counted yet."""
        self._repeats.flush()

    def _log(self, why: str | None, hosts: Counter[str]) -> None:
        fields = {**self._fields, "count": hosts.total()}
        if set(hosts) != {""}:
            fields["clients"] = dict(hosts)
        self._logger.log(self._level, "%s: %s", self._what, why or "for many more reasons", extra={"fields": fields})
