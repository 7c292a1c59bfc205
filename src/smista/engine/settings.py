"""The settings of a running broker; a queue's own settings are in `core/settings.py`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 1 << 20
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
SomeBytes = Annotated[int, Meta(ge=1, le=1 << 50)]


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    body_bytes_max: Annotated[int, Meta(ge=1, le=1 << 31)] = MIB
    """The largest body a queue takes unless it says otherwise."""
    resident_bytes_max: Bytes = 512 * MIB
    """Bodies beyond this many bytes stay in the log until their turn comes."""
    log_retention_ms: Annotated[int, Meta(ge=0, le=1 << 52)] = 3_600_000
    """Blocks younger than this are kept for readers of the log, as far as `log_retention_bytes` allows."""
    log_retention_bytes: Bytes = 256 * MIB
    """Nothing is kept for readers of the log while it is larger than this, or the disk is nearly full."""
    log_slack_bytes: Bytes = 8 * MIB
    """How much dead weight the log may carry before it is reclaimed, beside as much as is alive."""
    block_bytes_max: Annotated[int, Meta(ge=1 << 10, le=1 << 30)] = MIB // 4
    """A block that has grown to this is sealed even while an earlier one is being written. Reclaiming a block holds up
    everything else for as long as its messages take to write again: 25 ms for 1 MiB of small ones."""
    waiting_bytes_max: SomeBytes = 32 * MIB
    """When more than this waits to be written, publishers wait."""
    disk_free_bytes_min: Bytes = 128 * MIB
    """Publishes are refused when less is free. Below a quarter more, nothing is kept for readers of the log."""
    memory_bytes_max: SomeBytes | None = None
    """Publishes are refused when the broker holds more in memory; none for half of what the machine has, or of what its
    cgroup lets this process have."""
    claim_session_ms: Annotated[int, Meta(ge=1, le=1 << 52)] = 15_000
    """How long a session that is not seen any more keeps others from claiming under its consumer's name."""
    watch_interval_s: Annotated[float, Meta(ge=0.01, le=3_600.0)] = 0.5
    """How often disk and memory are looked at."""
