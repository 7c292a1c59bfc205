"""`smista` where the system allows few open files."""

from __future__ import annotations

import resource
import runpy

SOFT, HARD = 60, 120

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
    runpy.run_module("smista", run_name="__main__", alter_sys=True)
