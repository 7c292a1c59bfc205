"""Memory per message that is ready, per one in flight, with bodies of 100 bytes."""

from __future__ import annotations

import gc

from bench.machine import resident_bytes
from smista.core.declaring import declare_queue
from smista.core.message import Publication
from smista.core.publishing import publish
from smista.core.receiving import receive
from smista.core.state import BrokerState

COUNT = 1_000_000
BODY_BYTES = 100
START_MS = 1_700_000_000_000


def body(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"x" * (BODY_BYTES - 8)


def run(label: str, batch: int) -> None:
    state = BrokerState()
    queue = declare_queue(state, "q", now_ms=START_MS)
    # As the broker's clock does it: one int object per millisecond, here for a hundred messages.
    instants = [START_MS + ms for ms in range(2 * COUNT // 100)]
    gc.collect()
    before = resident_bytes()
    for first in range(0, COUNT, batch):
        publications = [Publication(body(first + i)) for i in range(batch)]
        publish(state, queue, publications, now_ms=instants[first // 100])
    ready = resident_bytes()
    for first in range(0, COUNT, batch):
        receive(state, queue, batch, now_ms=instants[(COUNT + first) // 100])
    in_flight = resident_bytes()
    print(
        f"{label}: {(ready - before) / COUNT - BODY_BYTES:.0f} B + body per ready message, "
        f"{(in_flight - ready) / COUNT:.0f} B more in flight",
        flush=True,
    )


def main() -> None:
    run("one at a time", 1)
    run("by hundreds", 100)
