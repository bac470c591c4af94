"""`garlicfarm node start`, on a disk that hangs while there is a file ``hang`` beside the configuration."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from garlicfarm.cli import main
from garlicfarm.storage import appender

_write = appender._write


def _write_or_hang(*arguments: Any) -> None:
    while (Path(sys.argv[-1]).parent / "hang").exists():
        time.sleep(0.02)
    _write(*arguments)


vars(appender)["_write"] = _write_or_hang
sys.argv[1:1] = ["node", "start"]
main()
