"""The metrics at ``/metrics``, by the names that dashboards and alerts rely on.

Each node has its own registry, so that a program may run several nodes. A node has one `NodeMetrics` and
one `FarmMetrics` per farm, whose attributes are already bound to the label ``farm``:
``metrics.raft_leader_changes.inc()``. Metrics of listeners have no such label, because a listener does
not know the farm.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.registry import Collector

from garlicfarm._version import __version__
from garlicfarm.disk_space import DiskSpace

_ROLES = ("leader", "follower", "candidate")
_PEER_STATES = ("probe", "replicate", "snapshot", "unreachable")
_COMMIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_FSYNC_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class _Scrape(Collector):
    """Calls ``before`` at each scrape, and shows nothing itself."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Sequence[Metric]:
        self._before()
        return ()


class NodeMetrics:
    """All metrics of one process's node, in ``registry``."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._farms: list[FarmMetrics] = []
        self.registry.register(_Scrape(self._count_messages))  # before the metrics that it brings up to date
        ProcessCollector(registry=self.registry)
        build = self._gauge("build_info", "1, with the version as a label.", "version")
        build.labels(__version__).set(1)

        self.listener_connections = self._gauge(
            "listener_connections", "Open connections.", "transport", "state"
        )
        self.listener_rejected = self._counter(
            "listener_rejected_total", "Connections refused or closed.", "transport", "reason"
        )
        self.router_requests = self._counter(
            "router_requests_total", "Queries to the I2P router.", "farm", "plugin", "outcome"
        )
        self.auth_failures = self._counter(
            "auth_failures_total", "Wrong credentials; farm is always empty: it is unknown.", "farm"
        )
        self.raft_role = self._gauge("raft_role", "1 for the role this member has.", "farm", "role")
        self.raft_proposals = self._counter("raft_proposals_total", "Proposals.", "farm", "outcome")
        self.raft_messages = self._counter(
            "raft_messages_total", "Raft messages.", "farm", "type", "direction"
        )
        self.raft_refused = self._counter("raft_refused_total", "Messages refused.", "farm", "reason")
        self.peer_match_index = self._gauge("peer_match_index", "Last index known to match.", "farm", "peer")
        self.peer_state = self._gauge("peer_state", "1 for the state of the peer.", "farm", "peer", "state")
        self.peer_rtt_seconds = self._gauge("peer_rtt_seconds", "Last round trip.", "farm", "peer")
        self.peer_last_contact_seconds = self._gauge(
            "peer_last_contact_seconds", "Seconds since the peer's last response.", "farm", "peer"
        )
        self.farm_entries_skipped = self._counter(
            "farm_entries_skipped_total", "Committed entries that the application skipped.", "farm", "reason"
        )
        self.farm_score = self._gauge("farm_score", "Score of a member, 0 to 1,000,000.", "farm", "member")
        self.farm_ranking_equal = self._gauge(
            "farm_ranking_equal",
            "1 while the newest compared ranking of a query equals this node's, 0 while it differs.",
            *("farm", "query"),
        )

        # One value per farm; FarmMetrics holds the children.
        self.raft_term = self._gauge("raft_term", "Current term.", "farm")
        self.raft_leader_id = self._gauge("raft_leader_id", "Id of the leader, 0 for none.", "farm")
        self.raft_commit_index = self._gauge("raft_commit_index", "Last committed index.", "farm")
        self.raft_applied_index = self._gauge("raft_applied_index", "Last applied index.", "farm")
        self.raft_last_index = self._gauge("raft_last_index", "Last index of the log.", "farm")
        self.raft_first_index = self._gauge("raft_first_index", "First index of the log.", "farm")
        self.raft_leader_changes = self._counter("raft_leader_changes_total", "New leaders seen.", "farm")
        self.raft_commit_seconds = self._histogram(
            "raft_commit_seconds", "From proposal to commit, on the leader.", _COMMIT_S
        )
        self.storage_fsync_seconds = self._histogram(
            "storage_fsync_seconds", "One write of the log, including its fsync.", _FSYNC_S
        )
        self.storage_batch_entries = self._histogram(
            "storage_batch_entries", "Entries per write of the log.", _BATCH
        )
        self.storage_bytes = self._gauge("storage_bytes", "Size of the store's files.", "farm")
        self.storage_hangs_seconds = self._gauge(
            "storage_hangs_seconds", "Seconds since the disk stopped responding, 0 while it responds.", "farm"
        )
        self.storage_free_bytes = self._gauge(
            "storage_free_bytes", "What is free on the file system of the store.", "farm"
        )
        self.storage_used_ratio = self._gauge(
            "storage_used_ratio", "How much of that file system is taken, 0 to 1.", "farm"
        )
        self.storage_damage = self._counter(
            "storage_damage_total", "Files that were found damaged while the node ran.", "farm", "what"
        )
        self.storage_scrub_timestamp = self._gauge(
            "storage_scrub_timestamp_seconds",
            "When this node had read all its files again, in seconds since 1970; 0: not yet.",
            "farm",
        )
        self.storage_snapshots = self._counter(
            "storage_snapshots_total", "Snapshots of the state, ok and failed.", "farm", "outcome"
        )
        self.backup_timestamp = self._gauge(
            "backup_timestamp_seconds",
            "When this node made its newest backup, in seconds since 1970; 0: none.",
            "farm",
        )
        self.farm_publisher_id = self._gauge("farm_publisher_id", "Id of the publisher, 0 for none.", "farm")
        self.farm_publisher_changes = self._counter(
            "farm_publisher_changes_total", "New publishers named.", "farm"
        )
        self.farm_publishing = self._gauge(
            "farm_publishing", "1 while this node publishes with a publisher plugin.", "farm", "plugin"
        )
        self.publisher_streams = self._gauge(
            "publisher_streams", "Open streams of a publisher's clients.", "farm", "publisher"
        )
        self.publisher_streams_max = self._gauge(
            "publisher_streams_max", "How many streams may be open at once.", "farm", "publisher"
        )
        self.publisher_refused = self._counter(
            "publisher_refused_total",
            "Packets and streams that a publisher refused or dropped.",
            *("farm", "publisher", "cause"),
        )
        self.publisher_target_up = self._gauge(
            "publisher_target_up",
            "1 while the service there answers, as far as it is tested.",
            *("farm", "publisher", "target"),
        )
        self.farm_key_expiry = self._gauge(
            "farm_key_expiry_timestamp_seconds",
            "When the offline keys of a member expire, in seconds since 1970.",
            *("farm", "member"),
        )
        self.clock_offset_seconds = self._gauge(
            "clock_offset_seconds",
            "By how much this node's wall clock is certainly ahead; negative: behind.",
            *("farm", "source"),
        )
        self.farm_problems = self._gauge(
            "farm_problems", "How many problems `garlicfarm status` has to tell of the farm.", "farm"
        )
        self.farm_contradicted = self._gauge(
            "farm_contradicted_members",
            "How many members hold something else than most others, or disagree without a majority.",
            *("farm", "what"),
        )
        self.farm_clients = self._gauge(
            "farm_clients", "How many clients are banned, or on the access list.", "farm", "list"
        )
        self.notices = self._counter(
            "notices_total", "Notices for a receiver: sent, failed, dropped.", "receiver", "outcome"
        )
        self.feed_readers = self._gauge("feed_readers", "Requests that read or wait for entries now.", "farm")
        self.feed_entries = self._counter("feed_entries_total", "Entries sent to readers.", "farm")
        self.feed_lag_entries = self._gauge(
            "feed_lag_entries", "Committed entries that a feed has yet to pass on.", "farm", "reader"
        )
        self.feed_failures = self._counter("feed_failures_total", "Ends of a feed.", "farm", "reader")

    def forget_members(self) -> None:
        """Drop all values of single members and queries, before the current ones are set: values of a removed
        one, or those that only a leader knows, would never change."""
        for gauge in (
            self.peer_match_index,
            self.peer_state,
            self.peer_rtt_seconds,
            self.peer_last_contact_seconds,
            self.farm_score,
            self.farm_key_expiry,
            self.farm_ranking_equal,
        ):
            gauge.clear()

    def farm(self, name: str) -> FarmMetrics:
        """The metrics of the farm ``name``, all present from the start, with value 0."""
        farm = FarmMetrics(self, name)
        self._farms.append(farm)
        return farm

    def _count_messages(self) -> None:
        for farm in self._farms:
            farm.count_messages()

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"garlicfarm_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"garlicfarm_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"garlicfarm_{name}", text, ("farm",), registry=self.registry, buckets=buckets)


class FarmMetrics:
    """The metrics of one farm: simple ones as attributes, those with more labels as methods.

    ``received`` and ``sent``: Raft messages by type since the last scrape. They are plain numbers, because
    each metric has a lock, and a message is a matter of microseconds.
    """

    def __init__(self, node: NodeMetrics, farm: str) -> None:
        self._node = node
        self._farm = farm
        self.raft_term = node.raft_term.labels(farm)
        self.raft_leader_id = node.raft_leader_id.labels(farm)
        self.raft_commit_index = node.raft_commit_index.labels(farm)
        self.raft_applied_index = node.raft_applied_index.labels(farm)
        self.raft_last_index = node.raft_last_index.labels(farm)
        self.raft_first_index = node.raft_first_index.labels(farm)
        self.raft_leader_changes = node.raft_leader_changes.labels(farm)
        self.raft_commit_seconds = node.raft_commit_seconds.labels(farm)
        self.storage_fsync_seconds = node.storage_fsync_seconds.labels(farm)
        self.storage_batch_entries = node.storage_batch_entries.labels(farm)
        self.storage_bytes = node.storage_bytes.labels(farm)
        self.storage_hangs_seconds = node.storage_hangs_seconds.labels(farm)
        self._damage = {
            what: node.storage_damage.labels(farm, what) for what in ("segment", "snapshot", "key")
        }
        self.storage_scrub_timestamp = node.storage_scrub_timestamp.labels(farm)
        self._snapshots = {name: node.storage_snapshots.labels(farm, name) for name in ("ok", "failed")}
        self.farm_publisher_id = node.farm_publisher_id.labels(farm)
        self.farm_publisher_changes = node.farm_publisher_changes.labels(farm)
        self.backup_timestamp = node.backup_timestamp.labels(farm)
        self.farm_problems = node.farm_problems.labels(farm)
        self.feed_readers = node.feed_readers.labels(farm)
        self.feed_entries = node.feed_entries.labels(farm)
        self._roles = {role: node.raft_role.labels(farm, role) for role in _ROLES}
        self._publisher_refused: Tally[tuple[str, str]] = Tally()
        self.received: Tally[Enum] = Tally()
        self.sent: Tally[Enum] = Tally()

    @property
    def registry(self) -> CollectorRegistry:
        """The node's, for collectors of an application's own; all farms of the node share it."""
        return self._node.registry

    def set_space(self, space: DiskSpace) -> None:
        """What is free on the file system of the store."""
        self._node.storage_free_bytes.labels(self._farm).set(space.free)
        self._node.storage_used_ratio.labels(self._farm).set(space.used)

    def count_damage(self, what: str) -> None:
        """A file was found damaged: a ``segment``, a ``snapshot`` or a ``key``."""
        self._damage[what].inc()

    def set_role(self, role: str) -> None:
        """This member is now ``leader``, ``follower`` or ``candidate``; "" if its farm has failed."""
        for name, gauge in self._roles.items():
            gauge.set(name == role)

    def count_messages(self) -> None:
        """Bring `received` and `sent` to the registry."""
        for tally, direction in ((self.received, "in"), (self.sent, "out")):
            for message_type, number in tally.items():
                self._node.raft_messages.labels(self._farm, message_type.name, direction).inc(number)
            tally.clear()

    def count_proposals(self, outcome: str, number: int = 1) -> None:
        """Proposals that ended: ``committed``, ``dropped``, ``refused`` or ``unknown``."""
        self._node.raft_proposals.labels(self._farm, outcome).inc(number)

    def count_refused(self, reason: str) -> None:
        """A message was refused; ``reason`` is a fixed word."""
        self._node.raft_refused.labels(self._farm, reason).inc()

    def count_skipped(self, reason: str, number: int = 1) -> None:
        """Committed entries were skipped; ``reason`` is one of the validity rule's phrases."""
        self._node.farm_entries_skipped.labels(self._farm, reason).inc(number)

    def count_snapshot(self, outcome: str) -> None:
        """A snapshot was written: ``ok``, or ``failed``."""
        self._snapshots[outcome].inc()

    def count_router_request(self, plugin: str, outcome: str) -> None:
        """One query to the router: ``ok``, ``error`` or ``not-supported``."""
        self._node.router_requests.labels(self._farm, plugin, outcome).inc()

    def set_peer(
        self,
        peer: int,
        *,
        state: str,
        match_index: int | None,
        rtt_s: float | None,
        last_contact_s: float | None,
    ) -> None:
        """The state of a peer: probe, replicate, snapshot or unreachable, or "" if only the leader knows."""
        label = str(peer)
        for name in _PEER_STATES:
            self._node.peer_state.labels(self._farm, label, name).set(name == state)
        for gauge, value in (
            (self._node.peer_match_index, match_index),
            (self._node.peer_rtt_seconds, rtt_s),
            (self._node.peer_last_contact_seconds, last_contact_s),
        ):
            if value is not None:
                gauge.labels(self._farm, label).set(value)
            else:  # rather no figure than one of some time ago
                gauge.remove(self._farm, label)

    def set_publishing(self, plugin: str, is_publishing: bool) -> None:
        """Whether this node publishes with that plugin."""
        self._node.farm_publishing.labels(self._farm, plugin).set(is_publishing)

    def set_streams(self, publisher: str, open_: int | None, most: int | None) -> None:
        """How many streams of a publisher are open, and how many may be at once."""
        self._node.publisher_streams.labels(self._farm, publisher).set(open_ or 0)
        self._node.publisher_streams_max.labels(self._farm, publisher).set(most or 0)

    def count_publisher_refused(self, publisher: str, refused: Mapping[str, int]) -> None:
        """What a publisher refused or dropped, by cause, since it was made."""
        for cause, count in refused.items():
            counted = self._publisher_refused[publisher, cause]
            new = count - counted if count >= counted else count  # it was made anew
            self._node.publisher_refused.labels(self._farm, publisher, cause).inc(new)
            self._publisher_refused[publisher, cause] = count

    def set_target_up(self, publisher: str, target: str, is_up: bool) -> None:
        """Whether the service at a target answers."""
        self._node.publisher_target_up.labels(self._farm, publisher, target).set(is_up)

    def set_ranking_equal(self, query: str, is_equal: bool) -> None:
        """Whether the newest compared ranking of a query equals this node's own."""
        self._node.farm_ranking_equal.labels(self._farm, query).set(is_equal)

    def set_feed_lag(self, reader: str, entries: int) -> None:
        """How many committed entries a feed has yet to pass on."""
        self._node.feed_lag_entries.labels(self._farm, reader).set(entries)

    def count_feed_failure(self, reader: str) -> None:
        """A feed has ended, and is started again later."""
        self._node.feed_failures.labels(self._farm, reader).inc()

    def set_key_expiry(self, member: int, expires_ms: int) -> None:
        """When the offline keys of a member expire, ms since 1970."""
        self._node.farm_key_expiry.labels(self._farm, str(member)).set(expires_ms / 1000)

    def set_clock_offset(self, source: str, ahead_ms: int) -> None:
        """By how much this node's wall clock is certainly ahead of that of ``source``: ``farm`` or
        ``router``."""
        self._node.clock_offset_seconds.labels(self._farm, source).set(ahead_ms / 1000)

    def set_clients(self, name: str, count: int) -> None:
        """How many clients are on a list: ``banned`` or ``allowed``."""
        self._node.farm_clients.labels(self._farm, name).set(count)

    def set_contradicted(self, of_members: Iterable[str], disagreeing: Collection[Collection[int]]) -> None:
        """``of_members``: what most others contradict of each member, ``state``, ``chain`` or "";
        ``disagreeing``: the groups of members of which none is a majority."""
        counts = Tally(of_members)
        counts["disagreeing"] = sum(map(len, disagreeing))
        for what in ("state", "chain", "disagreeing"):
            self._node.farm_contradicted.labels(self._farm, what).set(counts[what])

    def set_score(self, member: int, score: int) -> None:
        """The ranking's score of a member, 0 to 1,000,000."""
        self._node.farm_score.labels(self._farm, str(member)).set(score)
