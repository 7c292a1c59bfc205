"""What the fields of commands are made of."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET

from smista.core.checks import BATCH_ID_LENGTH_MAX
from smista.errors import InvalidRequest

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
BatchId = Annotated[str, msgspec.Meta(min_length=1, max_length=BATCH_ID_LENGTH_MAX)]
"""Under which a batch is not stored twice."""
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 52)]
PAGE_MAX = 10_000
PageSize = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
After = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Where a page starts: behind what is on those before it."""


class Choice(msgspec.Struct, frozen=True):
    """Fields of which one may be given; `is_required` where it must be."""

    fields: tuple[str, ...]
    is_required: bool = True

    def check(self, command: object) -> None:
        given = [name for name in self.fields if not _is_absent(getattr(command, name))]
        if len(given) > 1:
            raise InvalidRequest(f"Both `{given[0]}` and `{given[1]}` are given; give one of them.")
        if self.is_required and not given:
            raise InvalidRequest(f"A required field is missing; give one of {', '.join(self._names)}.")

    @property
    def _names(self) -> list[str]:
        return [f"`{name}`" for name in self.fields]


def _is_absent(value: object) -> bool:
    return value is None or value is UNSET


class Success(msgspec.Struct):
    """It is done, and durable."""

    success: bool = True
