"""A server that was filled and emptied gives most of its memory back to the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocols.http.caller import Caller
from tests.server_process import ServerProcess
from tests.waiting import eventually

pytestmark = pytest.mark.slow

COUNT, AT_ONCE = 500_000, 5_000


def memory_bytes(server: ServerProcess) -> int:
    [line] = [one for one in Path(f"/proc/{server.pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("command", ["queue.purge", "queue.delete"])
def test_a_server_that_has_been_emptied_gives_back_most_of_its_memory(tmp_path: Path, command: str) -> None:
    with ServerProcess(tmp_path / "data", "--disk-free-bytes-min", "0") as server, Caller(server.address) as http:
        http.call("queue.declare", queue="orders")
        before = memory_bytes(server)
        for _ in range(COUNT // AT_ONCE):
            http.call("queue.publish_batch", queue="orders", brief=True, messages=[{"body": "eHh4"}] * AT_ONCE)
        growth = memory_bytes(server) - before
        assert growth > COUNT * 200
        http.call(command, queue="orders")
        eventually(lambda: memory_bytes(server) - before < growth / 2)
