"""Smista beside its peers, the same work by turns: `make bench-peers`, or `python -m bench peers`."""
