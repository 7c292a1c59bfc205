"""The brokers that a benchmark drives by turns, one file for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bench.peers.beanstalkd import Beanstalkd, BeanstalkdSynced
from bench.peers.moto import Moto
from bench.peers.nats import Nats, NatsSynced
from bench.peers.peer import Peer
from bench.peers.postgresql import Postgresql
from bench.peers.rabbitmq import RabbitMq
from bench.peers.redis import Redis
from bench.peers.smista import SmistaAmqp, SmistaSqs, SmistaStream, with_before

EVERY: Sequence[type[Peer]] = (
    SmistaAmqp,
    RabbitMq,
    Nats,
    NatsSynced,
    Redis,
    Beanstalkd,
    BeanstalkdSynced,
    Postgresql,
    SmistaStream,
    SmistaSqs,
    Moto,
)


def over_amqp() -> list[type[Peer]]:
    return _available([*with_before(SmistaAmqp), RabbitMq])


def over_stream() -> list[type[Peer]]:
    return _available(with_before(SmistaStream))


def over_sqs() -> list[type[Peer]]:
    return _available([*with_before(SmistaSqs), Moto])


def every() -> list[type[Peer]]:
    return _available(EVERY)


def _available(peers: Sequence[type[Peer]]) -> list[type[Peer]]:
    """Those that are installed now, as far as `SMISTA_TEST_BENCH_PEERS`, names with ; between, asks for them."""
    chosen = {name.strip() for name in os.environ.get("SMISTA_TEST_BENCH_PEERS", "").split(";")} - {""}
    found = []
    for peer in peers:
        if chosen and peer.name not in chosen:
            continue
        if missing := peer.missing():
            print(f"without {peer.name}: {missing}", file=sys.stderr, flush=True)
        else:
            found.append(peer)
    return found
