"""The root of the command line: the common options, the list of commands, and how errors become exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from smista.address import ADDRESS_VARIABLE, DEFAULT_ADDRESS
from smista.cli import (
    bench,
    browsing,
    dead_letters,
    demo,
    exchanges,
    exporting,
    importing,
    pipeline,
    policies,
    publishing,
    queues,
    receiving,
    scheduled,
    serve,
    settings,
    top,
    worker,
)
from smista.cli.help import Group, plain_error
from smista.cli.output import forget_broken_pipe, note
from smista.cli.reach import AsJson, Namespace, Reach
from smista.command_line import ExitCode, exit_code_for
from smista.errors import BrokerError

EXAMPLES = """Examples:

  smista serve --data ./data
  smista declare orders
  smista put orders 'two pizzas'
  smista get orders --ack
"""

SECTIONS = {
    "Running": ["serve", "worker", "demo", "bench"],
    "Queues": ["queues", "declare", "alter", "settings", "stats", "pause", "resume", "purge", "delete", "top", "info"],
    "Policies": ["policies", "policy"],
    "Messages": [
        "put",
        "get",
        "ack",
        "nack",
        "release",
        "extend",
        "peek",
        "browse",
        "delete-message",
        "export",
        "import",
    ],
    "Dead letters and scheduled messages": ["dlq", "scheduled"],
    "Data pipelines on Spark": ["pipeline"],
    "Exchanges": ["exchanges", "exchange", "bind", "unbind", "bindings", "route", "publish"],
}


class Root(Group):
    """Lists its commands by topic."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in SECTIONS.items():
            self.write_commands(formatter, title, names)


# Without rich's markup: its boxes leave little room for the texts of many options, and take 0.1 s to load.
app = typer.Typer(name="smista", cls=Root, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(is_asked: bool) -> None:
    if is_asked:
        from smista import __version__

        print(f"smista {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar=ADDRESS_VARIABLE, help=f"The broker's address; default {DEFAULT_ADDRESS}."),
    ] = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Smista, a durable message-queue broker: run a broker, publish to it, receive from it, inspect it.

    See COMMAND --help for each command. Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no broker, 4 nothing found.
    """
    context.obj = Reach(url, namespace, as_json)
    if context.invoked_subcommand is None:
        print(context.get_help())
        print()
        print(EXAMPLES, end="")


for family in (
    serve,
    worker,
    bench,
    demo,
    queues,
    settings,
    policies,
    top,
    publishing,
    receiving,
    browsing,
    exporting,
    importing,
    exchanges,
):
    app.add_typer(family.commands)
app.add_typer(dead_letters.commands, name="dlq")
app.add_typer(scheduled.commands, name="scheduled")
app.add_typer(pipeline.commands, name="pipeline")
app.add_typer(exchanges.exchange_commands, name="exchange")
app.add_typer(policies.policy_commands, name="policy")


@functools.cache
def built() -> Callable[..., Any]:
    """The app as a callable; cached, since typer builds it anew for each call otherwise."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; returns the exit code."""
    try:
        code = built()(args=arguments, prog_name="smista", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except typer.TyperException as error:
        _complain(error)
        return error.exit_code
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        forget_broken_pipe()
        return ExitCode.REFUSED
    except OSError as error:
        if error.filename is not None:
            raise  # about a file, not the output
        forget_broken_pipe()
        note(f"Error: The output cannot be written: {error.strerror or error}.")
        return ExitCode.REFUSED
    except BrokerError as error:
        note(f"Error: {error} [{error.code}]")
        for more in getattr(error, "__notes__", ()):
            note(more)
        return exit_code_for(error)
    return int(code or 0)


def _complain(error: typer.TyperException) -> None:
    """Print what is wrong with the command line, and how to get the help of its command."""
    note(f"Error: {plain_error(error.format_message())}")
    path = getattr(getattr(error, "ctx", None), "command_path", None)
    if path is not None:
        note(f"Try '{path} --help'.")
