"""Signature Version 4, as boto3 makes it: in headers, and presigned."""

from __future__ import annotations

import http.client
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore import UNSIGNED  # type: ignore[import-untyped]  # has no types of its own
from botocore.auth import SigV4QueryAuth  # type: ignore[import-untyped]  # as above
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # as above
from botocore.credentials import Credentials  # type: ignore[import-untyped]  # as above

from tests.protocols.sqs.clients import Client, make_client, new_name, new_queue, refused
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S

KEY, SECRET = "AKIDEXAMPLE", "secret/with+signs"


@pytest.fixture(params=["json", "query"])
def locked(locked_server: ServerProcess, request: pytest.FixtureRequest) -> Client:
    return make_client(locked_server.url, request.param, key=KEY, secret=SECRET)


def test_a_signed_request_is_served(locked: Client) -> None:
    url = new_queue(locked)
    locked.send_message(QueueUrl=url, MessageBody="żółć & = + %")
    [message] = locked.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "żółć & = + %"


def test_a_key_of_twelve_digits_is_an_account(locked_server: ServerProcess, locked: Client) -> None:
    other = make_client(locked_server.url, key="123456789012", secret="another")
    url = new_queue(other)
    assert url.startswith(f"{locked_server.url}/123456789012/")
    with refused("AccessDenied") as refusal:
        locked.send_message(QueueUrl=url, MessageBody="x")
    assert refusal.status == 403


def test_a_wrong_secret(locked_server: ServerProcess) -> None:
    with refused("SignatureDoesNotMatch") as refusal:
        make_client(locked_server.url, key=KEY, secret="wrong").list_queues()
    assert refusal.status == 403


def test_an_unknown_key(locked_server: ServerProcess) -> None:
    with refused("InvalidClientTokenId"):
        make_client(locked_server.url, key="AKIDNOBODY", secret=SECRET).list_queues()


def test_no_signature(locked_server: ServerProcess) -> None:
    with refused("MissingAuthenticationToken"):
        make_client(locked_server.url, signature_version=UNSIGNED).list_queues()


def test_another_kind_of_signature(locked: Client) -> None:
    def sign(request: Any, **_: object) -> None:
        request.headers["Authorization"] = "AWS3-HTTPS AWSAccessKeyId=x,Algorithm=HmacSHA256,Signature=x"

    locked.meta.events.register("before-send.sqs.*", sign)
    with refused("InvalidSecurity"):
        locked.list_queues()


@pytest.mark.parametrize("skew", [timedelta(minutes=-16), timedelta(minutes=16)])
def test_a_skewed_clock(locked_server: ServerProcess, skew: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    import botocore.auth

    then = datetime.now(UTC) + skew
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda *_, **__: then.replace(tzinfo=None), raising=False
    )
    client = make_client(locked_server.url, key=KEY, secret=SECRET, retries={"total_max_attempts": 1})
    with refused("SignatureDoesNotMatch") as refusal:
        client.list_queues()
    assert ("expired" if skew < timedelta() else "not yet current") in refusal.message


@pytest.mark.parametrize("part", ["body", "header", "path"])
def test_what_was_changed_on_the_way(locked: Client, part: str) -> None:
    url = new_queue(locked)

    def change(request: Any, **_: object) -> None:
        if part == "body":
            data = request.body if isinstance(request.body, bytes) else request.body.encode()
            request.body = data.replace(b"good", b"evil")
        elif part == "header":
            request.headers["X-Amz-Date"] = "20200101T000000Z"
        else:
            request.url = request.url.rstrip("/") + "/000000000000/other"

    locked.meta.events.register("before-send.sqs.*", change)
    with refused("SignatureDoesNotMatch"):
        locked.send_message(QueueUrl=url, MessageBody="good")


# -- presigned --------------------------------------------------------------------------------------------------------


def presigned(url: str, *, expires_s: int = 60, secret: str = SECRET) -> tuple[int, str]:
    request = AWSRequest(method="GET", url=url)
    SigV4QueryAuth(Credentials(KEY, secret), "sqs", "us-east-1", expires=expires_s).add_auth(request)
    return fetch(request.url)


def fetch(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    connection.request("GET", f"{parts.path or '/'}?{parts.query}")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_presigned_url_is_served_until_it_expires(locked_server: ServerProcess) -> None:
    name = new_name()
    status, text = presigned(f"{locked_server.url}/?Action=CreateQueue&QueueName={name}&Version=2012-11-05")
    assert (status, name in text) == (200, True)
    url = f"{locked_server.url}/000000000000/{name}?Action=SendMessage&MessageBody=a%20b%2Bc%26%C3%BC"
    assert presigned(url)[0] == 200
    assert presigned(url, secret="wrong")[0] == 403
    assert presigned(url, expires_s=700_000)[0] == 400
    status, text = presigned(f"{locked_server.url}/000000000000/{name}?Action=ReceiveMessage")
    assert "<Body>a b+c&amp;ü</Body>" in text


def test_a_presigned_url_that_was_changed(locked_server: ServerProcess) -> None:
    request = AWSRequest(method="GET", url=f"{locked_server.url}/?Action=ListQueues")
    SigV4QueryAuth(Credentials(KEY, SECRET), "sqs", "us-east-1", expires=60).add_auth(request)
    assert fetch(request.url)[0] == 200
    status, text = fetch(request.url + "&QueueNamePrefix=x")
    assert (status, "SignatureDoesNotMatch" in text) == (403, True)
