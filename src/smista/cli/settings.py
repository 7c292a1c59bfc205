"""The settings of queues: declare, alter, show. Every setting is an option; those in milliseconds are durations,
without the `_ms`: `lease_ms` is `--lease 30s`."""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smista.cli.arguments import Queue
from smista.cli.connected import client_command
from smista.cli.generated import GeneratedCommand, meanings_of, option
from smista.cli.output import Output
from smista.cli.table import Column, print_table
from smista.command_line import WrongUsage, duration_ms
from smista.durations import shown_duration

if TYPE_CHECKING:
    from smista.client import AsyncClient

commands = typer.Typer()

NONE = "none"
COLUMNS = [
    Column("name"),
    Column("value", is_flexible=True),
    Column("declared", is_flexible=True),
    Column("by policy"),
]


class SettingsCommand(GeneratedCommand):
    shows_defaults = False

    def names(self) -> Iterable[str]:
        """The settings that are options of this command."""
        return option_kinds()

    def make_options(self) -> Iterator[inspect.Parameter]:
        from smista.core.settings import QueueSettings

        defaults, meanings = QueueSettings(), meanings_of(QueueSettings)
        kinds = option_kinds()
        for name in self.names():
            kind = kinds[name]
            default = f" Default {shown_setting(name, getattr(defaults, name))}." if self.shows_defaults else ""
            yield option(name, flag(name), (meanings[name] + default).strip(), metavar=_metavar(name, kind))


class DeclareCommand(SettingsCommand):
    shows_defaults = True


@client_command(commands, cls=DeclareCommand, epilog="The settings are explained in docs/queues.md.")
async def declare(
    client: AsyncClient,
    output: Output,
    given: dict[str, Any],
    queue: Queue,
    if_exists: Annotated[
        Literal["same", "keep"],
        typer.Option(help="For a queue that exists: fail unless it has these settings, or keep it as it is."),
    ] = "same",
) -> None:
    """Declare a queue; one that exists must have these settings."""
    is_new = await client.declare_queue(queue, if_exists=if_exists, **read_settings(given))
    output.say(
        f"Queue {queue} is declared." if is_new else f"Queue {queue} existed already.", queue=queue, created=is_new
    )


@client_command(commands, cls=SettingsCommand, epilog="The settings are explained in docs/queues.md.")
async def alter(client: AsyncClient, output: Output, given: dict[str, Any], queue: Queue) -> None:
    """Change some settings of a queue; the others stay."""
    changes = read_settings(given)
    if not changes:
        raise WrongUsage("No setting is given; name at least one.")
    settings = await client.alter_queue(queue, **changes)
    present = ", ".join(written_setting(name, getattr(settings, name)) for name in changes)
    found = _all(settings)
    output.say(f"Queue {queue} now has {present}.", queue=queue, settings=found)
    others = [name for name, value in changes.items() if found[name] != value]
    if others and (policy := (await client.stats(queue)).policy) is not None:
        given_by = ", ".join(map(flag, others))
        output.remark(f"Policy {policy} overrides {given_by}; your change applies when the policy is deleted.")


@client_command(commands)
async def settings(client: AsyncClient, output: Output, queue: Queue) -> None:
    """Show all settings of a queue: in force, declared, and by a policy."""
    found = await client.explain_settings(queue)
    has, declared = _all(found.settings), _all(found.declared)
    if output.is_json:
        by_policy = {"policy": found.policy, "effective_policy_definition": found.effective_policy_definition}
        output.line({**has, "declared": declared, **by_policy})
    elif found.policy is None:
        print_table(COLUMNS[:2], [(flag(name)[2:], shown_setting(name, has[name])) for name in option_kinds()])
    else:
        rows = [
            (
                flag(name)[2:],
                shown_setting(name, has[name]),
                shown_setting(name, declared[name]),
                found.policy if name in found.effective_policy_definition else "",
            )
            for name in option_kinds()
        ]
        print_table(COLUMNS, rows)


def flag(name: str) -> str:
    return "--" + name.removesuffix("_ms").replace("_", "-")


def written_setting(name: str, value: object) -> str:
    """A setting as an option on a command line."""
    if isinstance(value, bool):
        return flag(name) if value else f"--no-{flag(name).removeprefix('--')}"
    return f"{flag(name)} {shown_setting(name, value)}"


def shown_setting(name: str, value: object) -> str:
    if value is None:
        return NONE
    if name.endswith("_ms") and isinstance(value, int):
        return shown_duration(value) if value else "0"
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Settings given as text, converted to their types."""
    return {name: _read(name, value, option_kinds()[name]) for name, value in given.items()}


def _read(name: str, value: Any, kind: Any) -> Any:
    import msgspec

    if isinstance(value, bool):
        return value
    if value.lower() == NONE and type(None) in typing.get_args(kind):
        return None
    try:
        if name.endswith("_ms"):
            return duration_ms(value)
        read = msgspec.convert(value, kind, strict=False)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=flag(name)) from None
    except msgspec.ValidationError:
        raise typer.BadParameter(f"{value!r} is not {_wanted(kind)}.", param_hint=flag(name)) from None
    return read.value if isinstance(read, enum.Enum) else read


def _all(settings: Any) -> dict[str, Any]:
    """All settings, including defaults."""
    import msgspec

    return msgspec.structs.asdict(settings)


def option_kinds() -> dict[str, Any]:
    """The settings that are options, with their types: all that hold a single value."""
    from smista.core.settings import QueueSettings

    hints = typing.get_type_hints(QueueSettings)
    return {name: kind for name, kind in hints.items() if typing.get_origin(kind) in (None, types.UnionType)}


def _wanted(kind: Any) -> str:
    """What a value must be."""
    [main, *rest] = typing.get_args(kind) or (kind,)
    if issubclass(main, enum.Enum):
        wanted = "one of " + ", ".join(member.value for member in main)
    else:
        wanted = {int: "a whole number", float: "a number"}.get(main, "a name")
    return f"{wanted}, or {NONE}" if rest else wanted


def _metavar(name: str, kind: Any) -> str | None:
    """None for a switch."""
    if kind is bool:
        return None
    [main, *rest] = typing.get_args(kind) or (kind,)
    if name.endswith("_ms"):
        shown = "DURATION"
    elif issubclass(main, enum.Enum):
        return "|".join(member.value for member in main)
    elif name.endswith(("_bytes", "_bytes_max")):
        shown = "BYTES"
    else:
        shown = {int: "NUMBER", float: "NUMBER"}.get(main, "NAME")
    return f"{shown}|{NONE}" if rest else shown
