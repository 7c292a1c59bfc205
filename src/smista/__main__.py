"""What `smista` and `python -m smista` do."""

from __future__ import annotations

import sys


def main() -> int:
    from smista.cli.app import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
