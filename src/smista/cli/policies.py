"""Policies: settings for all queues whose names match a pattern."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from smista.cli.arguments import IsSure
from smista.cli.connected import client_command
from smista.cli.help import Group
from smista.cli.output import Output, confirm
from smista.cli.settings import SettingsCommand, option_kinds, read_settings, written_setting
from smista.cli.table import Column
from smista.command_line import WrongUsage
from smista.text import count

if TYPE_CHECKING:
    from smista.client import AsyncClient

commands = typer.Typer()
policy_commands = typer.Typer(cls=Group, help="Policies: set, delete.")

COLUMNS = [
    Column("policy"),
    Column("pattern"),
    Column("priority", is_number=True),
    Column("settings", is_flexible=True),
]
PolicyName = Annotated[str, typer.Argument(metavar="NAME", help="The policy's name.")]


class PolicyCommand(SettingsCommand):
    def names(self) -> Iterable[str]:
        from smista.core.policies import NOT_BY_POLICY

        return [name for name in option_kinds() if name not in NOT_BY_POLICY]


@client_command(commands)
async def policies(client: AsyncClient, output: Output) -> None:
    """List the policies in order of precedence."""
    found = await client.policies()
    kinds = option_kinds()
    is_any = output.items(
        found,
        COLUMNS,
        lambda policy: [
            policy.name,
            policy.pattern,
            policy.priority,
            " ".join(written_setting(name, value) for name, value in policy.settings.items() if name in kinds),
        ],
        msgspec.to_builtins,
    )
    if not is_any:
        output.remark("There are no policies.")


@client_command(policy_commands, name="set", cls=PolicyCommand, epilog="The settings are explained in docs/queues.md.")
async def set_policy(
    client: AsyncClient,
    output: Output,
    given: dict[str, Any],
    name: PolicyName,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Names of queues; * matches any text, ? one character.")
    ],
    priority: Annotated[int, typer.Option(metavar="NUMBER", help="If several match a queue, the highest applies.")] = 0,
) -> None:
    """Give settings to all queues whose names match, present and future."""
    settings = read_settings(given)
    if not settings:
        raise WrongUsage("No setting is given; name at least one.")
    queues = await client.set_policy(name, pattern, priority=priority, **settings)
    output.say(f"Policy {name} now applies to {count(queues, 'queue')}.", policy=name, queues=queues)


@client_command(policy_commands)
async def delete(client: AsyncClient, output: Output, name: PolicyName, is_sure: IsSure = False) -> None:
    """Delete a policy; its queues return to the settings they were declared with."""
    confirm(f"Delete policy {name}?", is_sure=is_sure)
    await client.delete_policy(name)
    output.say(f"Deleted policy {name}.", policy=name)
