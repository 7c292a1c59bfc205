"""Exchanges: from a message's routing key and headers to the queues it goes to."""

from smista.core.errors import (
    BindingTargetNotFound,
    ExchangeCycle,
    ExchangeDiffers,
    ExchangeInternal,
    ExchangeInUse,
    ExchangeNotFound,
    ExchangeReserved,
    InvalidBinding,
    InvalidExchange,
    ReachTooWide,
)
from smista.core.exchanges.arguments import Arguments, freeze, thaw
from smista.core.exchanges.exchange import (
    Binding,
    Destination,
    DestinationKind,
    Exchange,
    ExchangeKind,
    ExchangeSettings,
    ExchangeTarget,
)
from smista.core.exchanges.matcher import WORK_MAX, Work
from smista.core.exchanges.router import QUEUES_MAX, Reach, Route, Step, explain, route
from smista.core.exchanges.topology import DEFAULT_EXCHANGE, PREDECLARED, Removed, Topology

__all__ = [
    "DEFAULT_EXCHANGE",
    "PREDECLARED",
    "QUEUES_MAX",
    "WORK_MAX",
    "Arguments",
    "Binding",
    "BindingTargetNotFound",
    "Destination",
    "DestinationKind",
    "Exchange",
    "ExchangeCycle",
    "ExchangeDiffers",
    "ExchangeInUse",
    "ExchangeInternal",
    "ExchangeKind",
    "ExchangeNotFound",
    "ExchangeReserved",
    "ExchangeSettings",
    "ExchangeTarget",
    "InvalidBinding",
    "InvalidExchange",
    "Reach",
    "ReachTooWide",
    "Removed",
    "Route",
    "Step",
    "Topology",
    "Work",
    "explain",
    "freeze",
    "route",
    "thaw",
]
