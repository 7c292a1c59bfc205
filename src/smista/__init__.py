"""Smista: a durable message-queue broker.

    from smista import Client, AsyncClient, Publication, Worker

What it offers is imported when it is first asked for, so that `import smista` costs nothing; its types stand in
`__init__.pyi`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Delivery", "Publication", "Worker", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("smista.client"), name)


def __dir__() -> list[str]:
    return __all__
