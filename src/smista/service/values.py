"""The values that the service takes and gives: what protocols may know of the broker. All of it is data."""

from __future__ import annotations

from smista.core.calendar import TICK_MS
from smista.core.checks import BATCH_ID_LENGTH_MAX, ID_LENGTH_MAX, RETRIES_MAX
from smista.core.counters import QueueStats
from smista.core.exchanges import PREDECLARED as PREDECLARED_EXCHANGES
from smista.core.exchanges import ExchangeKind, ExchangeSettings
from smista.core.exchanges.headers import X_MATCH_VALUES
from smista.core.message import PLAIN, Alike, Death, Failure, Message, Reason
from smista.core.rate import RateLimit
from smista.core.settings import SETTING_RANGES
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine import (
    FOREVER_MS,
    Backoff,
    DeadLetterMode,
    DeduplicationScope,
    Delivery,
    Envelope,
    Overflow,
    Publication,
    Published,
    QueueSettings,
    Receipt,
    State,
)
from smista.engine.claim_rows import ClaimedRows
from smista.engine.fair_turns import FairTurns
from smista.engine.ids import SHARDS_MAX, Ids
from smista.engine.measures import WAIT_MS, BrokerMeasures, Distribution, LogRange, QueueMeasures
from smista.engine.slices import SLICE_S
from smista.engine.tickets import Ticket, Unanswered
from smista.service.route import Route, Routed, RoutedQueue
from smista.service.subscription import SharedCredit, Subscription

__all__ = [
    "BATCH_ID_LENGTH_MAX",
    "DEFAULT_NAMESPACE",
    "FOREVER_MS",
    "ID_LENGTH_MAX",
    "PLAIN",
    "PREDECLARED_EXCHANGES",
    "RETRIES_MAX",
    "SETTING_RANGES",
    "SHARDS_MAX",
    "SLICE_S",
    "TICK_MS",
    "WAIT_MS",
    "X_MATCH_VALUES",
    "Alike",
    "Backoff",
    "BrokerMeasures",
    "ClaimedRows",
    "DeadLetterMode",
    "Death",
    "DeduplicationScope",
    "Delivery",
    "Distribution",
    "Envelope",
    "ExchangeKind",
    "ExchangeSettings",
    "Failure",
    "FairTurns",
    "Ids",
    "LogRange",
    "Message",
    "Overflow",
    "Publication",
    "Published",
    "QueueMeasures",
    "QueueSettings",
    "QueueStats",
    "RateLimit",
    "Reason",
    "Receipt",
    "Route",
    "Routed",
    "RoutedQueue",
    "SharedCredit",
    "State",
    "Subscription",
    "Ticket",
    "Unanswered",
]
