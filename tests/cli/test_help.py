"""`--help` of every command, read as a stranger reads it: no types of Python, no sentence that is cut off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from smista.cli.app import SECTIONS, built
from smista.cli.help import first_sentence, plain

WIDTHS = (60, 80, 120)
PYTHON = re.compile(
    r"<\w+(?:\[.*?\])?>|<(?:function|class|bound|object)\b|\b(?:INTEGER|FLOAT|TEXT|BOOLEAN|RANGE|UUID|DATETIME)\b|"
    r"\b(?:None|True|False|str|int|bool|list\[\w+\]|dict\[)\b|x[<>]=|<=x|\bOptional\["
)
CUT = re.compile(r"(?:\.\.\.|…)$")


def contexts() -> Iterator[Any]:
    """One of each command, as where its help is asked for."""
    root: Any = built()
    waiting = [root.context_class(root, info_name="smista")]
    while waiting:
        context = waiting.pop()
        yield context
        for name, command in getattr(context.command, "commands", {}).items():
            waiting.append(command.context_class(command, parent=context, info_name=name))


CONTEXTS = {context.command_path: context for context in contexts()}


def helps(context: Any) -> Iterator[tuple[str, str]]:
    """What stands beside each argument and option, in one piece."""
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield plain(record, is_argument=parameter.param_type_name == "argument")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_help_shows_a_type_of_python(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for path, context in CONTEXTS.items():
        found = [line for line in context.command.get_help(context).splitlines() if PYTHON.search(line)]
        assert not found, (path, found)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_commands_has_their_first_sentences_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for path, context in CONTEXTS.items():
        shown = "".join(context.command.get_help(context).split())
        for name, command in getattr(context.command, "commands", {}).items():
            sentence = first_sentence(command)
            assert sentence.endswith("."), (path, name, sentence)
            assert not CUT.search(sentence)
            assert name + "".join(sentence.split()) in shown, (path, name, sentence)


def test_no_text_of_an_option_is_cut_off() -> None:
    for path, context in CONTEXTS.items():
        for name, help in helps(context):
            sentence = re.sub(r"  \[.*\]$", "", help)
            assert not CUT.search(sentence), (path, name, help)
            assert not sentence.startswith("..."), (path, name, help)
            assert sentence.endswith((".", "exit.")), (path, name, help)


def test_every_command_is_in_the_list() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    root: Any = built()
    assert sorted(listed) == sorted(root.commands)


def test_help_is_in_plain_words() -> None:
    assert plain(("QUEUE <str>", "The queue.  [required]"), is_argument=True) == ("QUEUE", "The queue.  [required]")
    assert plain(("MESSAGE_ID <list[str]>", "Only these."), is_argument=True)[0] == "MESSAGE_ID"
    assert plain(("--state <ready|dead>", ""), is_argument=False)[0] == "--state ready|dead"
    for written, wanted in {
        "[default: 100; x>=1]": "[default: 100; at least 1]",
        "[default: (5m)]": "[default: 5m]",
        "[default: 1; 1<=x<=10000]": "[default: 1; 1 to 10000]",
        "[x<=7; required]": "[at most 7; required]",
        "[env var: SMISTA_URL]": "[env var: SMISTA_URL]",
    }.items():
        assert plain(("-n COUNT", f"So many.  {written}"), is_argument=False)[1] == f"So many.  {wanted}"


def test_usage_names_what_has_to_be_given_without_braces() -> None:
    context = CONTEXTS["smista delete-message"]
    assert context.command.get_usage(context) == "Usage: smista delete-message [OPTIONS] QUEUE MESSAGE_ID..."
