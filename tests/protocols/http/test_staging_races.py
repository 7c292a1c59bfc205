"""A batch that is being discarded cannot be committed: its intent would outlive its rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from smista.engine import Broker
from smista.log import MemoryLog
from smista.protocols.http.errors import StageBusy
from smista.protocols.http.staged_files import Stage, StagedFiles
from smista.protocols.http.staging import Staging
from tests.waiting import PATIENCE_S, until


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def test_nothing_else_is_done_with_a_batch_that_is_being_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, has_begun = threading.Event(), threading.Event()

    def slowly(files: StagedFiles, job: str, batch: str) -> int:
        has_begun.set()
        assert may_go_on.wait(PATIENCE_S)
        return 3

    monkeypatch.setattr(StagedFiles, "discard", slowly)
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declare_queue("q")
        staging = Staging(lambda: broker, tmp_path)
        discarding = asyncio.create_task(staging.discard("job", "1"))
        await until(has_begun.is_set)
        for call in (
            staging.commit("job", "1", [(0, 0)], queue="q"),
            staging.stage(Stage("job", "1", 0, 1), nothing(), 1000),
            staging.discard("job", "1"),
        ):
            with pytest.raises(StageBusy, match="discarded"):
                await call
        assert broker.find_commit("job", "1") is None
        # Whoever asked for it is gone, and the files are still being removed.
        discarding.cancel()
        await asyncio.gather(discarding, return_exceptions=True)
        with pytest.raises(StageBusy):
            await staging.commit("job", "1", [(0, 0)], queue="q")
        may_go_on.set()
        await until(lambda: not staging._discarding)
        await staging.close()
