"""A broker that is served somewhere: where it is reached, and what it has logged."""

from __future__ import annotations


class Served:
    def __init__(self) -> None:
        self.url = ""
        self.amqp_port = 0
        self.lines: list[str] = []
        """What it wrote so far."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def amqp_address(self) -> tuple[str, int]:
        return "127.0.0.1", self.amqp_port

    @property
    def faults(self) -> list[str]:
        """The lines of faults of its own."""
        return [line for line in self.lines if "Traceback" in line or " ERROR " in line or " CRITICAL " in line]
