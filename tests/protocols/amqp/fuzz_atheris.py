"""atheris on the codec, led by the lines of it that are reached:

python -m tests.protocols.amqp.fuzz_atheris -max_total_time=600 corpus/
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def main() -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["smista.protocols"]):
        codec = importlib.import_module("tests.protocols.amqp.fuzz_codec")
    atheris.Setup(sys.argv, codec.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
