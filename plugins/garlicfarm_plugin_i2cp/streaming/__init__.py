"""I2P's streaming protocol, incoming streams only. Sans-I/O: bytes, times and randomness come in as
arguments."""

from __future__ import annotations

from garlicfarm_plugin_i2cp.streaming.limits import Limits
from garlicfarm_plugin_i2cp.streaming.stream import (
    Ended,
    EndReason,
    Established,
    Event,
    Keys,
    Opened,
    Readable,
    Stream,
    Writable,
)
from garlicfarm_plugin_i2cp.streaming.streams import Streams

__all__ = [
    "EndReason",
    "Ended",
    "Established",
    "Event",
    "Keys",
    "Limits",
    "Opened",
    "Readable",
    "Stream",
    "Streams",
    "Writable",
]
