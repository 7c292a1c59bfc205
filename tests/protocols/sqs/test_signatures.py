"""Signature Version 4, as boto3 makes it: in headers, and presigned."""

from __future__ import annotations

import http.client
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore import UNSIGNED  # type: ignore[import-untyped]  # has no types of its own
from botocore.auth import SigV4Auth, SigV4QueryAuth  # type: ignore[import-untyped]  # as above
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # as above
from botocore.credentials import Credentials  # type: ignore[import-untyped]  # as above

from smista.protocols.sqs.actions import ACTIONS
from tests.protocols.sqs.clients import Client, make_client, new_name, new_queue, refused
from tests.protocols.sqs.raw import FORM, Answer, ask
from tests.served import Served
from tests.waiting import PATIENCE_S

KEY, SECRET = "AKIDEXAMPLE", "secret/with+signs"


@pytest.fixture(params=["json", "query"])
def locked(locked_server: Served, request: pytest.FixtureRequest) -> Client:
    return make_client(locked_server.url, request.param, key=KEY, secret=SECRET)


def test_a_signed_request_is_served(locked: Client) -> None:
    url = new_queue(locked)
    locked.send_message(QueueUrl=url, MessageBody="żółć & = + %")
    [message] = locked.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "żółć & = + %"


def test_a_key_of_twelve_digits_is_an_account(locked_server: Served, locked: Client) -> None:
    other = make_client(locked_server.url, key="123456789012", secret="another")
    url = new_queue(other)
    assert url.startswith(f"{locked_server.url}/123456789012/")
    with refused("AccessDenied") as refusal:
        locked.send_message(QueueUrl=url, MessageBody="x")
    assert refusal.status == 403


def test_a_wrong_secret(locked_server: Served) -> None:
    with refused("SignatureDoesNotMatch") as refusal:
        make_client(locked_server.url, key=KEY, secret="wrong").list_queues()
    assert refusal.status == 403


def test_an_unknown_key(locked_server: Served) -> None:
    with refused("InvalidClientTokenId"):
        make_client(locked_server.url, key="AKIDNOBODY", secret=SECRET).list_queues()


def test_no_signature(locked_server: Served) -> None:
    with refused("MissingAuthenticationToken"):
        make_client(locked_server.url, signature_version=UNSIGNED).list_queues()


def test_another_kind_of_signature(locked: Client) -> None:
    def sign(request: Any, **_: object) -> None:
        request.headers["Authorization"] = "AWS3-HTTPS AWSAccessKeyId=x,Algorithm=HmacSHA256,Signature=x"

    locked.meta.events.register("before-send.sqs.*", sign)
    with refused("InvalidSecurity"):
        locked.list_queues()


@pytest.mark.parametrize("skew", [timedelta(minutes=-16), timedelta(minutes=16)])
def test_a_skewed_clock(locked_server: Served, skew: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_presigned_url_is_served_until_it_expires(locked_server: Served) -> None:
    name = new_name()
    status, text = presigned(f"{locked_server.url}/?Action=CreateQueue&QueueName={name}&Version=2012-11-05")
    assert (status, name in text) == (200, True)
    url = f"{locked_server.url}/000000000000/{name}?Action=SendMessage&MessageBody=a%20b%2Bc%26%C3%BC"
    assert presigned(url)[0] == 200
    assert presigned(url, secret="wrong")[0] == 403
    assert presigned(url, expires_s=700_000)[0] == 400
    status, text = presigned(f"{locked_server.url}/000000000000/{name}?Action=ReceiveMessage")
    assert "<Body>a b+c&amp;ü</Body>" in text


@pytest.mark.parametrize("expires", ["9" * 5000, "0" * 5000, "٩" * 1000, "-1", "x", ""])
def test_a_presigned_url_that_expires_at_no_time(locked_server: Served, expires: str) -> None:
    url = f"{locked_server.url}/?Action=ListQueues&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=x"
    status, text = fetch(f"{url}&X-Amz-Expires={quote(expires)}")
    assert (status, "IncompleteSignature" in text) == (400, True)


def test_a_presigned_url_that_was_changed(locked_server: Served) -> None:
    request = AWSRequest(method="GET", url=f"{locked_server.url}/?Action=ListQueues")
    SigV4QueryAuth(Credentials(KEY, SECRET), "sqs", "us-east-1", expires=60).add_auth(request)
    assert fetch(request.url)[0] == 200
    status, text = fetch(request.url + "&QueueNamePrefix=x")
    assert (status, "SignatureDoesNotMatch" in text) == (403, True)


# -- only the one who signed ------------------------------------------------------------------------------------------
#
# A tenant that has a key of its own must not come in as another, whatever else it puts into a request.

TENANT, TENANT_SECRET = "123456789012", "another"
STRANGER = "000000000000"
"""The account of `KEY`, which the tenant is not."""


def signed(
    server: Served,
    action: str,
    parameters: dict[str, Any],
    *,
    url: str = "",
    key: str = TENANT,
    secret: str = TENANT_SECRET,
    region: str = "us-east-1",
) -> AWSRequest:
    """A request as boto3 would sign it."""
    headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
    request = AWSRequest("POST", url or server.url + "/", data=json.dumps(parameters).encode(), headers=headers)
    SigV4Auth(Credentials(key, secret), "sqs", region).add_auth(request)
    return request


def sent(server: Served, request: AWSRequest, *more: tuple[str, str]) -> Answer:
    """The answer to a request, with headers added after it was signed, even if it has them already."""
    connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
    prepared = request.prepare()
    target = urlsplit(prepared.url)
    connection.putrequest(prepared.method, f"{target.path or '/'}{'?' + target.query if target.query else ''}")
    for name, value in (*prepared.headers.items(), *more):
        connection.putheader(name, value.decode() if isinstance(value, bytes) else value)
    if "Content-Length" not in prepared.headers:
        connection.putheader("Content-Length", str(len(prepared.body or b"")))
    connection.endheaders(prepared.body)
    answer = connection.getresponse()
    found = Answer(answer.status, {}, answer.read().decode())
    connection.close()
    return found


class PresignedWithBody(SigV4QueryAuth):  # type: ignore[misc]  # botocore has no types of its own
    """In the URL as usual, but what is in the body stays there."""

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        body, request.data = request.data, b""
        super()._modify_request_before_signing(request)
        request.data = body


@pytest.fixture
def bank(locked_server: Served) -> str:
    """The path of a queue that is not the tenant's."""
    name = new_name()
    owner = make_client(locked_server.url, key=KEY, secret=SECRET)
    url = owner.create_queue(QueueName=name)["QueueUrl"]
    owner.send_message(QueueUrl=url, MessageBody="secret")
    return str(urlsplit(url).path)


def is_untouched(server: Served, bank: str) -> bool:
    owner = make_client(server.url, key=KEY, secret=SECRET)
    found = owner.get_queue_attributes(QueueUrl=server.url + bank, AttributeNames=["ApproximateNumberOfMessages"])
    return bool(found["Attributes"]["ApproximateNumberOfMessages"] == "1")


@pytest.mark.parametrize("action", ["ReceiveMessage", "DeleteQueue", "PurgeQueue", "GetQueueAttributes"])
def test_another_credential_in_front_of_ones_own_is_refused(locked_server: Served, bank: str, action: str) -> None:
    request = signed(locked_server, action, {"QueueUrl": bank})
    assert sent(locked_server, request).status == 403
    algorithm, _, rest = request.headers["Authorization"].partition(" ")
    other = f"Credential={KEY}/20200101/us-east-1/sqs/aws4_request"
    for parts in (f"{other}, {rest}", f"{rest}, {other}", f"{rest}, {rest}"):
        request.headers.replace_header("Authorization", f"{algorithm} {parts}")
        answer = sent(locked_server, request)
        assert (answer.status, "IncompleteSignature" in answer.body) == (400, True), answer
    assert is_untouched(locked_server, bank)


def test_a_header_that_comes_twice_is_refused(locked_server: Served) -> None:
    other = signed(locked_server, "ListQueues", {}, key=KEY, secret=SECRET)
    for name in ("Authorization", "X-Amz-Date", "X-Amz-Target", "Content-Type"):
        answer = sent(locked_server, signed(locked_server, "ListQueues", {}), (name, other.headers[name]))
        assert (answer.status, "IncompleteSignature" in answer.body) == (400, True), (name, answer)


def test_a_credential_in_a_form_says_nothing(locked_server: Served, bank: str) -> None:
    credential = quote(f"{KEY}/20200101/us-east-1/sqs/aws4_request", safe="")
    body = f"Action=DeleteQueue&QueueUrl={quote(bank, safe='')}&X-Amz-Credential={credential}".encode()
    request = AWSRequest("POST", locked_server.url + "/", data=body, headers={"Content-Type": FORM})
    SigV4Auth(Credentials(TENANT, TENANT_SECRET), "sqs", "us-east-1").add_auth(request)
    assert "AccessDenied" in sent(locked_server, request).body
    request = AWSRequest("POST", locked_server.url + "/", data=body)
    PresignedWithBody(Credentials(TENANT, TENANT_SECRET), "sqs", "us-east-1", expires=60).add_auth(request)
    assert "AccessDenied" in sent(locked_server, request, ("Content-Type", FORM)).body
    assert is_untouched(locked_server, bank)


def test_a_presigned_url_with_a_part_twice_is_refused(locked_server: Served, bank: str) -> None:
    request = AWSRequest(method="GET", url=f"{locked_server.url}{bank}?Action=PurgeQueue")
    SigV4QueryAuth(Credentials(TENANT, TENANT_SECRET), "sqs", "us-east-1", expires=60).add_auth(request)
    assert fetch(request.url)[0] == 403
    for again in ("X-Amz-Credential=x", "X-Amz-Signature=x", "X-Amz-Date=x", "X-Amz-Expires=60"):
        for url in (f"{request.url}&{again}", request.url.replace("?", f"?{again}&")):
            status, text = fetch(url)
            assert (status, "IncompleteSignature" in text) == (400, True), again
    assert is_untouched(locked_server, bank)


def test_a_request_that_is_signed_in_two_ways_is_refused(locked_server: Served) -> None:
    request = AWSRequest(method="GET", url=f"{locked_server.url}/?Action=ListQueues")
    SigV4QueryAuth(Credentials(KEY, SECRET), "sqs", "us-east-1", expires=60).add_auth(request)
    answer = sent(locked_server, signed(locked_server, "ListQueues", {}, url=request.url))
    assert (answer.status, "IncompleteSignature" in answer.body) == (400, True)


def test_what_says_what_to_do_has_to_be_signed(locked_server: Served, bank: str) -> None:
    """Else somebody who sees a request go by could have the broker do something else with it."""
    request = AWSRequest(
        "POST",
        locked_server.url + "/",
        data=json.dumps({"QueueUrl": bank}).encode(),
        headers={"Content-Type": "application/x-amz-json-1.0"},
    )
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "us-east-1").add_auth(request)
    answer = sent(locked_server, request, ("X-Amz-Target", "AmazonSQS.PurgeQueue"))
    assert answer.status == 403
    assert "'x-amz-target' must be a 'SignedHeader' in the AWS Authorization." in answer.body
    assert is_untouched(locked_server, bank)
    plain = signed(locked_server, "ListQueues", {}, key=KEY, secret=SECRET)
    assert sent(locked_server, plain, ("X-Amz-Anything", "x")).status == 403
    # What proxies add is not of that kind.
    assert sent(locked_server, plain, ("X-Amzn-Trace-Id", "Root=1-2-3"), ("X-Forwarded-For", "10.0.0.1")).status == 200


def test_account_and_region_are_those_that_signed(locked_server: Served) -> None:
    name = new_name()
    made = sent(locked_server, signed(locked_server, "CreateQueue", {"QueueName": name}, region="eu-west-1"))
    assert made.json()["QueueUrl"] == f"{locked_server.url}/queue/eu-west-1/{TENANT}/{name}"
    found = signed(locked_server, "GetQueueAttributes", {"QueueUrl": f"/{TENANT}/{name}", "AttributeNames": ["All"]})
    assert "QueueDoesNotExist" in sent(locked_server, found).body
    answer = sent(locked_server, signed(locked_server, "ListQueues", {}, region="Somewhere Else"))
    assert (answer.status, "valid region" in answer.body) == (403, True)


def test_arns_of_another_account_are_refused(locked_server: Served, bank: str) -> None:
    name = new_name()
    assert sent(locked_server, signed(locked_server, "CreateQueue", {"QueueName": name})).status == 200
    other = f"arn:aws:sqs:us-east-1:{STRANGER}:{bank.rpartition('/')[2]}"
    own = f"arn:aws:sqs:us-east-1:{TENANT}:{name}"
    policy = json.dumps({"deadLetterTargetArn": other, "maxReceiveCount": 1})
    for action, parameters in (
        ("SetQueueAttributes", {"QueueUrl": f"/{TENANT}/{name}", "Attributes": {"RedrivePolicy": policy}}),
        ("StartMessageMoveTask", {"SourceArn": other, "DestinationArn": own}),
        ("ListMessageMoveTasks", {"SourceArn": other}),
    ):
        assert sent(locked_server, signed(locked_server, action, parameters)).status in (400, 403), action
    assert is_untouched(locked_server, bank)


# -- without a signature ----------------------------------------------------------------------------------------------


def test_a_get_that_nobody_signed_changes_nothing(server: Served, boto: Client) -> None:
    """Any page can have a browser send one: <img src="http://127.0.0.1:9324/?Action=DeleteQueue&...">."""
    queue = new_queue(boto)
    boto.send_message(QueueUrl=queue, MessageBody="x")
    path = urlsplit(queue).path
    changing = sorted(name for name in ACTIONS if not name.startswith(("Get", "List")))
    assert len(changing) == 17
    credential = quote(f"{KEY}/20200101/us-east-1/sqs/aws4_request", safe="")
    for action in changing:
        for more in ("", f"&X-Amz-Credential={credential}&X-Amz-Signature=0"):
            place = "/" if action == "CreateQueue" else path
            query = f"Action={action}&QueueName=made&MessageBody=x&Id=1{more}"
            status, text = fetch(f"{server.url}{place}?{query}")
            assert status in (400, 403), (action, text)
    assert "MissingAuthenticationToken" in fetch(f"{queue}?Action=DeleteQueue")[1]
    assert "sqs_access_keys" in fetch(f"{queue}?Action=DeleteQueue")[1]
    assert fetch(f"{queue}?Action=ReceiveMessage")[0] == 403
    found = boto.get_queue_attributes(QueueUrl=queue, AttributeNames=["ApproximateNumberOfMessages"])
    assert found["Attributes"]["ApproximateNumberOfMessages"] == "1"
    assert fetch(f"{server.url}/?Action=ListQueues")[0] == 200
    with refused("NonExistentQueue"):
        boto.get_queue_url(QueueName="made")


def test_a_body_has_to_say_what_it_is(server: Served) -> None:
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}):
        answer = ask(server, "POST", "/?Action=ListQueues", "QueueNamePrefix=x", headers)
        assert (answer.status, "UnsupportedMediaType" in answer.body) == (415, True), headers
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": FORM}):
        answer = ask(server, "POST", "/", "{}", {"X-Amz-Target": "AmazonSQS.ListQueues", **headers})
        assert answer.status == 415, headers
        assert answer.json()["__type"] == "com.amazonaws.sqs#UnsupportedMediaTypeException"
