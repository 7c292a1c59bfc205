"""Every command that stands as an example in docs/cli.md is run as it stands there, in a shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Smista, plain_environment
from tests.server_process import ServerProcess

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text()
NOTHING_THERE = 4


def examples() -> list[str]:
    lines = re.findall(r"^    (.*\bsmista .*?)(?:\s+# .*)?$", PAGE, re.MULTILINE)
    return [line.replace("tail -f", "cat") for line in lines if not line.startswith("smista serve")]


def test_every_example_of_the_page_works_as_it_stands(offline: Smista, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text('{"dish": "pizza"}\n{"dish": "pasta"}\n')
    (tmp_path / "access.log").write_text("GET /\nGET /menu\n")
    (tmp_path / "scan.png").write_bytes(b"\x89PNG\r\n")
    # As in a shell where the environment is active.
    found_in = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with ServerProcess() as server:
        environment = {**plain_environment(), "PATH": found_in, "SMISTA_URL": server.url}
        for line in examples():
            if " get " in line:
                offline("--url", server.url, "put", "orders", "something to take")
            done = subprocess.run(line, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == (NOTHING_THERE if " dlq list " in line else 0), (line, done.stderr)
    assert len(examples()) >= 14
    assert (tmp_path / "order.bin").read_text() == "something to take\n"
