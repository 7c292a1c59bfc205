"""The command line's root: what stands before a command's name, which commands there are, and how errors end."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from smista.cli import (
    bench,
    dead_letters,
    demo,
    exchanges,
    exporting,
    importing,
    looking,
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
from smista.cli.exits import ExitCode, exit_code_for
from smista.cli.help import Group, plain_error
from smista.cli.output import forget_broken_pipe, note
from smista.cli.reach import DEFAULT_URL, URL_VARIABLE, AsJson, Namespace, Reach
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
    "Settings for many queues": ["policies", "policy"],
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
    "Set aside, or for later": ["dlq", "scheduled"],
    "Data, on Spark": ["pipeline"],
    "Exchanges": ["exchanges", "exchange", "bind", "unbind", "bindings", "route", "publish"],
}


class Root(Group):
    """Lists its commands by what they are about."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in SECTIONS.items():
            self.write_commands(formatter, title, names)


# Not rich's markup: its boxes leave no room for words where options are many, and they take 0.1 s to load.
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
        typer.Option("--url", metavar="URL", envvar=URL_VARIABLE, help=f"Where the broker is: {DEFAULT_URL}."),
    ] = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Smista, a durable message-queue broker: run it, fill it, look into it.

    Each command says more with --help. Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no broker, 4 nothing there.
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
    looking,
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
    """The app as something to call: typer puts it together anew otherwise, each time."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
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
            raise  # a file of our own
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
    """Say what is wrong with the command line, in which command, and where its help is."""
    note(f"Error: {plain_error(error.format_message())}")
    path = getattr(getattr(error, "ctx", None), "command_path", None)
    if path is not None:
        note(f"Try '{path} --help'.")
