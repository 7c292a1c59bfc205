"""docs/sqs.md lists every action."""

from __future__ import annotations

import re
from pathlib import Path

from smista.protocols.sqs.actions import ACTIONS
from tests.protocols.sqs.clients import model

PAGE = (Path(__file__).parent.parent.parent.parent / "docs/sqs.md").read_text()


def test_the_page_lists_every_action_that_there_is() -> None:
    section = PAGE.partition("## Actions\n\n")[2].partition("\n\n")[0]
    assert re.findall(r"\w+", section) == sorted(ACTIONS)
    assert set(ACTIONS) == set(model()["operations"])
