"""The broker on a running event loop: see `broker.py`. What its callers need is named here."""

from smista.core.browsing import Filter, Page
from smista.core.counters import QueueStats
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings, Route
from smista.core.message import FOREVER_MS, Envelope, Publication, Reason, Receipt, State
from smista.core.settings import (
    Backoff,
    DeadLetterMode,
    DeduplicationScope,
    IfExists,
    Overflow,
    PriorityPolicy,
    QueueSettings,
)
from smista.engine.broker import Broker
from smista.engine.consumers import CreditPool, Subscription
from smista.engine.delivery import Delivery, Published
from smista.engine.leaving import ACKNOWLEDGED_AT_ONCE, SETTLED_AT_ONCE, Settle, in_slices
from smista.engine.measures import KeptFor, LogSpace
from smista.engine.publishing import FAN_OUT_AT_ONCE
from smista.engine.settings import BrokerSettings

__all__ = [
    "ACKNOWLEDGED_AT_ONCE",
    "FAN_OUT_AT_ONCE",
    "FOREVER_MS",
    "SETTLED_AT_ONCE",
    "Backoff",
    "Binding",
    "Broker",
    "BrokerSettings",
    "CreditPool",
    "DeadLetterMode",
    "DeduplicationScope",
    "Delivery",
    "Envelope",
    "ExchangeKind",
    "ExchangeSettings",
    "Filter",
    "IfExists",
    "KeptFor",
    "LogSpace",
    "Overflow",
    "Page",
    "PriorityPolicy",
    "Publication",
    "Published",
    "QueueSettings",
    "QueueStats",
    "Reason",
    "Receipt",
    "Route",
    "Settle",
    "State",
    "Subscription",
    "in_slices",
]
