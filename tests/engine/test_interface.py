"""What the service may ask of an engine: nothing of a queue is answered at once, since it may be elsewhere."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator

from smista.engine import interface
from smista.engine.interface import Engine
from tests.engine.far_engine import how_it_answers

AT_ONCE = {
    "Receipts.read",  # whoever has the key reads the seal
    "Subscribing.pool",  # an account of this process
    "Subscribing.subscribe",  # a name for what comes later, or does not: by `ended`
    "Subscribing.leave_all",  # what to wait for
}


def parts() -> Iterator[type]:
    """The protocols of what may be elsewhere."""
    for each in vars(Engine).values():
        if isinstance(each, property):
            kind = typing.get_type_hints(each.fget)["return"]
            if getattr(kind, "__module__", "") == interface.__name__:
                yield kind


def test_what_belongs_to_a_queue_is_not_answered_at_once() -> None:
    assert len(list(parts())) == 12
    methods = {
        f"{part.__name__}.{name}": how_it_answers(method)
        for part in parts()
        for name, method in vars(part).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert {name for name, how in methods.items() if how == "at once"} == AT_ONCE
    assert {"ticket", "coroutine", "not at all"} < set(methods.values())
