"""Creating, finding, listing, changing and deleting queues."""

from __future__ import annotations

import json

import pytest

from smista.protocols.sqs.actions import add_permission
from tests.protocols.sqs.clients import Client, arn, make_client, new_name, new_queue, refused
from tests.served import Served
from tests.server_thread import ServerThread

ATTRIBUTES = {
    "VisibilityTimeout": "45",
    "DelaySeconds": "7",
    "MaximumMessageSize": "2048",
    "MessageRetentionPeriod": "3600",
    "ReceiveMessageWaitTimeSeconds": "3",
    "SqsManagedSseEnabled": "false",
    "KmsMasterKeyId": "alias/aws/sqs",
    "KmsDataKeyReusePeriodSeconds": "600",
    "Policy": json.dumps({"Version": "2012-10-17", "Statement": []}),
    "RedriveAllowPolicy": json.dumps({"redrivePermission": "denyAll"}),
}
FIFO_ATTRIBUTES = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}
DEEP = f'{{"x": {"[" * 3000}{"]" * 3000}}}'
DEFAULTS = {
    "VisibilityTimeout": "30",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
}


def attributes(sqs: Client, url: str, *names: str) -> dict[str, str]:
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ("All",)))
    return dict(answer.get("Attributes", {}))


def test_a_queue_is_created_once_however_often_it_is_asked_for(sqs: Client, server: Served) -> None:
    name = new_name()
    first = sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "5"})["QueueUrl"]
    assert first == f"{server.url}/000000000000/{name}"
    assert sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "5"})["QueueUrl"] == first
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == first
    with refused("QueueNameExists" if sqs.meta.service_model.protocol == "json" else "QueueAlreadyExists") as refusal:
        sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "6"})
    assert refusal.code == "QueueAlreadyExists"
    assert (
        refusal.message == "A queue already exists with the same name and a different value for attribute DelaySeconds"
    )


def test_a_queue_without_attributes_has_the_defaults(sqs: Client, queue: str) -> None:
    found = attributes(sqs, queue)
    assert found.items() >= DEFAULTS.items()
    assert found["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{queue.rpartition('/')[2]}"
    assert int(found["CreatedTimestamp"]) <= int(found["LastModifiedTimestamp"])
    assert set(found) == {*DEFAULTS, "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"}


@pytest.mark.parametrize("name", [*ATTRIBUTES, *FIFO_ATTRIBUTES])
def test_every_attribute_can_be_given_when_creating(sqs: Client, name: str) -> None:
    given = {**FIFO_ATTRIBUTES, **ATTRIBUTES} if name in FIFO_ATTRIBUTES else ATTRIBUTES
    url = new_queue(sqs, **given)
    assert attributes(sqs, url, name) == {name: given[name]}
    assert attributes(sqs, url).items() >= given.items()


@pytest.mark.parametrize("name", [*ATTRIBUTES, "ContentBasedDeduplication", "DeduplicationScope"])
def test_every_attribute_can_be_changed(sqs: Client, name: str) -> None:
    is_fifo = name in FIFO_ATTRIBUTES
    url = new_queue(sqs, **({"FifoQueue": "true"} if is_fifo else {}))
    value = {**ATTRIBUTES, **FIFO_ATTRIBUTES}[name]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={name: value})
    assert attributes(sqs, url, name) == {name: value}


def test_high_throughput_is_set_with_the_scope_that_it_needs(sqs: Client, fifo: str) -> None:
    with refused("InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoThroughputLimit": "perMessageGroupId"})
    given = {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes=given)
    assert attributes(sqs, fifo, *given) == given


def test_policies_are_taken_away_by_empty_ones(sqs: Client, queue: str) -> None:
    policies = {
        "Policy": ATTRIBUTES["Policy"],
        "RedriveAllowPolicy": ATTRIBUTES["RedriveAllowPolicy"],
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn(sqs, new_queue(sqs)), "maxReceiveCount": 4}),
    }
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=policies)
    assert set(attributes(sqs, queue)) >= set(policies)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=dict.fromkeys(policies, ""))
    assert not set(attributes(sqs, queue)) & set(policies)


def test_changing_to_high_throughput_is_checked_in_the_order_of_aws(sqs: Client, fifo: str) -> None:
    """Names, then values, then what one value asks of another; whatever the order they are given in."""
    high = {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    for bad, name in (
        ({**high, "Unknown": "1"}, "InvalidAttributeName"),
        ({"FifoThroughputLimit": "fast", "Unknown": "1"}, "InvalidAttributeName"),
        ({"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "galaxy"}, "InvalidAttributeValue"),
        ({"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "queue"}, "InvalidAttributeValue"),
    ):
        with refused(name) as refusal:
            sqs.set_queue_attributes(QueueUrl=fifo, Attributes=bad)
        unfit = "Unknown" if "Unknown" in bad else "Scope" if "galaxy" in bad.values() else "ThroughputLimit"
        assert unfit in refusal.message
    assert attributes(sqs, fifo, *high) == {"FifoThroughputLimit": "perQueue", "DeduplicationScope": "queue"}
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes=high)
    assert attributes(sqs, fifo, *high) == high
    with refused("InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"DeduplicationScope": "queue"})
    low = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes=low)
    assert attributes(sqs, fifo, *low) == low


@pytest.mark.parametrize("yes", ["True", "TRUE", "tRuE"])
def test_true_and_false_are_taken_in_any_case(sqs: Client, yes: str) -> None:
    names = ("FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled")
    name = new_name() + ".fifo"
    given = dict.fromkeys(names, yes)
    url = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    assert attributes(sqs, url, *names) == dict.fromkeys(names, "true")
    assert sqs.create_queue(QueueName=name, Attributes=dict.fromkeys(names, "true"))["QueueUrl"] == url
    sqs.set_queue_attributes(QueueUrl=url, Attributes=dict.fromkeys(names[1:], "False"))
    assert attributes(sqs, url, *names[1:]) == dict.fromkeys(names[1:], "false")


def test_a_queue_keeps_its_type(sqs: Client, queue: str, fifo: str) -> None:
    for value in ("true", "false", "True"):
        with refused("InvalidAttributeName") as refusal:
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={"FifoQueue": value})
        assert refusal.message == "Unknown Attribute FifoQueue."
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "true"})
    with refused("InvalidAttributeValue") as refusal:
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "false"})
    assert "Modifying queue type is not supported" in refusal.message


def test_the_default_reuse_period_of_a_key_is_not_listed(sqs: Client) -> None:
    name = "KmsDataKeyReusePeriodSeconds"
    url = new_queue(sqs, **{"KmsMasterKeyId": "alias/x", name: "300"})
    assert name not in attributes(sqs, url)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={name: "600"})
    assert attributes(sqs, url)[name] == "600"
    sqs.set_queue_attributes(QueueUrl=url, Attributes={name: "300"})
    assert name not in attributes(sqs, url)


def test_no_names_no_attributes(sqs: Client, queue: str) -> None:
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)


def test_all_or_none_of_the_attributes_are_set(sqs: Client, queue: str) -> None:
    before = attributes(sqs, queue)
    with refused("InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "5", "VisibilityTimeout": "43201"})
    assert attributes(sqs, queue) == before


def test_a_queue_is_encrypted_in_one_way_only(sqs: Client, queue: str) -> None:
    both = {"KmsMasterKeyId": "alias/aws/sqs", "SqsManagedSseEnabled": "true"}
    key, own = ({name: value} for name, value in both.items())
    text = "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."
    with refused("InvalidAttributeName") as refusal:
        new_queue(sqs, **both)
    assert refusal.message == text
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=key)
    assert attributes(sqs, queue, "SqsManagedSseEnabled") == {"SqsManagedSseEnabled": "false"}
    with refused("InvalidAttributeName"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes=own)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={**own, "KmsMasterKeyId": ""})
    assert attributes(sqs, queue, *both) == own


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("VisibilityTimeout", ["-1", "43201", "x", "", "1.5"]),
        ("DelaySeconds", ["-1", "901"]),
        ("MaximumMessageSize", ["1023", "1048577"]),
        ("MessageRetentionPeriod", ["59", "1209601"]),
        ("ReceiveMessageWaitTimeSeconds", ["21"]),
        ("KmsDataKeyReusePeriodSeconds", ["59", "86401"]),
        ("SqsManagedSseEnabled", ["yes"]),
        ("Policy", ["no JSON", "[]", DEEP]),
        (
            "RedrivePolicy",
            ["no JSON", DEEP, "{}", '{"maxReceiveCount": 3}', '{"deadLetterTargetArn": "arn:aws:sqs:x:y:z"}'],
        ),
        ("RedriveAllowPolicy", ["no JSON", DEEP, '{"redrivePermission": "x"}', '{"redrivePermission": "byQueue"}']),
    ],
)
def test_attributes_out_of_range_are_refused(boto: Client, name: str, values: list[str]) -> None:
    for value in values:
        with refused("InvalidAttributeValue"):
            boto.create_queue(QueueName=new_name(), Attributes={name: value})


@pytest.mark.parametrize(
    "name", ["", "with space", "a" * 81, "dots.in.it", "x.fifo", "ümlaut", "a/b"], ids=lambda name: name[:9]
)
def test_names_that_no_queue_may_have(boto: Client, name: str) -> None:
    with refused("InvalidParameterValue" if name else "MissingParameter"):
        boto.create_queue(QueueName=name)


def test_attributes_of_fifo_queues_are_unknown_to_others(sqs: Client) -> None:
    for name, value in {**FIFO_ATTRIBUTES, "FifoQueue": "false"}.items():
        with refused("InvalidAttributeName") as refusal:
            sqs.create_queue(QueueName=new_name(), Attributes={name: value})
        assert refusal.message == f"Unknown Attribute {name}."
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName=new_name(), Attributes={"FifoQueue": "true"})


def test_a_queue_is_found_by_its_name(sqs: Client, queue: str) -> None:
    name = queue.rpartition("/")[2]
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == queue
    assert sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId="000000000000")["QueueUrl"] == queue
    with refused("QueueDoesNotExist" if sqs.meta.service_model.protocol == "json" else "NonExistentQueue") as refusal:
        sqs.get_queue_url(QueueName="nothing-there")
    assert refusal.code == "AWS.SimpleQueueService.NonExistentQueue"
    assert refusal.status == 400
    assert refusal.message.startswith("The specified queue does not exist")
    with refused("NonExistentQueue"):
        sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId="111111111111")


def test_a_name_alone_does_as_a_queue_url(boto: Client) -> None:
    url = new_queue(boto)
    boto.send_message(QueueUrl=url.rpartition("/")[2], MessageBody="x")
    assert attributes(boto, url)["ApproximateNumberOfMessages"] == "1"


def test_queues_are_listed_by_prefix_and_page(sqs: Client) -> None:
    prefix = new_name("list")
    urls = [sqs.create_queue(QueueName=f"{prefix}-{number}")["QueueUrl"] for number in range(5)]
    assert sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"] == urls
    assert "NextToken" not in sqs.list_queues(QueueNamePrefix=prefix)
    first = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2)
    assert first["QueueUrls"] == urls[:2]
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2})
    assert [url for page in pages for url in page["QueueUrls"]] == urls
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=prefix + "-none")
    with refused("InvalidParameterValue"):
        sqs.list_queues(MaxResults=1001)
    with refused("InvalidParameterValue"):
        sqs.list_queues(NextToken="?", MaxResults=1)


def test_a_deleted_queue_is_gone(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.delete_queue(QueueUrl=queue)
    with refused("NonExistentQueue"):
        sqs.delete_queue(QueueUrl=queue)
    sqs.create_queue(QueueName=queue.rpartition("/")[2])
    assert attributes(sqs, queue)["ApproximateNumberOfMessages"] == "0"


def test_purging_takes_all_states(sqs: Client, queue: str) -> None:
    for delay in (0, 0, 60):
        sqs.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=delay)
    sqs.receive_message(QueueUrl=queue)
    counts = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ]
    assert attributes(sqs, queue, *counts) == dict.fromkeys(counts, "1")
    sqs.purge_queue(QueueUrl=queue)
    assert attributes(sqs, queue, *counts) == dict.fromkeys(counts, "0")
    sqs.purge_queue(QueueUrl=queue)


def test_sixty_seconds_are_kept_where_timing_is_strict(strict_server: Served) -> None:
    sqs = make_client(strict_server.url)
    url = new_queue(sqs)
    sqs.purge_queue(QueueUrl=url)
    with refused("PurgeQueueInProgress") as refusal:
        sqs.purge_queue(QueueUrl=url)
    assert refusal.status == 403
    name = url.rpartition("/")[2]
    assert refusal.message == f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
    sqs.delete_queue(QueueUrl=url)
    with refused("QueueDeletedRecently"):
        sqs.create_queue(QueueName=name)


def test_accounts_and_regions_have_queues_of_their_own(server: Served, boto: Client) -> None:
    url = new_queue(boto)
    name = url.rpartition("/")[2]
    other_account = make_client(server.url, key="123456789012")
    other_region = make_client(server.url, region="eu-west-1")
    for other, path in ((other_account, "123456789012"), (other_region, "queue/eu-west-1/000000000000")):
        with refused("QueueDoesNotExist"):
            other.get_queue_url(QueueName=name)
        assert "QueueUrls" not in other.list_queues(QueueNamePrefix=name)
        made = other.create_queue(QueueName=name)["QueueUrl"]
        assert made == f"{server.url}/{path}/{name}"
        other.send_message(QueueUrl=made, MessageBody="elsewhere")
    assert "Messages" not in boto.receive_message(QueueUrl=url)
    assert arn(other_region, url) == f"arn:aws:sqs:eu-west-1:000000000000:{name}"


@pytest.mark.parametrize("wire", ["json", "query"])
def test_a_queue_has_one_url_and_a_url_one_queue(server: Served, wire: str) -> None:
    here, there = make_client(server.url, wire), make_client(server.url, wire, region="eu-west-1")
    name = new_name()
    urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for sqs in (here, there)]
    assert urls == [f"{server.url}/000000000000/{name}", f"{server.url}/queue/eu-west-1/000000000000/{name}"]
    for sqs, url in zip((here, there), urls, strict=True):
        assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
        assert sqs.list_queues(QueueNamePrefix=name)["QueueUrls"] == [url]
    # A URL that names its region is good in any.
    here.send_message(QueueUrl=urls[1], MessageBody="there")
    aws = f"https://sqs.eu-west-1.amazonaws.com/000000000000/{name}"
    found = here.get_queue_attributes(QueueUrl=aws, AttributeNames=["QueueArn", "ApproximateNumberOfMessages"])
    assert found["Attributes"] == {
        "QueueArn": f"arn:aws:sqs:eu-west-1:000000000000:{name}",
        "ApproximateNumberOfMessages": "1",
    }
    assert "Messages" not in here.receive_message(QueueUrl=urls[0])
    assert there.receive_message(QueueUrl=urls[1])["Messages"][0]["Body"] == "there"
    there.delete_queue(QueueUrl=urls[1])
    with refused("NonExistentQueue"):
        here.send_message(QueueUrl=urls[1], MessageBody="x")
    here.send_message(QueueUrl=urls[0], MessageBody="x")


def test_dead_letters_stay_in_their_region(server: Served) -> None:
    here, there = make_client(server.url), make_client(server.url, region="eu-west-1")
    target = new_queue(there)
    policy = json.dumps({"deadLetterTargetArn": arn(there, target), "maxReceiveCount": 1})
    with refused("InvalidAttributeValue"):
        new_queue(here, RedrivePolicy=policy)
    source = new_queue(there)
    # By a URL that says where.
    here.set_queue_attributes(QueueUrl=source, Attributes={"RedrivePolicy": policy})
    assert here.list_dead_letter_source_queues(QueueUrl=target)["queueUrls"] == [source]


def test_the_region_may_stand_in_every_url() -> None:
    with ServerThread(sqs_region_urls=True) as server:
        sqs = make_client(server.url)
        name = new_name()
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        assert url == f"{server.url}/queue/us-east-1/000000000000/{name}"
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert make_client(server.url, region="eu-west-1").receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"


def test_a_signature_is_for_one_region(locked_server: Served) -> None:
    secret = {"key": "AKIDEXAMPLE", "secret": "secret/with+signs"}
    here, there = (make_client(locked_server.url, **secret, region=region) for region in ("us-east-1", "eu-west-1"))
    url = new_queue(there)
    there.send_message(QueueUrl=url, MessageBody="x")
    with refused("QueueDoesNotExist"):
        here.receive_message(QueueUrl=url)


def test_tags(sqs: Client) -> None:
    name = new_name()
    url = sqs.create_queue(QueueName=name, tags={"team": "a", "Team": "b"})["QueueUrl"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a", "Team": "b"}
    sqs.tag_queue(QueueUrl=url, Tags={"team": "c", "empty": ""})
    sqs.untag_queue(QueueUrl=url, TagKeys=["Team", "unknown"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "c", "empty": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "empty"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
    with refused("InvalidParameterValue"):
        sqs.tag_queue(QueueUrl=url, Tags={str(number): "x" for number in range(51)})
    for bad in ({"k" * 129: "v"}, {"k": "v" * 257}, {"aws:k": "v"}):
        with refused("InvalidParameterValue"):
            sqs.tag_queue(QueueUrl=url, Tags=bad)


def test_permissions_are_statements_of_the_policy(sqs: Client, queue: str) -> None:
    sqs.add_permission(
        QueueUrl=queue, Label="one", AWSAccountIds=["111111111111"], Actions=["SendMessage", "ReceiveMessage"]
    )
    sqs.add_permission(QueueUrl=queue, Label="two", AWSAccountIds=["111111111111", "222222222222"], Actions=["*"])
    policy = json.loads(attributes(sqs, queue, "Policy")["Policy"])
    assert policy["Version"] == "2008-10-17"
    assert policy["Statement"] == [
        {
            "Sid": "one",
            "Effect": "Allow",
            "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
            "Action": ["SQS:SendMessage", "SQS:ReceiveMessage"],
            "Resource": arn(sqs, queue),
        },
        {
            "Sid": "two",
            "Effect": "Allow",
            "Principal": {"AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]},
            "Action": "SQS:*",
            "Resource": arn(sqs, queue),
        },
    ]
    with refused("InvalidParameterValue") as refusal:
        sqs.add_permission(QueueUrl=queue, Label="one", AWSAccountIds=["111111111111"], Actions=["*"])
    assert "Already exists." in refusal.message
    sqs.remove_permission(QueueUrl=queue, Label="one")
    with refused("InvalidParameterValue"):
        sqs.remove_permission(QueueUrl=queue, Label="one")
    sqs.remove_permission(QueueUrl=queue, Label="two")
    assert attributes(sqs, queue, "Policy") == {}


# -- how large a policy may be ----------------------------------------------------------------------------------------

SOMEBODY = "arn:aws:iam::111111111111:root"
QUOTAS: dict[str, tuple[list[dict[str, object]], dict[str, object], str]] = {
    "statements": ([{}] * 20, {}, "21 statements were found in the submitted policy, max allowed is 20"),
    "principals": (
        [{"Principal": {"AWS": [SOMEBODY] * 48, "Service": "sns.amazonaws.com"}}, {"Principal": "*"}],
        {"NotPrincipal": {"AWS": SOMEBODY}},
        "51 principals were found in the submitted policy, max allowed is 50",
    ),
    "conditions": (
        [{"Condition": {"ArnLike": {str(key): "a" for key in range(9)}, "Bool": {"b": ["true", "false"]}}}],
        {"Condition": {"IpAddress": {"aws:SourceIp": "::1"}}},
        "11 conditions were found in the submitted policy, max allowed is 10",
    ),
    "actions": (
        [{"Action": ["sqs:SendMessage"] * 7}, {"NotAction": "sqs:SendMessage"}],
        {"Action": ["sqs:SendMessage"] * 8},
        "8 actions were found in a statement from the submitted policy, max allowed is 7",
    ),
    "bytes": ([{"Sid": "a" * 8164}], {}, "Submitted policy is over max allowed size."),
}
"""Within a quota, one statement too much, and the answer to that."""


@pytest.mark.parametrize("quota", QUOTAS)
def test_a_policy_keeps_to_the_quotas(sqs: Client, queue: str, quota: str) -> None:
    statements, more, text = QUOTAS[quota]
    within, beyond = (json.dumps({"Statement": found}) for found in (statements, [*statements, more]))
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": within})
    with refused("OverLimit") as refusal:
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": beyond})
    assert (refusal.status, refusal.message) == (403, text)
    assert attributes(sqs, queue, "Policy") == {"Policy": within}
    new_queue(sqs, Policy=within)
    # The API documents no OverLimit for this action.
    with refused("InvalidAttributeValue") as refusal:
        new_queue(sqs, Policy=beyond)
    assert refusal.message == text


@pytest.mark.parametrize("quota", ["statements", "principals", "bytes"])
def test_permissions_keep_to_the_same_quotas(sqs: Client, queue: str, quota: str) -> None:
    within = json.dumps({"Statement": QUOTAS[quota][0]})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": within})
    with refused("OverLimit") as refusal:
        sqs.add_permission(QueueUrl=queue, Label="l", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
    assert (refusal.status, refusal.message) == (403, QUOTAS[quota][2])
    assert attributes(sqs, queue, "Policy") == {"Policy": within}


def test_a_permission_is_for_seven_actions_at_most(sqs: Client, queue: str) -> None:
    def add(count: int) -> None:
        actions = sorted(add_permission.GRANTABLE)[:count]
        sqs.add_permission(QueueUrl=queue, Label="l", AWSAccountIds=["111111111111"], Actions=actions)

    with refused("OverLimit") as refusal:
        add(8)
    assert refusal.message == "8 Actions were found, maximum allowed is 7."
    add(7)


@pytest.mark.parametrize("quota", QUOTAS)
def test_quotas_are_lifted_where_limits_are_relaxed(relaxed_server: Served, quota: str) -> None:
    statements, more, _ = QUOTAS[quota]
    sqs, policy = make_client(relaxed_server.url), json.dumps({"Statement": [*statements, more]})
    queue = new_queue(sqs, Policy=policy)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
    actions = sorted(add_permission.GRANTABLE)
    sqs.add_permission(QueueUrl=queue, Label="l", AWSAccountIds=["111111111111"], Actions=actions)
    assert json.loads(attributes(sqs, queue, "Policy")["Policy"])["Statement"][:-1] == [*statements, more]
