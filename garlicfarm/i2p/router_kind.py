"""Which program a router is, by what it says over I2CP.

The routers differ in what they take from a client, and neither says its name: SetDate has the version of I2P
only. The answer to GetBandwidthLimits tells them apart, before there is a session. Java I2P 0.9.62 and later
fill seven fields, the seventh with 1, their burst time; i2pd fills two at most. A Java I2P before that shows
itself when it refuses something: it says why, in a Disconnect, which i2pd never sends.

Source: I2CP specification, "BandwidthLimits", "Disconnect"; the answers of Java I2P 2.7.0 and of i2pd 2.45.1,
2.56.0 and 2.59.0.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from garlicfarm.i2p.i2cp import BandwidthLimits

RouterKind: TypeAlias = Literal["i2pd", "java"]


class KindMemory:
    """What the connections to one address have shown of the router there, which may be replaced at any time.

    ``configured``: as the operator says, which nothing contradicts; None: to be found out.
    """

    def __init__(self, configured: RouterKind | None = None) -> None:
        self._configured = configured
        self._disconnected: str | None = None  # the version of the Java I2P that said it last

    def kind(self, limits: BandwidthLimits | None, version: str) -> RouterKind:
        """The router behind a new connection. ``limits``: its answer, None where it gave none. ``version``:
        as its SetDate says. One that nothing is known of is taken for an i2pd."""
        if self._configured is not None:
            return self._configured
        has_burst = limits is not None and limits.burst_s > 0
        return "java" if has_burst or version == self._disconnected else "i2pd"

    def on_disconnect(self, version: str) -> None:
        """A router of this ``version`` has sent a Disconnect."""
        self._disconnected = version
