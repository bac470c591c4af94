"""`garlicfarm node start`, on a disk that hangs while there is a file ``hang`` beside the configuration."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from garlicfarm.cli import main

_write = os.pwrite


def _write_or_hang(*arguments: Any) -> int:
    while (Path(sys.argv[-1]).parent / "hang").exists():
        time.sleep(0.02)
    return _write(*arguments)


setattr(os, "pwrite", _write_or_hang)  # noqa: B010
sys.argv[1:1] = ["node", "start"]
main()
