"""Options generated from the fields of a structure. This is done only when their command is called: importing the
structures takes a quarter of a second, which other commands need not spend."""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from smista.cli.help import Command
from smista.command_line import as_command

if typing.TYPE_CHECKING:
    from typer.core import TyperOption

_KEY = "smista.generated"


def option(name: str, flag: str, help: str, *, metavar: str | None) -> inspect.Parameter:
    """A parameter that is None if not given; without a metavar a switch with its `--no-` form."""
    if metavar is None:
        switch = typer.Option(f"{flag}/--no-{flag.removeprefix('--')}", help=help, show_default=False)
        annotation: Any = Annotated[bool | None, switch]
    else:
        annotation = Annotated[str | None, typer.Option(flag, help=help, metavar=metavar, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def meanings_of(kind: type[Any]) -> dict[str, str]:
    """The docstrings of a class's fields, read from its source; empty if there is no source."""
    try:
        [definition] = ast.parse(inspect.getsource(kind)).body
    except (OSError, SyntaxError):
        return {}
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found[field.target.id] = " ".join(after.value.value.split())
    return found


class GeneratedCommand(Command):
    """A command with the options of `make_options` besides its own; `given(context)` has their values."""

    def make_options(self) -> Iterable[inspect.Parameter]:
        raise NotImplementedError

    def get_params(self, ctx: Any) -> Any:
        if self._generated is None:
            self._generated = _typer_options(self.make_options())
        *own, helping = super().get_params(ctx)
        return [*own, *self._generated, helping]

    def invoke(self, ctx: Any) -> Any:
        names = [each.name for each in self._generated or ()]
        values = {name: ctx.params.pop(name, None) for name in names}
        ctx.meta[_KEY] = {name: value for name, value in values.items() if value is not None}
        return super().invoke(ctx)

    _generated: list[TyperOption] | None = None


def given(context: typer.Context) -> dict[str, Any]:
    """The generated options that were given, by name."""
    values: dict[str, Any] = context.meta[_KEY]
    return values


def _typer_options(parameters: Iterable[inspect.Parameter]) -> list[TyperOption]:
    """The parameters as typer's options, made through a command that is never called."""

    def holder() -> None: ...

    scratch = typer.Typer(add_completion=False)
    scratch.command()(as_command(holder, list(parameters), None))
    return typing.cast("list[TyperOption]", typer.main.get_command(scratch).params)
