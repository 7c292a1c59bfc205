"""Staged batches: rows that tasks put on disk, and that are published together or not at all. See `batches.py`."""
