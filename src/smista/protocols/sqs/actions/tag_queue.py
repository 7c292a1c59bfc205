"""TagQueue: keys are case-sensitive; one that is there already is overwritten."""

from __future__ import annotations

from collections.abc import Mapping

from smista.protocols.sqs import attributes
from smista.protocols.sqs.actions.base import NOTHING, Answer, QueueParameters
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import invalid, missing
from smista.protocols.sqs.limits import Limits

KEY_LENGTH_MAX = 128
VALUE_LENGTH_MAX = 256


class TagQueue(QueueParameters, rename="pascal", kw_only=True):
    tags: dict[str, str] | None = None

    async def run(self, call: Call) -> Answer:
        target = call.target(self.queue_url)
        if not self.tags:
            raise missing("Tags")
        present = attributes.tags(target.settings)
        tags = {**present, **check_tags(self.tags, call.limits, len(self.tags.keys() | present.keys()))}
        await target.alter(attributes.with_tags(target.declared(), tags))
        return NOTHING


def check_tags(tags: Mapping[str, str], limits: Limits, count: int | None = None) -> Mapping[str, str]:
    """Tags that are given, or raise; `count` is how many there are with those that the queue has."""
    if (len(tags) if count is None else count) > limits.tags:
        raise invalid(f"Too many tags added for queue. Maximum number of tags allowed is {limits.tags}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= KEY_LENGTH_MAX or len(value) > VALUE_LENGTH_MAX or key.lower().startswith("aws:"):
            raise invalid(
                f"Tag keys must be between 1 and {KEY_LENGTH_MAX} characters in length and not begin with aws:, and "
                f"values must be between 0 and {VALUE_LENGTH_MAX}."
            )
    return tags
