"""What a step leads to beyond the state and its records: collected while the core is at work, carried out at its end.

A step of the core plans, notes and applies, and nothing else runs in between: nobody is called, nothing is written and
no line is logged. Whatever comes of it waits here until `Running.after`.
"""

from __future__ import annotations

from smista.core.jobs import Job
from smista.core.message import Reason
from smista.core.queue import Queue
from smista.engine.subscription import Subscription
from smista.log.errors import LogError


class Effects:
    __slots__ = ("damage", "dead_letters", "ended_jobs", "freed")

    def __init__(self) -> None:
        self.freed: dict[Subscription, list[int]] = {}
        """Sequences of messages that these held and that have been settled, by whomever."""
        self.dead_letters: list[tuple[Queue, Reason]] = []
        """Where messages were set aside, and why."""
        self.damage: list[tuple[int, LogError, int]] = []
        """Blocks that could not be read, why, and how many messages were set aside for that."""
        self.ended_jobs: list[Job] = []
        """Somebody may wait for their end."""

    def take_freed(self) -> dict[Subscription, list[int]]:
        freed, self.freed = self.freed, {}
        return freed

    def take_dead_letters(self) -> list[tuple[Queue, Reason]]:
        dead_letters, self.dead_letters = self.dead_letters, []
        return dead_letters

    def take_damage(self) -> list[tuple[int, LogError, int]]:
        damage, self.damage = self.damage, []
        return damage

    def take_ended_jobs(self) -> list[Job]:
        ended_jobs, self.ended_jobs = self.ended_jobs, []
        return ended_jobs
