"""Message move tasks: SQS's word for redrives that go on by themselves, and the handles that name them."""

from __future__ import annotations

import base64
import binascii

import msgspec

from smista.protocols.sqs.call import Target
from smista.protocols.sqs.errors import KINDS, QUEUE_DOES_NOT_EXIST
from smista.service.commands.redrives import RedriveAnswer


class Handle(msgspec.Struct, frozen=True, rename="camel"):
    """What the handle of a task says, in JSON and base64."""

    task_id: str
    source_arn: str


def write_handle(handle: Handle) -> str:
    return base64.b64encode(msgspec.json.encode(handle)).decode()


def read_handle(text: str) -> Handle | None:
    """None where it is no handle at all."""
    try:
        return msgspec.json.decode(base64.b64decode(text.encode(), validate=True), type=Handle)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None


def handle_of(task: RedriveAnswer, source: Target) -> str:
    return write_handle(Handle(task.job, source.arn()))


def status_of(task: RedriveAnswer) -> tuple[str, str | None]:
    """A task's status, and why it failed."""
    if task.code is not None:
        is_gone = KINDS.get(task.code) is QUEUE_DOES_NOT_EXIST
        return "FAILED", QUEUE_DOES_NOT_EXIST.code if is_gone else f"{task.code}: {task.error}"
    if task.state == "completed" and task.skipped and task.redriven < task.expected:
        return "FAILED", "CouldNotDetermineMessageSource"
    return task.state.upper(), None
