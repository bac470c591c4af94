"""Names that several rooms check: the one rule for each, and the hint where one is unknown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

FARM_NAME = r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,64}"
"""The pattern of a farm's name: part of a URL path and a directory's name, so neither ``.`` nor ``..``."""

FARM_NAME_RULE = "1 to 64 of A-Z a-z 0-9 . _ -, not . or .."
"""The same rule in the words of error messages."""


def is_farm_name(text: str) -> bool:
    """Whether a farm can have this name."""
    return re.fullmatch(FARM_NAME, text) is not None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the one of ``known`` that is like it, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
