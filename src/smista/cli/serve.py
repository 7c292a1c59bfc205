"""`smista serve`: every setting of the server is a flag."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from smista.cli.generated import GeneratedCommand, given, meanings_of, option
from smista.cli.output import forget_broken_pipe, note

EPILOG = (
    "Flags override SMISTA_* variables, and those the file. SIGTERM and Ctrl-C stop it in order, a second one at once."
)


NAMED = {
    "data": "FOLDER",
    "host": "ADDRESS",
    "allowed_hosts": "NAME,NAME",
    "allowed_origins": "URL,URL",
    "sqs_account": "DIGITS",
    "sqs_region": "REGION",
    "sqs_access_keys": "KEY:SECRET,KEY:SECRET",
    "sqs_actions_off": "ACTION,ACTION",
}
UNITS = {"_port": "PORT", "_bytes": "BYTES", "_bytes_max": "BYTES", "_bytes_min": "BYTES", "_ms": "MS", "_s": "SECONDS"}


class ServeCommand(GeneratedCommand):
    def make_options(self) -> Iterator[inspect.Parameter]:
        from smista.server.settings import ServerSettings, flag, variable

        meanings = {**meanings_of(ServerSettings.__mro__[1]), **meanings_of(ServerSettings)}
        defaults = ServerSettings()
        hints = typing.get_type_hints(ServerSettings)
        for name in _ordered(ServerSettings):
            parts = [meanings.get(name, ""), f"Default {_shown(getattr(defaults, name))}; variable {variable(name)}."]
            yield option(name, flag(name), " ".join(filter(None, parts)), metavar=_metavar(name, hints[name]))


commands = typer.Typer()


@commands.command(cls=ServeCommand, epilog=EPILOG)
def serve(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file of settings; variable SMISTA_CONFIG.")
    ] = None,
) -> None:
    """Run a broker until it is stopped.

    It prints a line for each listener once it is ready: `http listening on http://127.0.0.1:9324`.
    """
    from smista.server.settings import load

    settings = load(given(context), os.environ, config)
    # Imported after the settings are checked, so that a wrong flag is reported at once.
    from smista.server import strays
    from smista.server.serve import run

    strays.catch()
    raise typer.Exit(run(settings, functools.partial(announce, is_json=settings.log_format == "json")))


def announce(line: str, *, is_json: bool = False) -> None:
    """Print the line that says where the broker listens. If it cannot be printed the broker runs nevertheless."""
    try:
        print(line, flush=True)
    except OSError as error:
        forget_broken_pipe()
        why = f"The output cannot be written: {error.strerror or error}."
        if is_json:
            logging.getLogger("smista.server").warning("%s", why)
            note(line)
        else:
            note(f"{why} It was: {line}")


def _ordered(struct: type[Any]) -> list[str]:
    """The fields of the class before those it inherits: the listeners before the log."""
    inherited: tuple[str, ...] = getattr(struct.__mro__[1], "__struct_fields__", ())
    fields: tuple[str, ...] = struct.__struct_fields__
    return sorted(fields, key=lambda name: name in inherited)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def _metavar(name: str, kind: Any) -> str | None:
    """The placeholder for the value: its unit, if the name has one. None for a switch."""
    if kind is bool:
        return None
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(typing.get_args(kind))
    if name in NAMED:
        return NAMED[name]
    for ending, unit in UNITS.items():
        if name.endswith(ending):
            return unit
    kinds = [each for each in typing.get_args(kind) if each is not type(None)] or [kind]
    return "NUMBER" if kinds[0] in (int, float) else "VALUE"
