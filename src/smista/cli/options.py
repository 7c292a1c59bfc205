"""Groups of options that several commands share, each a dataclass that derives from `OptionGroup`.

A command with a parameter of such a class has the class's fields as options:

    @dataclass(frozen=True, slots=True)
    class Paging(OptionGroup):
        limit: Annotated[int, typer.Option(help="At most this many.")] = 100

    async def browse(client: AsyncClient, output: Output, queue: Queue, paging: Paging) -> None: ...
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any


class OptionGroup:
    __slots__ = ()


Groups = dict[str, type[OptionGroup]]


def parameters_of(function: Callable[..., Any], skip: int, names: dict[str, Any]) -> list[inspect.Parameter]:
    """The parameters of `function` after the first `skip`, with their annotations evaluated; `names` has values for
    those imported for type checkers only."""
    annotations = inspect.get_annotations(function, locals=names, eval_str=True)
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    return [parameter.replace(annotation=annotations[parameter.name]) for parameter in parameters]


def expanded(parameters: Iterable[inspect.Parameter]) -> tuple[list[inspect.Parameter], Groups]:
    """The parameters, with groups replaced by their fields, and the groups by the parameter's name."""
    flat: list[inspect.Parameter] = []
    groups: Groups = {}
    for parameter in parameters:
        kind = parameter.annotation
        if inspect.isclass(kind) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            flat += _fields(kind)
        else:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return flat, groups


def collected(groups: Groups, values: dict[str, Any]) -> dict[str, Any]:
    """The arguments for the function: `values` with the fields of each group collected into it."""
    arguments = dict(values)
    for name, group in groups.items():
        arguments[name] = group(**{field: arguments.pop(field) for field in inspect.signature(group).parameters})
    return arguments


def _fields(group: type[OptionGroup]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        field.replace(annotation=hints[field.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for field in inspect.signature(group).parameters.values()
    ]
