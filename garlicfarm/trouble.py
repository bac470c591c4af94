"""One thing that operators should see to: what the status, its readers and notices have in common."""

from __future__ import annotations

from typing import Literal

import msgspec


class Trouble(msgspec.Struct, frozen=True):
    """One trouble: ``text`` says so in a sentence, whose figures change; ``about`` stays the same while it
    lasts. ``own``: only the member that is asked knows of it."""

    kind: Literal["publisher", "keys", "damage", "health", "disk"]
    about: str
    text: str
    own: bool = False
