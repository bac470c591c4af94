"""Where an error was raised."""

from __future__ import annotations

import traceback
from pathlib import PurePath

__all__ = ["place_of"]


def place_of(error: BaseException) -> str:
    """``file:line`` where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
