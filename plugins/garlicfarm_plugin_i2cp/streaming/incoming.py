"""What is known of a stream beside its bytes, from its SYN until it is forgotten, and of its peer."""

from __future__ import annotations

from dataclasses import dataclass, field

from garlicfarm.i2p.signing import Verifier
from garlicfarm_plugin_i2cp.streaming.congestion import PeerWindow
from garlicfarm_plugin_i2cp.streaming.stream import Stream


@dataclass(slots=True, eq=False)
class Peer:
    """``streams``: by the peer's ids, tombstones too; ``window``: of the ``open`` ones together."""

    open: int = 0
    streams: dict[int, Incoming] = field(default_factory=dict)
    window: PeerWindow = field(default_factory=PeerWindow)


@dataclass(slots=True, eq=False)
class Incoming:
    """A stream until it is forgotten. ``is_known``: its peer was served before. ``places``: those that it has
    one of, until it has ended. ``is_served``: the application was told of it. ``signatures``: how many were
    verified. ``wake_s``: its timer. Of a tombstone: it is forgotten at ``until_s``; RESET answers as often as
    ``resets`` says, or the payload ``last_ack`` does, or nothing, again from ``answers_s`` on."""

    stream: Stream
    peer_hash: bytes
    verifiers: tuple[Verifier, Verifier]
    is_known: bool
    places: dict[Incoming, None]
    is_served: bool = False
    is_remembered: bool = False
    signatures: int = 0
    wake_s: float | None = None
    until_s: float = 0.0
    last_ack: bytes | None = None
    resets: int = 0
    answers_s: float = 0.0
