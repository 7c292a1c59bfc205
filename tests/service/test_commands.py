"""What every command declares of itself, so that protocols and checks can rely on it."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import msgspec
import pytest

from smista.service import commands
from smista.service.command import COMMANDS, Command
from smista.service.commands.redrives import ListRedrives, StartRedrive
from smista.service.fields import Name
from smista.service.permission import Need, Permission


def fields_of(command: type[Command[Any]]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(command)}


def test_there_are_commands() -> None:
    assert commands.__doc__
    assert {"queue.declare", "queue.purge", "exchange.bind", "dlq.retry", "staged.commit"} <= COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_every_command_says_what_it_is_and_results_in(command: type[Command[Any]]) -> None:
    assert COMMANDS[command.name] is command
    assert (inspect.getdoc(command) or "").endswith(".")
    assert command.answer == tuple(
        kind for kind in command.answer if kind == typing.get_type_hints(command.run)["return"]
    )


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_every_command_says_what_it_needs_and_on_which_of_its_fields(command: type[Command[Any]]) -> None:
    assert command.needs
    for need in command.needs:
        assert {field.partition(".")[0] for field in (*need.fields, *need.only_with)} <= fields_of(command)
    named = {field for need in command.needs for field in need.fields}
    if "queue" in fields_of(command):
        assert "queue" in named, "a command that names a queue needs a permission for it"
    assert command.changes or {need.permission for need in command.needs} <= {Permission.READ, Permission.MONITOR}


def test_a_list_that_names_no_queue_needs_its_permission_for_the_whole_namespace() -> None:
    [need] = ListRedrives.needs
    assert list(need.names(ListRedrives("orders"))) == ["orders"]
    assert list(need.names(ListRedrives())) == [None]
    to_where_they_came_from = StartRedrive(queue="orders")
    assert [list(need.names(to_where_they_came_from)) for need in StartRedrive.needs] == [["orders"], []]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_a_command_waits_by_one_of_its_fields_or_not_at_all(command: type[Command[Any]]) -> None:
    assert command.waits is None or command.waits in fields_of(command)
    assert command.waits is None or not command.at_once, "what waits takes more than one step"


def test_a_command_without_a_rule_cannot_be_made() -> None:
    with pytest.raises(TypeError, match=r"queue\.paint does not say what permission it needs"):

        class PaintQueue(Command[None]):
            """Paint a queue."""

            name = "queue.paint"

    assert "queue.paint" not in COMMANDS


def test_there_are_no_two_commands_of_one_name() -> None:
    with pytest.raises(AssertionError, match=r"two commands queue\.purge"):

        class PurgeTwice(Command[None], needs=Permission.CONFIGURE):
            """Purge a queue."""

            name = "queue.purge"

    assert COMMANDS["queue.purge"].__name__ == "PurgeQueue"


def test_a_need_is_for_each_name_that_is_given() -> None:
    class Moved(msgspec.Struct):
        queue: Name
        to: Name | None = None

    need = Permission.READ.on("queue", "to")
    assert list(need.names(Moved("orders"))) == ["orders"]
    assert list(need.names(Moved("orders", "other"))) == ["orders", "other"]
    assert list(Need(Permission.MONITOR).names(Moved("orders"))) == [None]
