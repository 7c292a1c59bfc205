"""The Python client: `Client`, `AsyncClient`, `Worker`, over one WebSocket; see docs/client.md and docs/worker.md."""

from smista.client.answers import (
    Binding,
    BrokerInfo,
    ConnectionRoom,
    Exchange,
    ExplainedSettings,
    LogSpace,
    Policy,
    Published,
    PutSummary,
    Redrive,
    Route,
    Routed,
    RouteStep,
)
from smista.client.async_client import AsyncClient
from smista.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    InternalError,
    ServerError,
    WorkerNotFound,
)
from smista.client.message import Death, Delivery, Failure, Message, SyncDelivery
from smista.client.pages import Pages
from smista.client.publication import Publication
from smista.client.subscription import Subscription
from smista.client.sync_client import Client
from smista.client.sync_subscription import SyncPages, SyncSubscription
from smista.client.worker import Reject, Retry, Worker
from smista.core.counters import QueueStats
from smista.core.settings import QueueSettings

__all__ = [
    "AsyncClient",
    "Binding",
    "BrokerInfo",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectionFailed",
    "ConnectionLost",
    "ConnectionRoom",
    "Death",
    "Delivery",
    "Exchange",
    "ExplainedSettings",
    "Failure",
    "InternalError",
    "LogSpace",
    "Message",
    "Pages",
    "Policy",
    "Publication",
    "Published",
    "PutSummary",
    "QueueSettings",
    "QueueStats",
    "Redrive",
    "Reject",
    "Retry",
    "Route",
    "RouteStep",
    "Routed",
    "ServerError",
    "Subscription",
    "SyncDelivery",
    "SyncPages",
    "SyncSubscription",
    "Worker",
    "WorkerNotFound",
]
