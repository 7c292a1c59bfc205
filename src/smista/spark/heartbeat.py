"""A session of a consumer's name: kept by a thread that renews its claims, and known to be dead when its process is.

The broker frees a name when its session has not been seen for a while. But most queries are restarted where they ran,
and there it is known at once: a session is named by the machine, as it was booted, and the process that made it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

from smista.spark.errors import BrokerRefused, BrokerUnreachable
from smista.spark.wire import Wire

BEAT_S = 5.0
"""A third of the time after which the broker lets another session have the name; less where the lease is shorter."""
_NO_CLAIM = 1 << 62
"""Behind every claim: releasing those after it releases none."""


def new_session() -> str:
    """`HOST.PROCESSES.PID.RANDOM`, where PROCESSES names the table of processes that PID is of; host for people."""
    return f"{socket.gethostname()}.{_processes()}.{os.getpid()}.{uuid.uuid4().hex[:12]}"


def is_dead(session: str) -> bool:
    """Whether the process that made a session is known to be gone. A number that was given again counts as alive."""
    parts = session.rsplit(".", 3)
    if len(parts) != 4 or not _processes() or parts[1] != _processes() or not parts[2].isdecimal():
        return False
    try:
        os.kill(int(parts[2]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _processes() -> str:
    """Of this boot of this machine, and within it of this container; empty where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256((boot + os.readlink("/proc/self/ns/pid")).encode()).hexdigest()[:12]
    except OSError:
        return ""


class Heartbeat:
    """Renews the claims of a consumer while the driver lives, and with that its session."""

    def __init__(self, wire: Wire, consumer: tuple[str, ...], lease_ms: int) -> None:
        self._wire = wire
        self._consumer = consumer
        self._lease_ms = lease_ms
        self._stopped = threading.Event()
        self._failure: BrokerRefused | None = None
        self._thread: threading.Thread | None = None
        self._parent = os.getppid()
        self.session = new_session()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Once the name is ours."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="smista-heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Give up the name at once, so that a query that is restarted need not wait; the claims stay."""
        self._stopped.set()
        if self.is_started and self._failure is None:
            self._give_up(self.session)

    def release_dead(self) -> bool:
        """Give up the name for the session that has it, if that is dead; whether it was."""
        held = self._wire.get(*self._consumer, query=self._wire.place)["consumers"]
        dead = [one["session"] for one in held if is_dead(one["session"])]
        for session in dead:
            self._give_up(session)
        return bool(dead)

    def _give_up(self, session: str) -> None:
        content = {"session": session, "after": _NO_CLAIM, **self._wire.place}
        with contextlib.suppress(BrokerRefused, BrokerUnreachable):
            self._wire.post(*self._consumer, "release", content=content, patience_s=0)

    def check(self) -> None:
        """Raise what a beat was refused with meanwhile: another query has taken the name over."""
        if self._failure is not None:
            raise self._failure

    def beat(self) -> Any:
        content = {"session": self.session, "lease_ms": self._lease_ms, **self._wire.place}
        return self._wire.post(*self._consumer, "heartbeat", content=content)

    def _run(self) -> None:
        # A reader that outlives its driver, waiting in a call, must not keep the name from the next one.
        while not self._stopped.wait(min(BEAT_S, self._lease_ms / 3000)) and os.getppid() == self._parent:
            try:
                self.beat()
            except BrokerRefused as refusal:
                if refusal.code == "consumer_in_use":
                    self._failure = refusal
                    return
            except BrokerUnreachable:
                continue  # the query itself will notice, if it goes on
