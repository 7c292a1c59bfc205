"""A burst of orders, some of which fail. Spark archives the log, counts, groups the dead letters, redrives them, and
reconciles every message.

    smista serve &
    python examples/spark_story.py                           # or: ... http://127.0.0.1:9324 --orders 2000 --to ./story

Needs `pip install 'smista[spark]'`. Each step is also a command: `smista pipeline archive ./story/archive`, and so on.
Afterwards the folder has the archive, two reports for a browser (metrics/report.html and triage/report.html), and the
audit of the redrive.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smista import AsyncClient
from smista.spark import session
from smista.spark.pipelines.archive import archive
from smista.spark.pipelines.metrics import metrics
from smista.spark.pipelines.reconcile import reconcile
from smista.spark.pipelines.redrive import redrive
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary
from smista.spark.pipelines.triage import triage

QUEUE = "story-orders"


def order(number: int) -> dict[str, Any]:
    """One customer in twenty writes amounts with a comma."""
    amount = f"{number % 90},50" if number % 20 == 0 else f"{number % 90}.50"
    return {"order_id": number, "amount": amount}


def charge(order: dict[str, Any]) -> None:
    float(order["amount"])


def charge_with_commas(order: dict[str, Any]) -> None:
    float(order["amount"].replace(",", "."))


async def burst(client: AsyncClient, count: int) -> None:
    await client.declare_queue(QUEUE, max_retries=1, retry_base_ms=50)
    summary = await client.put_many(QUEUE, map(order, range(1, count + 1)))
    print(f"{summary.accepted} orders published")


async def work(client: AsyncClient, handle: Callable[[dict[str, Any]], None]) -> None:
    """Handle orders until none is left: each is acknowledged or dead-lettered."""
    async with client.subscribe(QUEUE, prefetch=200, consumer="till-1") as orders:
        while (delivery := await orders.next(timeout_ms=1_000)) is not None:
            try:
                async with delivery:  # acknowledges; on an exception nacks with its text
                    handle(delivery.json())
            except ValueError:
                continue


async def day(address: str, count: int) -> None:
    async with AsyncClient(address) as client:
        await burst(client, count)
        await work(client, charge)
        print(f"{(await client.stats(f'{QUEUE}_dlq')).ready} orders could not be charged")


async def repair(address: str) -> None:
    async with AsyncClient(address) as client:
        await work(client, charge_with_commas)


def printed(summary: Summary) -> Summary:
    print()
    print(summary.text())
    return summary


def main(address: str, count: int, place: Path) -> bool:
    asyncio.run(day(address, count))
    spark = session("spark story", conf={"spark.sql.shuffle.partitions": "4"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        run = Run(endpoint=address, spark=spark)
        printed(archive(run, to=str(place / "archive"), queue=[f"{QUEUE}*"]))
        printed(metrics(run, to=str(place / "metrics"), archive=str(place / "archive")))
        printed(triage(run, to=str(place / "triage"), archive=str(place / "archive")))
        printed(redrive(run, triaged=str(place / "triage"), queue=[QUEUE]))
        asyncio.run(repair(address))
        printed(archive(run, to=str(place / "archive"), queue=[f"{QUEUE}*"]))
        return printed(reconcile(run, archive=str(place / "archive"))).is_good
    finally:
        spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A day of orders, archived, repaired and reconciled by Spark.")
    parser.add_argument("address", nargs="?", default=os.environ.get("SMISTA_URL", "http://127.0.0.1:9324"))
    parser.add_argument("--orders", type=int, default=2_000)
    parser.add_argument("--to", type=Path, help="where archive and reports go; a new folder")
    given = parser.parse_args()
    folder = given.to or Path(tempfile.mkdtemp(prefix="spark-story-"))
    print(f"Writing to {folder}")
    raise SystemExit(0 if main(given.address, given.orders, folder) else 1)
