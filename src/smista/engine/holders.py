"""Which subscription holds which message, so that its credit is free again however the message is settled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smista.core.message import Message
from smista.engine.effects import Effects
from smista.engine.subscription import Subscription


class Holders:
    def __init__(self, effects: Effects) -> None:
        self.by_sequence: dict[int, Subscription] = {}
        self._effects = effects

    def hold(self, holder: Subscription, sequences: Sequence[int]) -> None:
        self.by_sequence.update(dict.fromkeys(sequences, holder))

    def settled(self, messages: Iterable[Message]) -> None:
        """These are settled, by whomever; most of them may be held by nobody."""
        held = self.by_sequence
        freed = self._effects.freed
        for message in messages:
            sequence = message.sequence
            holder = held.pop(sequence, None)
            if holder is not None:
                freed.setdefault(holder, []).append(sequence)
