"""Run a command, and print at its end what it cost: CPU-seconds (user and system) of it and all its children.

    python -m tools.metered NAME COMMAND [ARGUMENT ...]

The last line is ``NAME: 271 CPU-seconds, 160 s``, and the exit code is the command's. A process counts once
its parent has waited for it, so what a killed parent leaves behind is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time


def main(name: str, *command: str) -> int:
    begun = time.monotonic()
    code = subprocess.call(command)
    spent = os.times()
    cpu_s = spent.children_user + spent.children_system
    print(f"{name}: {cpu_s:.0f} CPU-seconds, {time.monotonic() - begun:.0f} s", flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
