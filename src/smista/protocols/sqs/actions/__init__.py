"""Every action of the API, one module each, by its name."""

from __future__ import annotations

from smista.protocols.sqs.actions.add_permission import AddPermission
from smista.protocols.sqs.actions.base import Action
from smista.protocols.sqs.actions.cancel_message_move_task import CancelMessageMoveTask
from smista.protocols.sqs.actions.change_message_visibility import ChangeMessageVisibility
from smista.protocols.sqs.actions.change_message_visibility_batch import ChangeMessageVisibilityBatch
from smista.protocols.sqs.actions.create_queue import CreateQueue
from smista.protocols.sqs.actions.delete_message import DeleteMessage
from smista.protocols.sqs.actions.delete_message_batch import DeleteMessageBatch
from smista.protocols.sqs.actions.delete_queue import DeleteQueue
from smista.protocols.sqs.actions.get_queue_attributes import GetQueueAttributes
from smista.protocols.sqs.actions.get_queue_url import GetQueueUrl
from smista.protocols.sqs.actions.list_dead_letter_source_queues import ListDeadLetterSourceQueues
from smista.protocols.sqs.actions.list_message_move_tasks import ListMessageMoveTasks
from smista.protocols.sqs.actions.list_queue_tags import ListQueueTags
from smista.protocols.sqs.actions.list_queues import ListQueues
from smista.protocols.sqs.actions.purge_queue import PurgeQueue
from smista.protocols.sqs.actions.receive_message import ReceiveMessage
from smista.protocols.sqs.actions.remove_permission import RemovePermission
from smista.protocols.sqs.actions.send_message import SendMessage
from smista.protocols.sqs.actions.send_message_batch import SendMessageBatch
from smista.protocols.sqs.actions.set_queue_attributes import SetQueueAttributes
from smista.protocols.sqs.actions.start_message_move_task import StartMessageMoveTask
from smista.protocols.sqs.actions.tag_queue import TagQueue
from smista.protocols.sqs.actions.untag_queue import UntagQueue

ACTIONS: dict[str, type[Action]] = {
    action.__name__: action
    for action in (
        AddPermission,
        CancelMessageMoveTask,
        ChangeMessageVisibility,
        ChangeMessageVisibilityBatch,
        CreateQueue,
        DeleteMessage,
        DeleteMessageBatch,
        DeleteQueue,
        GetQueueAttributes,
        GetQueueUrl,
        ListDeadLetterSourceQueues,
        ListMessageMoveTasks,
        ListQueueTags,
        ListQueues,
        PurgeQueue,
        ReceiveMessage,
        RemovePermission,
        SendMessage,
        SendMessageBatch,
        SetQueueAttributes,
        StartMessageMoveTask,
        TagQueue,
        UntagQueue,
    )
}
