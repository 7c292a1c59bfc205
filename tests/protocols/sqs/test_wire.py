"""The two protocols to the letter, and what neither of them is."""

from __future__ import annotations

import json
import re

import pytest

from smista.protocols.sqs.actions import ACTIONS
from smista.protocols.sqs.actions.base import Answer, QueueParameters
from smista.protocols.sqs.app import SqsApp
from smista.protocols.sqs.call import Call
from tests.protocols.sqs.clients import Client, make_client, new_name, new_queue
from tests.protocols.sqs.raw import FORM, JSON, act, ask, form
from tests.served import Served

REQUEST_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


# -- JSON -------------------------------------------------------------------------------------------------------------


def test_an_answer_in_json(server: Served, boto: Client) -> None:
    name = new_name()
    answer = act(server, "CreateQueue", {"QueueName": name})
    assert answer.status == 200
    assert answer.headers["content-type"] == JSON
    assert REQUEST_ID.fullmatch(answer.headers["x-amzn-requestid"])
    assert answer.json() == {"QueueUrl": f"{server.url}/000000000000/{name}"}
    assert act(server, "ReceiveMessage", {"QueueUrl": name}).json() == {}
    assert act(server, "DeleteQueue", {"QueueUrl": name}).body == ""


def test_an_error_in_json(server: Served) -> None:
    answer = act(server, "SendMessage", {"QueueUrl": "none", "MessageBody": "x"})
    assert answer.status == 400
    assert answer.headers["content-type"] == JSON
    assert answer.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert answer.json() == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }


def test_the_queue_is_named_by_the_path_too_and_a_parameter_beats_it(server: Served, boto: Client) -> None:
    here, there = new_queue(boto), new_queue(boto)
    assert act(server, "SendMessage", {"MessageBody": "x"}, path_of(here)).status == 200
    assert act(server, "SendMessage", {"MessageBody": "y", "QueueUrl": there}, path_of(here)).status == 200
    bodies = [boto.receive_message(QueueUrl=url)["Messages"][0]["Body"] for url in (here, there)]
    assert bodies == ["x", "y"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "MissingRequiredParameterException"),
        (b"{}", "MissingRequiredParameterException"),
        (b"not json", "SerializationException"),
        (b"[]", "SerializationException"),
        (b"{", "SerializationException"),
        (b'{"QueueUrl": 5}', "SerializationException"),
        (b'{"QueueUrl": "\xff"}', "SerializationException"),
        (b'{"QueueUrl": "x", "DelaySeconds": "5"}', "SerializationException"),
        (b'{"QueueUrl": "x", "MessageAttributes": {"a": {"BinaryValue": "*"}}}', "SerializationException"),
        (b'{"QueueUrl": "http://host/not/a/queue", "MessageBody": "x"}', "QueueDoesNotExist"),
        (b'{"QueueUrl": "http://host", "MessageBody": "x"}', "QueueDoesNotExist"),
        (
            b'{"QueueUrl": "https://sqs.us-east-1.amazonaws.com/123456789012/x", "MessageBody": "x"}',
            "QueueDoesNotExist",
        ),
        (b'{"QueueUrl": "http://", "MessageBody": "x"}', "QueueDoesNotExist"),
        (b'{"QueueUrl": "/", "MessageBody": "x"}', "QueueDoesNotExist"),
        (b'{"QueueUrl": "foobar baz", "MessageBody": "x"}', "QueueDoesNotExist"),
        (b"[" * 100_000, "SerializationException"),
        (b'{"unknown": ' + b"[" * 100_000, "SerializationException"),
    ],
    ids=lambda value: value.decode("latin-1")[:30] if isinstance(value, bytes) else value,
)
def test_json_that_cannot_be_taken(server: Served, body: bytes, kind: str) -> None:
    answer = act(server, "SendMessage", body)
    assert answer.json()["__type"] == f"com.amazonaws.sqs#{kind}"
    assert answer.status == 400


def test_half_a_surrogate_pair_is_no_text(server: Served, boto: Client) -> None:
    queue = new_queue(boto)
    answer = act(server, "SendMessage", '{"QueueUrl": "' + queue + '", "MessageBody": "\\ud800"}')
    assert answer.status == 400
    assert "Messages" not in boto.receive_message(QueueUrl=queue)


def test_an_unknown_action_in_json(server: Served) -> None:
    answer = act(server, "DropEverything")
    assert answer.status == 400
    assert answer.json()["__type"] == "com.amazonaws.sqs#UnknownOperationException"
    answer = ask(server, "POST", "/", b"{}", {"X-Amz-Target": "DynamoDB_20120810.ListTables", "Content-Type": JSON})
    assert answer.json()["__type"] == "com.amazonaws.sqs#UnknownOperationException"


# -- Query ------------------------------------------------------------------------------------------------------------


def test_an_answer_in_xml(server: Served) -> None:
    name = new_name()
    answer = form(server, f"Action=CreateQueue&QueueName={name}&Attribute.1.Name=DelaySeconds&Attribute.1.Value=5")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/xml"
    request_id = answer.headers["x-amzn-requestid"]
    assert answer.body == (
        '<?xml version="1.0"?><CreateQueueResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
        f"<CreateQueueResult><QueueUrl>{server.url}/000000000000/{name}</QueueUrl></CreateQueueResult>"
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></CreateQueueResponse>"
    )
    answer = ask(server, "GET", f"/000000000000/{name}?Action=GetQueueAttributes&AttributeName.1=DelaySeconds")
    assert "<Attribute><Name>DelaySeconds</Name><Value>5</Value></Attribute>" in answer.body


def test_an_error_in_xml(server: Served) -> None:
    answer = form(server, "Action=SendMessage&MessageBody=x", "/000000000000/none")
    assert answer.status == 400
    request_id = answer.headers["x-amzn-requestid"]
    assert answer.body == (
        '<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        "<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>"
        "<Message>The specified queue does not exist for this wsdl version.</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )


def test_a_queue_url_without_an_action(server: Served, boto: Client) -> None:
    answer = ask(server, "GET", path_of(new_queue(boto)))
    assert (answer.status, answer.body) == (404, "<UnknownOperationException/>\n")


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues", "DropEverything", ""])
def test_actions_that_do_not_go_with_a_queue_url(server: Served, boto: Client, action: str) -> None:
    answer = form(server, f"Action={action}&QueueName=x", path_of(new_queue(boto)))
    assert answer.status == 400
    assert "<Code>InvalidAction</Code>" in answer.body
    assert f"<Message>The action {action} is not valid for this endpoint.</Message>" in answer.body


@pytest.mark.parametrize(
    "body",
    [
        "Action=SendMessage&MessageBody=%FF",
        "Action=SendMessage&MessageBody=x&DelaySeconds=soon",
        "Action=SendMessage&MessageBody=x&MessageAttribute.x.Name=a",
        "Action=SendMessage&MessageBody=x&MessageBody.1=y",
        "Action=SendMessage&MessageBody=x&MessageAttribute.1.Value.StringValue=y",
        "Action=SendMessage&MessageBody=x&MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=*",
        "Action=SendMessageBatch&SendMessageBatchRequestEntry.1=x",
        "Action=SendMessage&MessageBody=x&" + "&".join(f"p{number}=1" for number in range(10_001)),
        "Action=SendMessage&MessageBody=x&" + ".".join("a" * 500) + "=1&MessageAttribute.1.1.1.1=2",
    ],
    ids=lambda body: body[:60],
)
def test_forms_that_cannot_be_taken(server: Served, boto: Client, body: str) -> None:
    queue = new_queue(boto)
    answer = form(server, body, path_of(queue))
    assert answer.status == 400
    assert "<Type>Sender</Type>" in answer.body
    assert "Messages" not in boto.receive_message(QueueUrl=queue)


def test_a_content_type_that_is_not_known(server: Served, boto: Client) -> None:
    queue = new_queue(boto)
    answer = ask(
        server, "POST", path_of(queue) + "?Action=SendMessage", "MessageBody=x", {"Content-Type": "text/plain"}
    )
    assert answer.status == 415
    assert "<Code>UnsupportedMediaType</Code>" in answer.body


def test_lists_are_numbered_in_any_order(server: Served, boto: Client) -> None:
    queue = new_queue(boto)
    entry = "SendMessageBatchRequestEntry"
    body = "&".join(f"{entry}.{n}.Id=i{n}&{entry}.{n}.MessageBody=b{n}" for n in (10, 2, 1))
    answer = form(server, f"Action=SendMessageBatch&{body}", path_of(queue))
    assert re.findall(r"<Id>(\w+)</Id>", answer.body) == ["i1", "i2", "i10"]


def test_a_map_of_one_needs_no_number_and_a_path_may_end_in_a_slash(server: Served, boto: Client) -> None:
    url = new_queue(boto)
    path = url.removeprefix(server.url) + "/"
    assert form(server, "Action=SetQueueAttributes&Attribute.Name=DelaySeconds&Attribute.Value=5", path).status == 200
    assert "<Value>5</Value>" in ask(server, "GET", path + "?Action=GetQueueAttributes&AttributeName=All").body
    found = boto.get_queue_attributes(QueueUrl=url + "/", AttributeNames=["DelaySeconds"])["Attributes"]
    assert found == {"DelaySeconds": "5"}
    sent = "MessageAttribute.Name=a&MessageAttribute.Value.DataType=String&MessageAttribute.Value.StringValue=v"
    assert form(server, f"Action=SendMessage&MessageBody=x&DelaySeconds=0&{sent}", path).status == 200
    [message] = boto.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"] == {"a": {"DataType": "String", "StringValue": "v"}}


@pytest.mark.parametrize(
    "action", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"], ids=lambda action: action
)
def test_a_list_given_empty_has_no_entries(server: Served, boto: Client, action: str) -> None:
    path = path_of(new_queue(boto))
    for parameter in ("Entries", f"{action}RequestEntry"):
        answer = form(server, f"Action={action}&{parameter}=", path)
        assert answer.status == 400
        assert "<Code>AWS.SimpleQueueService.EmptyBatchRequest</Code>" in answer.body


def test_other_lists_given_empty_are_passed_over(server: Served, boto: Client) -> None:
    path = path_of(new_queue(boto))
    names = ("MessageAttribute", "MessageAttributes", "MessageSystemAttributes", "MessageSystemAttribute")
    empty = "&".join(f"{name}=" for name in names)
    assert form(server, f"Action=SendMessage&MessageBody=x&{empty}", path).status == 200
    names = ("AttributeName", "AttributeNames", "MessageAttributeName", "MessageAttributeNames")
    empty = "&".join(f"{name}=" for name in names)
    assert "<Body>x</Body>" in form(server, f"Action=ReceiveMessage&{empty}", path).body
    assert form(server, "Action=GetQueueAttributes&AttributeName=", path).status == 200
    name = new_name()
    assert form(server, f"Action=CreateQueue&QueueName={name}&Attribute=&Tag=&Attributes=&Tags=").status == 200


# -- Query, answered in JSON ------------------------------------------------------------------------------------------

WANTS_JSON = {"Accept": "application/json"}


def test_a_query_that_accepts_json_is_answered_in_json(server: Served, boto: Client) -> None:
    url = new_queue(boto)
    attribute = {"n": {"DataType": "Number", "StringValue": "1"}}
    boto.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attribute)
    answer = ask(server, "GET", path_of(url) + "?Action=GetQueueAttributes&AttributeName.1=QueueArn", b"", WANTS_JSON)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    name = url.rpartition("/")[2]
    assert answer.json() == {
        "GetQueueAttributesResponse": {
            "GetQueueAttributesResult": {
                "Attributes": [{"Name": "QueueArn", "Value": f"arn:aws:sqs:us-east-1:000000000000:{name}"}]
            },
            "ResponseMetadata": {"RequestId": answer.headers["x-amzn-requestid"]},
        }
    }
    body = "Action=ReceiveMessage&AttributeName=All&MessageAttributeName=All"
    answer = ask(server, "POST", path_of(url), body, {**WANTS_JSON, "Content-Type": FORM})
    [message] = answer.json()["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    assert message["Body"] == "x"
    assert message["MessageAttributes"] == [{"Name": "n", "Value": attribute["n"]}]
    assert {"Name": "ApproximateReceiveCount", "Value": "1"} in message["Attributes"]
    listed = ask(server, "GET", f"/?Action=ListQueues&QueueNamePrefix={name}", b"", WANTS_JSON).json()
    assert listed["ListQueuesResponse"]["ListQueuesResult"] == {"queueUrls": [url]}


def test_an_error_of_a_query_that_accepts_json(server: Served, boto: Client) -> None:
    path = path_of(new_queue(boto))
    answer = ask(server, "GET", path + "?Action=ListQueues", b"", WANTS_JSON)
    assert answer.status == 400
    assert answer.json()["Error"]["Code"] == "InvalidAction"
    assert answer.json()["Error"]["Message"] == "The action ListQueues is not valid for this endpoint."
    assert answer.json()["RequestId"] == answer.headers["x-amzn-requestid"]
    # What is no request of SQS has one answer only.
    assert ask(server, "GET", path, b"", WANTS_JSON).body == "<UnknownOperationException/>\n"


# -- the trace header -------------------------------------------------------------------------------------------------

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


@pytest.mark.parametrize("wire", ["json", "query"])
def test_the_trace_header_of_a_request_goes_with_its_messages(server: Served, wire: str) -> None:
    sqs = make_client(server.url, wire)
    url = new_queue(sqs)
    sqs.meta.events.register("before-send.sqs", lambda request, **_: request.headers.update({"X-Amzn-Trace-Id": TRACE}))
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=own"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="single")
    assert "MD5OfMessageSystemAttributes" not in sent
    entries = [
        {"Id": "a", "MessageBody": "entry"},
        {"Id": "b", "MessageBody": "own", "MessageSystemAttributes": own},
    ]
    sqs.send_message_batch(QueueUrl=url, Entries=entries)
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["AWSTraceHeader"])["Messages"]
    found = {message["Body"]: message["Attributes"]["AWSTraceHeader"] for message in messages}
    assert found == {"single": TRACE, "entry": TRACE, "own": "Root=own"}


def test_what_is_no_trace_header_is_passed_over(server: Served, boto: Client) -> None:
    url = new_queue(boto)
    headers = {"Content-Type": FORM, "X-Amzn-Trace-Id": "x" * 100}
    assert ask(server, "POST", path_of(url), "Action=SendMessage&MessageBody=x", headers).status == 200
    [message] = boto.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert "AWSTraceHeader" not in message["Attributes"]


def test_a_request_that_is_too_long(server: Served) -> None:
    answer = act(server, "SendMessage", b" " * (17 << 20))
    assert answer.status == 413


# -- whose request it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "is_ours"),
    [
        ("POST", "/", b"", {b"x-amz-target": b"AmazonSQS.ListQueues"}, True),
        ("POST", "/", b"", {b"content-type": b"application/x-www-form-urlencoded; charset=utf-8"}, True),
        ("POST", "/", b"Action=ListQueues", {}, True),
        ("POST", "/000000000000/q", b"", {b"x-amz-target": b"AmazonSQS.SendMessage"}, True),
        ("POST", "/000000000000/q", b"Version=1&Action=SendMessage", {}, True),
        ("POST", "/some/where/else", b"", {b"x-amz-target": b"AmazonSQS.SendMessage"}, True),
        ("GET", "/", b"Action=ListQueues", {}, True),
        ("GET", "/000000000000/q", b"", {}, True),
        ("GET", "/000000000000/q/", b"Action=ReceiveMessage", {}, True),
        ("POST", "/000000000000/q/", b"Action=ReceiveMessage", {}, True),
        ("GET", "/queue/eu-west-1/000000000000/q", b"", {}, True),
        ("POST", "/queue/eu-west-1/000000000000/q", b"Action=SendMessage", {}, True),
        ("GET", "/000000000000/q/r", b"Action=ReceiveMessage", {}, False),
        ("GET", "/", b"", {}, False),
        ("GET", "/", b"x=Action", {}, False),
        ("GET", "/somewhere/q", b"Action=ReceiveMessage", {}, False),
        ("POST", "/", b"", {b"content-type": b"application/json"}, False),
        ("PUT", "/000000000000/q", b"Action=SendMessage", {}, False),
        ("POST", "/v1/command", b"", {b"content-type": b"application/x-www-form-urlencoded"}, False),
        ("POST", "/v1/queues", b"Action=ListQueues", {b"x-amz-target": b"AmazonSQS.ListQueues"}, False),
        ("GET", "/healthz", b"Action=ListQueues", {}, False),
        ("GET", "/readyz", b"", {}, False),
        ("GET", "/metrics", b"", {}, False),
        ("GET", "/openapi.json", b"", {}, False),
    ],
)
def test_the_app_claims_what_is_for_it(
    method: str, path: str, query: bytes, headers: dict[bytes, bytes], is_ours: bool
) -> None:
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": list(headers.items())}
    assert SqsApp.claims(scope) is is_ours


def test_without_a_signature_a_get_may_ask_only_for_what_changes_nothing(server: Served) -> None:
    answers = {name: ask(server, "GET", f"/?Action={name}").body for name in ACTIONS}
    refused = {name for name, body in answers.items() if "by GET has to be signed" in body}
    assert refused == {name for name, action in ACTIONS.items() if not action.is_reading}
    assert ACTIONS.keys() - refused == {
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
    }


def test_what_an_action_is_called_does_not_decide_whether_it_may_come_by_get() -> None:
    class GetRidOfQueue(QueueParameters):
        async def run(self, call: Call) -> Answer:
            raise AssertionError

    assert not GetRidOfQueue.is_reading


def test_other_protocols_on_the_port_are_as_they_were(server: Served) -> None:
    assert ask(server, "GET", "/healthz").body == "ok\n"
    assert ask(server, "GET", "/").headers["content-type"].startswith("text/html")
    answer = ask(
        server, "POST", "/v1/command", json.dumps({"command": "nothing"}), {"Content-Type": "application/json"}
    )
    assert answer.json()["error"]["code"] == "unknown_command"
