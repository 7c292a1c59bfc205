"""Sessions of callers who come with one request after the other: those of lately are not made anew."""

from __future__ import annotations

from collections.abc import Callable

from smista.service.principal import ANYONE, Principal
from smista.service.service import Service
from smista.service.session import Session

SESSIONS_MAX = 1_000


class Sessions:
    def __init__(self, ready: Callable[[], Service], protocol: str) -> None:
        """`ready` gives the service, or raises why there is none yet."""
        self._ready = ready
        self._protocol = protocol
        self._recent: dict[tuple[str, str, str], Session] = {}

    def get(self, namespace: str, address: str, name: str = ANYONE) -> Session:
        """Of the principal that comes by this name from this address."""
        session = self._recent.get((namespace, address, name))
        if session is None:
            # Their number is the clients' choice, so it must not grow for ever.
            if len(self._recent) >= SESSIONS_MAX:
                self._recent.clear()
            session = self._ready().session(Principal(name, self._protocol, address), namespace)
            self._recent[namespace, address, name] = session
        return session
