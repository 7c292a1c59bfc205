"""The fields of a message have one set of names: where they are published, shown, exported, imported and documented."""

from __future__ import annotations

import re
from pathlib import Path

from smista.cli.importing import Line
from smista.cli.publishing import MessageOptions
from smista.client import Message, Publication
from smista.client.publication import Properties

DOCS = Path(__file__).parents[2] / "docs"
PUBLISHED = {*Publication.__struct_fields__} - {"message", "body"}
TIMES = {"delay_ms", "deliver_at_ms"}
"""Which become `ready_at_ms`."""


def test_publish_takes_what_a_publication_does() -> None:
    assert Properties.__annotations__.keys() == PUBLISHED


def test_a_message_shows_what_was_published() -> None:
    assert {*Message.__struct_fields__} >= PUBLISHED - TIMES


def test_an_import_restores_what_was_published() -> None:
    assert {*Line.__struct_fields__} >= PUBLISHED - TIMES - {"deduplication_id"}


def test_the_command_line_has_an_option_for_each() -> None:
    options = {*MessageOptions.__dataclass_fields__} - {"dedup_id"}
    assert options == PUBLISHED - {"deduplication_id", "properties"}


def test_the_pages_explain_each() -> None:
    text = (DOCS / "commands.md").read_text() + (DOCS / "messages.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    assert {*Message.__struct_fields__} - {"id"} | PUBLISHED <= named
