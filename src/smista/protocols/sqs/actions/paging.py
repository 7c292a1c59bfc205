"""Pages of names: MaxResults and NextToken."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from smista.protocols.sqs.actions.base import check_range
from smista.protocols.sqs.errors import invalid
from smista.service.session import Session
from smista.service.values import QueueSettings

PAGE_MAX = 1000


async def page(
    session: Session,
    max_results: int | None,
    next_token: str | None,
    *,
    prefix: str = "",
    accepts: Callable[[str, QueueSettings], bool] | None = None,
) -> tuple[list[str], str | None]:
    """The names of a page, in order, and the token of the next one. Without MaxResults there is one page."""
    if max_results is not None:
        check_range(
            max_results, "MaxResults", 1, PAGE_MAX, "MaxResults must be an integer between 1 and 1000, if provided."
        )
    after = _read(next_token) if next_token else ""
    limit = max_results or PAGE_MAX
    names = await session.queue_page(prefix=prefix, after=after, limit=limit + 1, accepts=accepts)
    shown = names[:limit]
    more = len(names) > limit and max_results is not None
    return shown, base64.urlsafe_b64encode(shown[-1].encode()).decode() if more else None


def _read(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("Invalid or expired next token.") from None
