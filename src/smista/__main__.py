"""What `smista` and `python -m smista` do."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from smista.cli.app import run

        return run()
    except KeyboardInterrupt:
        # Ctrl-C while the command is still being loaded; later it is handled there.
        return 130


if __name__ == "__main__":
    sys.exit(main())
