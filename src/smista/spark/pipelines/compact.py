"""Fewer, larger files for the archive, and an end for what is older than it has to be kept.

Batches become one: their files are read, written again as few files per queue and hour, and listed in one manifest that
names the batches it replaces. That manifest is the swap; a reader sees the old ones or the new one. Retention takes
files whose whole hour is too old off their manifests. What no manifest lists any more, and what a killed run left
behind, is removed when it has not been listed for longer than `--grace`: by then nobody reads it.

    killed ...                      the next run ...
    before the manifest             removes the files that it does not list, in time, and compacts again
    after it                        removes what it replaces, in time
"""

from __future__ import annotations

import fnmatch
import shutil
from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from smista.command_line import duration, duration_ms
from smista.spark.errors import WrongOption
from smista.spark.pipelines.archive import write
from smista.spark.pipelines.command import main, pairs, pipeline
from smista.spark.pipelines.folder import alone_in
from smista.spark.pipelines.manifests import HOUR_MS, Archive, DataFile, Manifest, merged_columns, now_ms
from smista.spark.pipelines.rows import Source
from smista.spark.pipelines.run import Run
from smista.spark.pipelines.summary import Summary

KEEP_MS = 14 * 24 * HOUR_MS
GRACE_MS = HOUR_MS
FILE_BYTES = 128 << 20


@pipeline
def compact(
    run: Run,
    *,
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="The archive's folder.")],
    keep: Annotated[int, duration("--keep", help="Keep rows so long.", shown="14d")] = KEEP_MS,
    keep_queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUEUE=DURATION",
            help="Keep those of this queue, or of those like orders-*, so long; the longest counts. Repeatable.",
        ),
    ] = None,
    file_bytes: Annotated[
        int, typer.Option(metavar="BYTES", min=1, help="Files of half of that are large enough.")
    ] = FILE_BYTES,
    grace: Annotated[int, duration("--grace", help="Remove nothing that was listed since.", shown="1h")] = GRACE_MS,
) -> Summary:
    """Make few large files of many small ones, and forget what is too old."""
    by_queue = {name: _kept_ms(name, text) for name, text in pairs(keep_queue, "--keep-queue").items()}
    place = Archive(archive)
    place.must_exist()
    # Misspelled, it would be forgotten with all others.
    Source(archive, tuple(by_queue)).check_queues(run)

    def once() -> Summary:
        with alone_in(place.path / "compacting", "compacting"):
            forgotten = forget_old(place, keep, by_queue)
            merged = merge(run, place, file_bytes)
            removed = remove_unlisted(place, grace)
        left = place.manifests()
        return Summary(
            {
                "pipeline": "compact",
                "archive": str(place.path),
                "batches_merged": merged,
                "files_forgotten": forgotten,
                "folders_removed": removed,
                "batches": len(left),
                "files": sum(len(manifest.files) for manifest in left),
                "bytes": sum(manifest.bytes for manifest in left),
            }
        )

    return run.repeat(once)


def _kept_ms(queue: str, text: str) -> int:
    try:
        return duration_ms(text)
    except typer.BadParameter as error:
        raise WrongOption(f"--keep-queue {queue}: {error.message}") from None


# -- retention --------------------------------------------------------------------------------------------------------


def forget_old(place: Archive, keep_ms: int, by_queue: dict[str, int]) -> int:
    """Take files off the manifests whose last row is older than their queue's are kept; returns how many."""
    now = now_ms()
    forgotten = 0
    for manifest in place.manifests():
        young = [file for file in manifest.files if _ends_at_ms(file) > now - _kept_of(file.queue, keep_ms, by_queue)]
        if len(young) < len(manifest.files):
            forgotten += len(manifest.files) - len(young)
            # `rows` stays what was archived; which rows the files that are left have, only they know.
            place.add(msgspec.structs.replace(manifest, files=young, written_at_ms=now))
    return forgotten


def _kept_of(queue: str, keep_ms: int, by_queue: dict[str, int]) -> int:
    named = [kept_ms for pattern, kept_ms in by_queue.items() if fnmatch.fnmatchcase(queue, pattern)]
    return max(named, default=keep_ms)


def _ends_at_ms(file: DataFile) -> int:
    return file.hour_at_ms + HOUR_MS


# -- fewer files ------------------------------------------------------------------------------------------------------


def merge(run: Run, place: Archive, file_bytes: int) -> int:
    """Make one batch of those with small files; returns of how many."""
    small = mergeable(place.manifests(), file_bytes)
    if len(small) < 2:
        return 0
    run.on_progress(f"{len(small)} batches, {sum(len(manifest.files) for manifest in small):,} files")
    columns = merged_columns(small)
    files = [file for manifest in small for file in manifest.files]
    rows = place.frame(run.spark, files, columns)
    last = small[-1]
    batch = f"c{now_ms():013}-{len(small)}"
    # One task writes all of a queue's hour, in the log's order, so that there is one file of it.
    parts = ["queue", "date", "hour"]
    write(rows.repartition(*parts).sortWithinPartitions(*parts, "shard", "position", "index"), place, batch)
    place.add(
        Manifest(
            batch=batch,
            rows=sum(manifest.rows for manifest in small),
            reached=last.reached,
            columns=columns,
            files=place.files_of(batch),
            written_at_ms=now_ms(),
            replaces=[manifest.batch for manifest in small],
            newest=last.newest or last.batch,
        )
    )
    return len(small)


def mergeable(manifests: list[Manifest], file_bytes: int) -> list[Manifest]:
    """Batches that have a small file of which another batch has the same queue and hour; and those without files."""
    small = {
        manifest.batch: {_hour(file) for file in manifest.files if file.bytes < file_bytes / 2}
        for manifest in manifests
    }
    shared = Counter(hour for hours in small.values() for hour in hours)
    return [
        manifest
        for manifest in manifests
        if not manifest.files or any(shared[hour] > 1 for hour in small[manifest.batch])
    ]


def _hour(file: DataFile) -> tuple[str, int]:
    return file.queue, file.hour_at_ms


# -- what nobody reads ------------------------------------------------------------------------------------------------


def remove_unlisted(place: Archive, grace_ms: int) -> int:
    """Remove manifests that were replaced, and files that none lists, for longer than the grace; returns how many
    folders of batches went."""
    oldest_ms = now_ms() - grace_ms
    everything = place.all_manifests()
    replaced_at = {batch: manifest.written_at_ms for manifest in everything for batch in manifest.replaces}
    for batch, at_ms in replaced_at.items():
        if at_ms <= oldest_ms:
            place.forget(batch)
    listed = {manifest.batch: manifest for manifest in place.all_manifests()}
    removed = 0
    for path in sorted(place.data.glob("batch=*")):
        manifest = listed.get(path.name.removeprefix("batch="))
        if manifest is None:
            # A run may be writing it just now: what has no manifest counts from its last change.
            if _changed_at_ms(path) <= oldest_ms:
                shutil.rmtree(path)
                removed += 1
        elif manifest.written_at_ms <= oldest_ms:
            kept = {file.path for file in manifest.files}
            for file in path.rglob("*.parquet"):
                if file.relative_to(place.data).as_posix() not in kept:
                    file.unlink()
    return removed


def _changed_at_ms(path: Path) -> int:
    return round(max(each.stat().st_mtime for each in (path, *path.rglob("*"))) * 1000)


if __name__ == "__main__":
    main(compact)
