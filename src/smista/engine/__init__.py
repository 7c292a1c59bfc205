"""The broker on a running event loop: see `broker.py`."""

from smista.engine.broker import Broker
from smista.engine.consumers import Subscription
from smista.engine.delivery import Delivery, Published
from smista.engine.settings import BrokerSettings

__all__ = ["Broker", "BrokerSettings", "Delivery", "Published", "Subscription"]
