"""Which errors the modules of a package raise, or catch: those they import."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from smista.errors import BrokerError


def errors_of(package: ModuleType) -> set[type[BrokerError]]:
    """Without those of the packages inside it."""
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
        if not found.ispkg
    ]
    values = [value for module in modules for value in vars(module).values()]
    return {value for value in values if isinstance(value, type) and issubclass(value, BrokerError)} - {BrokerError}
