"""Rates over the stream: batches of messages published, subscriptions acknowledged. There is no peer that speaks it."""

from __future__ import annotations

from bench import peers, rows


def main() -> None:
    rows.measure(peers.over_stream(), rows.shaped(rows.common))
