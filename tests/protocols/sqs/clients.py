"""boto3 as its users have it, pointed at a broker; in either wire protocol."""

from __future__ import annotations

import tempfile
import uuid
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]  # has no types of its own
import botocore.session  # type: ignore[import-untyped]  # as boto3
import pytest
from botocore.config import Config  # type: ignore[import-untyped]  # as boto3
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # as boto3

from tests.protocols.sqs import query_model
from tests.waiting import PATIENCE_S

Client = Any
"""boto3 makes its clients at run time."""
REGION = "us-east-1"
PATIENT = {
    "retries": {"max_attempts": 1, "mode": "standard"},
    "connect_timeout": PATIENCE_S,
    "read_timeout": PATIENCE_S,
}


def make_client(
    url: str, wire: str = "json", *, key: str = "test", secret: str = "test", region: str = REGION, **config: Any
) -> Client:
    session = botocore.session.Session()
    session.register_component("data_loader", _loader(wire))
    return boto3.Session(
        aws_access_key_id=key, aws_secret_access_key=secret, region_name=region, botocore_session=session
    ).client("sqs", endpoint_url=url, config=Config(**{**PATIENT, **config}))


@cache
def _loader(wire: str) -> Any:
    """What reads the descriptions that clients are made from, megabytes of them: once, not for each client."""
    loader = botocore.session.Session().get_component("data_loader")
    if wire == "query":
        loader.search_paths.insert(0, _query_models())
    return loader


@lru_cache(maxsize=1)
def _query_models() -> str:
    directory = tempfile.mkdtemp(prefix="smista-sqs-model-")
    query_model.write(model(), Path(directory))
    return directory


@lru_cache(maxsize=1)
def model() -> dict[str, Any]:
    """The description of SQS that boto3 is made from."""
    found: dict[str, Any] = (
        botocore.session.Session().get_component("data_loader").load_service_model("sqs", "service-2")
    )
    return found


def new_name(prefix: str = "q") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def new_queue(sqs: Client, **attributes: str) -> str:
    name = new_name() + (".fifo" if attributes.get("FifoQueue") == "true" else "")
    url: str = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def arn(sqs: Client, url: str) -> str:
    found: str = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    return found


class Refusal:
    """What `refused` caught, once the block is over."""

    code = ""
    name = ""
    """As the model calls it."""
    message = ""
    status = 0


class refused:  # noqa: N801  # reads as pytest.raises does
    """`with refused("QueueDoesNotExist") as refusal:`: the block must end in this error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._refusal = Refusal()

    def __enter__(self) -> Refusal:
        return self._refusal

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            pytest.fail(f"nothing was refused, and {self._name} was expected")
        if not isinstance(error, ClientError):
            return False
        details = error.response["Error"]
        refusal = self._refusal
        refusal.code, refusal.message = details["Code"], details.get("Message", "")
        refusal.name = details.get("QueryErrorCode", details["Code"])
        refusal.status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        names = {refusal.code, refusal.name, refusal.code.rpartition(".")[2]}
        assert self._name in names, f"{self._name} was expected: {error}"
        return True
