"""The commands, one module per subject. Importing this imports them all, and so fills `COMMANDS`."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
