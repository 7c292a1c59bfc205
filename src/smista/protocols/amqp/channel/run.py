"""Messages that came together on one channel, to one target, under the same terms."""

from __future__ import annotations

from smista.protocols.amqp.channel.prepared import Terms
from smista.protocols.amqp.channel.target import Target
from smista.service.values import Envelope


class Run:
    __slots__ = ("bodies", "envelopes", "target", "terms")

    def __init__(self, target: Target, terms: Terms, bodies: list[bytes], envelopes: list[Envelope]) -> None:
        self.target = target
        self.terms = terms
        self.bodies = bodies
        self.envelopes = envelopes
        """They differ in their properties only."""

    def __len__(self) -> int:
        return len(self.bodies)
