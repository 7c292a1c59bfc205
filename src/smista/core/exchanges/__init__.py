"""Exchanges: from a message's routing key and headers to the queues it goes to."""

from smista.core.exchanges.arguments import Arguments as Arguments
from smista.core.exchanges.arguments import freeze as freeze
from smista.core.exchanges.arguments import thaw as thaw
from smista.core.exchanges.exchange import Binding as Binding
from smista.core.exchanges.exchange import Destination as Destination
from smista.core.exchanges.exchange import DestinationKind as DestinationKind
from smista.core.exchanges.exchange import Exchange as Exchange
from smista.core.exchanges.exchange import ExchangeKind as ExchangeKind
from smista.core.exchanges.exchange import ExchangeSettings as ExchangeSettings
from smista.core.exchanges.exchange import ExchangeTarget as ExchangeTarget
from smista.core.exchanges.matcher import WORK_MAX as WORK_MAX
from smista.core.exchanges.matcher import Work as Work
from smista.core.exchanges.router import QUEUES_MAX as QUEUES_MAX
from smista.core.exchanges.router import Reach as Reach
from smista.core.exchanges.router import Route as Route
from smista.core.exchanges.router import Step as Step
from smista.core.exchanges.router import explain as explain
from smista.core.exchanges.router import route as route
from smista.core.exchanges.topology import DEFAULT_EXCHANGE as DEFAULT_EXCHANGE
from smista.core.exchanges.topology import PREDECLARED as PREDECLARED
from smista.core.exchanges.topology import Removed as Removed
from smista.core.exchanges.topology import Topology as Topology
