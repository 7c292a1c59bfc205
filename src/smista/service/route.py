"""Where messages of one exchange and key go, as `Session.route` hands it out: found once, until it may have changed.

A publisher sends by the same exchange and key again and again. What is found holds until an exchange, a binding or a
queue has come or gone; where the way depends on a message's headers or further keys, it holds for messages alike that
follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NewType, Protocol, cast
from weakref import ReferenceType

from smista.core.exchanges import Work
from smista.engine.catalog import Catalog

RoutedQueue = NewType("RoutedQueue", str)
"""A queue that a `Route` handed out: whoever has it may put messages into it, which goes by the exchange, not by the
queue. Nobody else makes one."""


class Routed(Protocol):
    """What messages that are alike have in common. The same object stands for the same headers and further keys."""

    @property
    def routed_by(self) -> Mapping[str, Any]:
        """The headers; asked for only where an exchange on the way looks at them."""

    @property
    def extra_keys(self) -> Sequence[str]:
        """Further keys."""


class Route:
    """See the module; made by `Session.route`."""

    __slots__ = (
        "_catalog",
        "_check",
        "_exchange",
        "_key",
        "_last",
        "_last_queues",
        "_looks_at_headers",
        "_namespace",
        "_queues",
        "_version",
        "_version_now",
        "work_done",
    )

    def __init__(
        self,
        catalog: Catalog,
        namespace: str,
        exchange: str,
        key: str,
        version_now: Callable[[], int],
        check: Callable[[], None] | None,
    ) -> None:
        """`check` raises where the caller may not publish there; None where it may publish everywhere."""
        self._catalog = catalog
        self._namespace = namespace
        self._exchange = exchange
        self._key = key
        self._version_now = version_now
        self._check = check
        self._version = -1
        """By which all that is remembered holds."""
        self._queues: tuple[RoutedQueue, ...] | None = None
        """Where the key alone leads; None until somebody asks."""
        self._looks_at_headers = False
        self._last: ReferenceType[Routed] | None = None
        """Whose headers or further keys counted last, as long as it is there: they take much memory ..."""
        self._last_queues: tuple[RoutedQueue, ...] = ()
        """... and where they led."""
        self.work_done = 0
        """What it took to find the way, since somebody set it to 0."""

    def queues(self, message: Routed) -> tuple[RoutedQueue, ...]:
        """Where such messages go. Raises `AccessDenied`, and why nothing can be published there."""
        if self._check is not None:
            self._check()
        looks_at_headers = self.looks_at_headers
        if looks_at_headers or message.extra_keys:
            if self._last is None or message is not self._last():
                headers = message.routed_by if looks_at_headers else None
                self._last_queues = self._find(headers, message.extra_keys)
                self._last = ReferenceType(message)
            return self._last_queues
        if self._queues is None:
            self._queues = self._find(None, ())
        return self._queues

    @property
    def looks_at_headers(self) -> bool:
        """Whether an exchange on the way does, as things are now."""
        version = self._version_now()
        if version != self._version:
            self._queues = self._last = None
            self._looks_at_headers = self._catalog.looks_at_headers(self._exchange, namespace=self._namespace)
            self._version = version
        return self._looks_at_headers

    def _find(self, headers: Mapping[str, Any] | None, extra_keys: Sequence[str]) -> tuple[RoutedQueue, ...]:
        # Each time from nothing: what one message may take must not depend on what is remembered here.
        work = Work()
        try:
            found = self._catalog.queues_for(
                self._exchange, self._key, headers=headers, extra_keys=extra_keys, work=work, namespace=self._namespace
            )
            return cast("tuple[RoutedQueue, ...]", found)
        finally:
            self.work_done += work.done
