"""Messages as frames of one stream: views with tags, so many in a frame as its size allows."""

from __future__ import annotations

import logging

from smista.protocols.http.formats import Format
from smista.protocols.http.messages import MessageView, show_delivery
from smista.protocols.http.outbox import Outbox
from smista.protocols.http.stream_frames import Pushed
from smista.protocols.http.stream_settling import Consumer
from smista.service.values import Delivery

logger = logging.getLogger("smista.stream")

FRAME_BYTES_MAX = 768 * 1024
"""What pushed messages may take together: many clients take no frame above 1 MiB. One alone may take more."""
VIEW_BYTES = 400
"""What a pushed message takes beside its body, about; with much in its headers it is more."""

_CANNOT_WRITE = (TypeError, ValueError, OverflowError)
"""What an encoder raises for a value that its format has no words for."""


class Pushing:
    def __init__(self, spoken: Format, outbox: Outbox) -> None:
        self._format = spoken
        self._outbox = outbox

    def push(self, consumer: Consumer, deliveries: list[Delivery], first_tag: int) -> None:
        """Deliveries to this subscription, under the tags from this one on."""
        spoken, queue, raw = self._format, consumer.queue, consumer.raw
        views: list[MessageView] = []
        for tag, delivery in enumerate(deliveries, first_tag):
            view = show_delivery(delivery, queue, spoken, raw=raw)
            view.tag = tag
            views.append(view)
        # Sizes are added up for all at once, since anything done for each counts: 0.4 us of 7 when it was done so.
        size = sum([len(delivery.body) for delivery in deliveries]) + len(deliveries) * (VIEW_BYTES + len(queue))
        step = max(1, len(deliveries) * FRAME_BYTES_MAX // max(size, FRAME_BYTES_MAX))
        for start in range(0, len(deliveries), step):
            self._put(consumer.number, views[start : start + step], deliveries[start : start + step])

    def _put(self, number: int, views: list[MessageView], deliveries: list[Delivery]) -> None:
        try:
            frame = self._format.encode(Pushed(number, views))
        except _CANNOT_WRITE:
            views = [self._writable(view, delivery) for view, delivery in zip(views, deliveries, strict=True)]
            frame = self._format.encode(Pushed(number, views))
        if len(frame) <= FRAME_BYTES_MAX or len(views) == 1:
            self._outbox.put(frame, is_pushed=True)
            return
        half = len(views) // 2
        self._put(number, views[:half], deliveries[:half])
        self._put(number, views[half:], deliveries[half:])

    def _writable(self, view: MessageView, delivery: Delivery) -> MessageView:
        """The message without what this format has no words for: MessagePack knows no integers beyond 64 bits, JSON no
        keys but text. The bytes of the body say what its value would; headers that cannot be written are left out."""
        if self._can_write(view):
            return view
        assert view.queue is not None
        plain = show_delivery(delivery, view.queue, self._format, raw=True)
        plain.tag = view.tag
        if not self._can_write(plain):
            logger.warning("headers that %s has no words for were left out", self._format.name)
            plain.headers = {}
        return plain

    def _can_write(self, view: MessageView) -> bool:
        try:
            self._format.encode(view)
        except _CANNOT_WRITE:
            return False
        return True
