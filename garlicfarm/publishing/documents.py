"""The status documents that members post: types and spellings only.

Keys, units and limits are D9 of docs/reference/protocol.md, "The application". ``None`` means "not reported"
and is left out of the JSON (D13: a value is never invented). Times are ms,
bandwidths bytes/s, everything else a count. All integers are 0 … 2**63−1. Unknown keys of a document are
ignored here; the entry's bytes keep them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MIN_INTERVAL_MS = 1_000
MAX_INTERVAL_MS = 3_600_000
"""bounds of the interval at which statuses are posted"""

U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
FAILED = -1
"""instead of the ms of a connect test that failed"""
MemberId = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
IntervalMs = Annotated[int, msgspec.Meta(ge=MIN_INTERVAL_MS, le=MAX_INTERVAL_MS)]
Staleness = Annotated[int, msgspec.Meta(ge=3, le=1_000)]
MAX_TRANSIENTS = 16
MAX_LEASES = 16
"""of a LeaseSet"""
MAX_LEASE_SET_BYTES = 1024
PublishConfig = Literal["off", "on", "auto"]


class _Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class Bandwidth(_Document, frozen=True):
    """Bytes per second, each way."""

    in_: U63 = msgspec.field(name="in")
    out: U63


class Tunnels(_Document, frozen=True):
    """Tunnel counts, each way. Since level 3 one of them may be absent."""

    in_: U63 | None = msgspec.field(name="in", default=None)
    out: U63 | None = None


class BothWays(_Document, frozen=True):
    """`Tunnels` below level 3."""

    in_: U63 = msgspec.field(name="in")
    out: U63


class RouterStatus(_Document, frozen=True):
    """The key ``router``: the local I2P router's own figures."""

    last_published_ri: str | None = msgspec.field(name="lastPublishedRI", default=None)
    uptime: U63 | None = None
    job_lag: U63 | None = None
    exploratory_tunnels: U63 | None = None
    participating_tunnels: U63 | None = None
    configured_bandwidth: Bandwidth | None = None
    current_bandwidth: Bandwidth | None = None


class StreamFigures(_Document, frozen=True):
    """The streams of a leaf. ``round_trip_ms``: the middle one of those that are open. Since the server's
    process began to serve the leaf: ``sent_packets``; ``resent_packets``, those of them that were sent again,
    since they were lost or late; ``refused``, packets and streams that were refused or dropped."""

    round_trip_ms: U63 | None = None
    sent_packets: U63 | None = None
    resent_packets: U63 | None = None
    refused: U63 | None = None


class DestinationStatus(_Document, frozen=True):
    """One element of ``destinations``: a leaf destination that this router serves (I2P base64).
    ``lease_ends`` and ``streams`` are there since level 3 (`LATER_KEYS`)."""

    destination: str
    uptime: U63 | None = None
    configured_tunnels: Tunnels | None = None
    current_tunnels: Tunnels | None = None
    configured_bandwidth: Bandwidth | None = None
    current_bandwidth: Bandwidth | None = None
    configured_connections: U63 | None = None
    current_connections: U63 | None = None
    lease_set_expires: U63 | None = None
    blacklist: tuple[str, ...] | None = None
    lease_ends: Annotated[tuple[U63, ...], msgspec.Meta(max_length=MAX_LEASES)] | None = None
    """when each of its inbound tunnels ends, ms since 1970"""
    streams: StreamFigures | None = None


LATER_KEYS = {
    "destinations": ("leaseEnds", "streams"),
    "remoteDestinations": ("date",),
    "remoteMeta": ("date",),
}
"""what objects under these keys have since level 3; unknown keys below it"""


class ConnectTest(_Document, frozen=True):
    """How long connecting to a remote party took, and whether it succeeded."""

    ms: U63
    ok: bool


class Floodfills(_Document, frozen=True):
    """How many of the queried floodfills had the entry, by routing key of the day."""

    yesterday: U63 | None = None
    today: U63 | None = None
    tomorrow: U63 | None = None


class RemoteRouter(_Document, frozen=True):
    """One element of ``remoteRouters``: this server's measurements of another router. ``hash`` is I2P base64
    of the SHA-256, if known. ``member`` is the Raft id if it is a member's router; then ``connect_test`` is
    the last handshake with that member's node, where the status has no ``config.node.tests``."""

    hash: str | None = None
    member: MemberId | None = None
    last_seen_version: str | None = None
    fetch_time_ms: U63 | None = None
    connect_test: ConnectTest | None = None
    floodfills: Floodfills | None = None


class RemoteStatus(_Document, frozen=True):
    """One element of ``remoteDestinations``, or ``remoteMeta``: this server's measurements of others.
    ``hash`` is I2P base64 of the SHA-256. ``date``: when it was measured, ms since 1970 by this server's
    clock; since level 3 (`LATER_KEYS`)."""

    hash: str
    last_seen_version: str | None = None
    fetch_time_ms: U63 | None = None
    connect_test: ConnectTest | None = None
    floodfills: Floodfills | None = None
    date: U63 | None = None


class MetaStatus(_Document, frozen=True):
    """The key ``meta``. ``publishing`` is absent if this server cannot publish, which
    may make it ineligible ("The common algorithm", point 3)."""

    destination: str | None = None
    last_published_ls: str | None = msgspec.field(name="lastPublishedLS", default=None)
    last_published_time: U63 | None = None
    publish_config: PublishConfig | None = None
    publishing: bool | None = None


class MemberTest(msgspec.Struct, frozen=True, array_like=True):
    """One element of ``config.node.tests``, ``[member, ms]``: the last handshake of this server's node with
    that member's node took ``ms``, or failed (`FAILED`)."""

    member: MemberId
    ms: Annotated[int, msgspec.Meta(ge=FAILED, le=2**63 - 1)]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The key ``config.node`` (D15): a server's own state, and the interval (ms) and R with which the status
    was begun. ``tests`` (D20): its handshakes with the other members. ``transients`` (D21): of each bundle of
    keys, the first 8 bytes of the SHA-256 of its transient public key, 16 hexadecimal digits; ``keyExpires``:
    when the first of them expires, ms. ``leaseSet`` (D22): the LeaseSet of the service that this server
    publishes, I2P base64.
    Other keys as written here."""

    version: str | None = None
    term: U63 | None = None
    role: str | None = None
    commit: U63 | None = None
    applied: U63 | None = None
    interval_ms: IntervalMs | None = None
    R: Staleness | None = None
    admin_url: str | None = None
    tests: tuple[MemberTest, ...] | None = None
    transients: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_TRANSIENTS)] | None = None
    key_expires: U63 | None = msgspec.field(name="keyExpires", default=None)
    lease_set: str | None = msgspec.field(name="leaseSet", default=None)


class BootedReport(NodeReport, frozen=True):
    """A `NodeReport` since level 2. ``boot`` (D24): higher for each process of this server than for the one
    before."""

    boot: U63 | None = None


class OutsideReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The key ``config.node.outside`` (D25): what this server's tests of the published service have shown.
    ``publisher`` and ``since``: whose service, and the index from which that member was due to start.
    ``failed``: how many tests in a row it did not answer, 0: it answered the last one. ``control``: the hash
    (I2P base64) of another destination that this server has reached in the meantime; absent: it reached
    none."""

    publisher: MemberId
    since: U63
    failed: U63
    control: str | None = None


class SensingReport(BootedReport, frozen=True):
    """A `BootedReport` since level 3. ``outside`` (D25): absent where this server has tested nothing.
    ``control`` (D25): the hash (I2P base64) of a destination at which this server answers tests."""

    outside: OutsideReport | None = None
    control: str | None = None


class DigestReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The key ``config.node.digests`` (D26): `garlicfarm.digests.Digests` of this server, the digests in
    lower case."""

    index: U63
    state: str
    chain: str
    origin: MemberId | None = None


class ComparingReport(SensingReport, frozen=True):
    """A `SensingReport` since level 4. ``digests`` (D26): absent where this server has none to compare."""

    digests: DigestReport | None = None


class StatusDocument(_Document, frozen=True):
    """One status, as posted by member ``id``. ``sequence`` rises strictly per author (D17);
    ``config`` is free, its key ``node`` is a `NodeReport`."""

    cluster: str
    date: U63
    id: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    sequence: U63 | None = None
    config: dict[str, object] | None = None
    meta: MetaStatus | None = None
    router: RouterStatus | None = None
    destinations: tuple[DestinationStatus, ...] | None = None
    remote_routers: tuple[RemoteRouter, ...] | None = None
    remote_destinations: tuple[RemoteStatus, ...] | None = None
    remote_meta: RemoteStatus | None = None


def connect_tests(document: StatusDocument, node: NodeReport) -> list[tuple[int | None, bool]]:
    """The last connect tests of other members' nodes by the author of a status, whose ``config.node`` is
    ``node``: the member, and whether the test succeeded. Those of ``remoteRouters``, which count where
    ``config.node.tests`` is absent, may name a router that is no member's (None)."""
    if node.tests is not None:
        return [(test.member, test.ms != FAILED) for test in node.tests]
    routers = document.remote_routers or ()
    return [(one.member, one.connect_test.ok) for one in routers if one.connect_test is not None]
