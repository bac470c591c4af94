"""One farm of a node: its replica, and the node's parts for that farm."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from garlicfarm.application import Application
from garlicfarm.config import Config, FarmSection
from garlicfarm.credentials.member_credentials import member_lookup, member_password, read_secret_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import ConfigError, Removed
from garlicfarm.extensions import EXTENSIONS
from garlicfarm.feed.pages import PageReader
from garlicfarm.http.digest import REALM, ChallengeCache, DigestVerifier
from garlicfarm.http.upgrade import FarmCredentials
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.net.handshake import DialCredentials, wall_ms
from garlicfarm.node.admin_view import FarmAdminView
from garlicfarm.node.backups import Backups
from garlicfarm.node.dialler import dial_member
from garlicfarm.node.epochs import Epochs
from garlicfarm.node.guarded_router import GuardedRouter
from garlicfarm.node.hosted_feed import HostedFeed, NodeFeedSource, check_retention, make_feeds
from garlicfarm.node.replica import Replica, ReplicaHost
from garlicfarm.node.retention import Retention
from garlicfarm.node.scrub import Scrub
from garlicfarm.node.transports import Transports
from garlicfarm.plugins import make_router
from garlicfarm.storage import (
    DataDirectory,
    LogReader,
    LogStore,
    Writer,
    forget_leave_order,
    has_leave_order,
    keep_leave_order,
)
from garlicfarm.transport import Endpoint


@dataclass(frozen=True, slots=True)
class NodeParts:
    """Parts that the farms of a node share. ``stack`` closes what they open; ``reader_limiter``: one of them
    reads pages of its log at a time; ``backup_limiter``: one makes a backup; ``admin_url()``: see
    `ReplicaHost`."""

    config: Config
    directory: DataDirectory
    stack: ExitStack
    users: UserStore
    metrics: NodeMetrics
    transports: Transports
    reader_limiter: trio.CapacityLimiter
    backup_limiter: trio.CapacityLimiter
    log: EventLogger
    admin_url: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class HostedFarm:
    """``directory``: of its store. ``credentials``: how members and clients log in to this farm."""

    directory: Path
    replica: Replica
    view: FarmAdminView
    retention: Retention
    credentials: FarmCredentials
    router: GuardedRouter | None
    feeds: Sequence[HostedFeed]
    backups: Backups | None
    scrub: Scrub

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the farm's tasks until cancelled. `StorageError` and `Removed` end this farm."""
        async with trio.open_nursery() as nursery:
            if self.router is not None:
                nursery.start_soon(self.router.run)
                await self.router.is_tried.wait()
            await nursery.start(self.replica.run)
            nursery.start_soon(self.retention.run)
            nursery.start_soon(self.scrub.run)
            replica = self.replica
            nursery.start_soon(replica.space.run, self.directory, replica.log, replica.metrics.set_space)
            await nursery.start(self.view.rankings.run)
            for feed in self.feeds:
                nursery.start_soon(feed.run)
            if self.backups is not None:
                nursery.start_soon(self.backups.run)
            task_status.started()


def open_farm(
    section: FarmSection, make_application: Callable[[str], Application], parts: NodeParts
) -> HostedFarm:
    """Open the store of a farm, and make the parts that serve it.

    Raises `ConfigError`: a file that the farm's table names is not usable, or the store is of another
    application; `StorageError`: the store is missing, damaged or of another version; `Removed`: its leader
    told this member to leave.
    """
    config, node_id = parts.config, parts.config.node.id
    path = parts.directory.farm_directory(section.name)
    if has_leave_order(path):
        raise Removed(section.name, is_told=True)
    store = LogStore.open(path, farm=section.name, is_jraft=_is_jraft(section.name, parts))
    parts.stack.callback(store.close)
    genesis = store.genesis
    if genesis.application != section.application:
        raise ConfigError(
            [
                f"farm {section.name}: the store is of application {genesis.application!r}, "
                f"the configuration says {section.application!r}"
            ]
        )
    farm_secrets = read_secret_file(section.secret_file)
    log = EventLogger(logging.getLogger("garlicfarm.raft"), farm=section.name, node=node_id)
    application = make_application(section.name)
    application.check_configuration(section, config)
    made_feeds = make_feeds(section, config)
    check_retention(section, made_feeds, genesis.epoch_length)
    for problem in store.problems:
        log.warning("snapshot-unusable", cause=problem)
    if store.not_migrated:
        log.warning("log-not-migrated", cause=store.not_migrated)
    chain = None
    if store.restored is not None:
        application.restore(store.restored.state)
        chain = store.restored.chain
        store.restored = msgspec.structs.replace(store.restored, state=b"")  # it may be large
    writer: Writer

    def check_state(state: bytes) -> None:
        make_application(section.name).restore(state)

    def make_writer(*report: Any) -> Writer:
        nonlocal writer
        writer = Writer(store, *report, check_state=check_state)
        return writer

    router = None
    if section.router:
        table = {key: value for key, value in section.router.items() if key != "plugin"}
        plugin = section.router["plugin"]
        router = GuardedRouter(make_router(plugin, table, config.base_dir), plugin, log)
    dial_credentials = DialCredentials(
        section.name,
        str(node_id),
        member_password(farm_secrets[0], genesis.farm_id, node_id),
        ChallengeCache(section.algorithms),
        genesis.farm_id,
        EXTENSIONS,
        lambda: replica.programs.own(),
    )
    dial = partial(dial_member, parts.transports, section.default_transport, dial_credentials, parts.log)
    metrics = parts.metrics.farm(section.name)
    paths = config.base_dir, config.node.data_dir

    def note_leave_order(term: int | None) -> None:
        if term is None:
            forget_leave_order(path)
        else:
            keep_leave_order(path, term)

    host = ReplicaHost(node_id, *paths, dial, metrics, log, router, note_leave_order, parts.admin_url)
    replica = Replica(section, store, make_writer, application, host)
    replica.applier.digests.restore(chain, store.origin())
    if store.restored is not None:
        replica.membership.on_restored(store.restored.configuration, store.restored.all_members)
    pages = PageReader(LogReader(store), parts.reader_limiter)
    epochs = Epochs(replica.core, store, store.index)
    feeds = [
        HostedFeed(
            feed, table, NodeFeedSource(replica.core, store, pages, epochs), metrics, log, random.random
        )
        for feed, table in zip(made_feeds, section.feed, strict=True)
    ]
    backups = None
    if section.backup.directory is not None:
        backups = Backups(replica, section.backup.directory, parts.backup_limiter)
    kept = epochs if any(feed.has_epochs for feed in made_feeds) else None
    raw = replica.core.raw
    retention = Retention(replica, replica.applier, store, writer, pages, kept, lambda: raw.snapshot_wanted)
    every_s = config.node.scrub_every_s
    scrub = Scrub(node_id, config.node.data_dir, every_s, store, retention, metrics, log)
    view = FarmAdminView(replica, pages, path / "rankings", feeds, backups, scrub)
    lookup = member_lookup(farm_secrets, genesis.farm_id, parts.users.lookup)
    verifier = DigestVerifier(REALM, section.algorithms, secrets.token_bytes(32), lookup)
    credentials = FarmCredentials(
        section.name, genesis.farm_id, verifier, EXTENSIONS, view.leader, replica.programs.own, wall_ms
    )
    return HostedFarm(path, replica, view, retention, credentials, router, feeds, backups, scrub)


def _is_jraft(farm: str, parts: NodeParts) -> bool:
    """Whether a farm's peers are JRaft's, which use no handshake."""
    listeners = [each for each in parts.config.listener if farm in (each.farms or (farm,))]
    schemes = [Endpoint.parse(each.url).scheme for each in listeners]
    return any(not parts.transports.get(scheme).handshake for scheme in schemes)
