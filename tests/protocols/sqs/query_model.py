"""boto3's own model of SQS, turned back into the Query protocol, which every AWS SDK spoke until 2023.

The model says which names lists and maps have in a form; today's model has dropped them, so they are put in here. The
rest of boto3 (serializer, signer, parser, error handling) is what it is.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

_LISTS = {
    "AttributeNameList": "AttributeName",
    "MessageSystemAttributeList": "AttributeName",
    "MessageAttributeNameList": "MessageAttributeName",
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "TagKeyList": "TagKey",
    "QueueUrlList": "QueueUrl",
    "MessageList": "Message",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    **{
        f"{action}BatchRe{half}EntryList": f"{action}BatchRe{half}Entry"
        for action in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")
        for half in ("quest", "sult")
    },
}
_MAPS = {
    "QueueAttributeMap": ("Attribute", "Name", "Value"),
    "MessageSystemAttributeMap": ("Attribute", "Name", "Value"),
    "MessageBodyAttributeMap": ("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name", "Value"),
    "TagMap": ("Tag", "Key", "Value"),
}


def write(model: dict[str, Any], directory: Path) -> None:
    """Put the model where a loader of botocore that searches `directory` finds it."""
    model = json.loads(json.dumps(copy.deepcopy(model)))
    metadata = model["metadata"]
    for name in ("jsonVersion", "targetPrefix", "awsQueryCompatible"):
        metadata.pop(name, None)
    metadata.update(protocol="query", protocols=["query"], xmlNamespace="http://queue.amazonaws.com/doc/2012-11-05/")
    for name, operation in model["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    shapes = model["shapes"]
    for shape, element in _LISTS.items():
        shapes[shape]["member"]["locationName"] = element
        shapes[shape]["flattened"] = True
    for shape, (_, key, value) in _MAPS.items():
        shapes[shape]["key"]["locationName"] = key
        shapes[shape]["value"]["locationName"] = value
        shapes[shape]["flattened"] = True
    for shape in shapes.values():
        for member in shape.get("members", {}).values():
            if member["shape"] in _MAPS:
                member["locationName"] = _MAPS[member["shape"]][0]
            elif member["shape"] in _LISTS:
                member["locationName"] = _LISTS[member["shape"]]
    place = directory / "sqs/2012-11-05"
    place.mkdir(parents=True, exist_ok=True)
    (place / "service-2.json").write_text(json.dumps(model))
