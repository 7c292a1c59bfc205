"""A queue's settings as commands take and give them: some of them, or all."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from smista.core.settings import QueueSettings

GivenSettings = msgspec.defstruct(
    "GivenSettings",
    [(field.name, field.type | UnsetType, UNSET) for field in msgspec.structs.fields(QueueSettings)],
    forbid_unknown_fields=True,
    kw_only=True,
)
"""Some of a queue's settings: those that are given."""

AllSettings = msgspec.defstruct(
    "AllSettings", [(field.name, field.type) for field in msgspec.structs.fields(QueueSettings)], kw_only=True
)
"""All of a queue's settings, those at their default too."""


def given(settings: Any) -> dict[str, Any]:
    """Those of `GivenSettings` that are given."""
    if settings is None:
        return {}
    return {name: value for name in settings.__struct_fields__ if (value := getattr(settings, name)) is not UNSET}


def all_settings(settings: QueueSettings) -> Any:
    return AllSettings(**msgspec.structs.asdict(settings))
