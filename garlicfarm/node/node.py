"""A node: its data directory, its farms, their listeners and the admin listener, as one tree of tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import trio

from garlicfarm import descriptors
from garlicfarm._version import __version__
from garlicfarm.admin.contract import FarmView
from garlicfarm.admin.server import serve as serve_admin
from garlicfarm.config import Config
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import ConfigError, Removed, StorageError, first_error
from garlicfarm.feed.pages import reader_limiter
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.node.applications import ApplicationFactory, check_applications, find_applications
from garlicfarm.node.draining import Draining
from garlicfarm.node.hosted_farm import HostedFarm, NodeParts, open_farm
from garlicfarm.node.listeners import Listeners
from garlicfarm.node.transports import Transports
from garlicfarm.storage import DataDirectory, forget_leave_order
from garlicfarm.transport import Endpoint, network_of
from garlicfarm.wire.messages import Configuration

if TYPE_CHECKING:
    from garlicfarm.admin.http11 import AsgiApp
    from garlicfarm.node.notifier import Notifier

LETTING_GO = 0.75
"""The part of the time to stop in which others take over."""


async def serve(
    config: Config,
    *,
    applications: Mapping[str, ApplicationFactory] | None = None,
    shutdown: trio.Event | None = None,
    stays: bool = False,
    task_status: trio.TaskStatus[Node] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a node until ``shutdown`` is set, then end it in order. Reports the node once it listens; never if
    ``shutdown`` comes first.

    :param applications: name in the configuration → factory, given the farm's name. It makes a new object at
        each call: between JRaft peers `restore` is tried on another object first, in another thread. None:
        those of `find_applications`.
    :param stays: it stays a member of farms whose leader told it to leave in an earlier run.
    :raises ConfigError: the configuration, or a file that it names, is not usable; or it names an application
        that ``applications`` lacks.
    :raises StorageError: the store is missing, in use, damaged or of another version; or the last
        farm's store failed.
    :raises TransportError: a listener cannot be bound.
    :raises Removed: it was removed from its last farm, or was told to leave that in an earlier run.

    Cancelled: ends at once; acknowledged entries are durable all the same.
    """
    if applications is None:
        applications = find_applications()
    check_applications(config.farm, applications)
    limit, required = descriptors.limit(), descriptors.required(len(config.farm))
    if limit < required:
        raise ConfigError(
            [f"this process may open {limit} files, and the node needs {required}: {descriptors.RAISE}"]
        )
    if shutdown is None:
        shutdown = trio.Event()
    with ExitStack() as stack:
        stack.enter_context(descriptors.reserve())
        directory = stack.enter_context(DataDirectory.open(config.node.data_dir))
        if directory.node_id != config.node.id:
            owner = f"{config.node.data_dir} belongs to node {directory.node_id}"
            raise ConfigError([f"node.id is {config.node.id}, but {owner}"])
        for section in config.farm if stays else ():
            forget_leave_order(directory.farm_directory(section.name))
        node = Node(config, directory, applications, stack)
        await node.run(shutdown, task_status)


class Node:
    """One running node. Implements `garlicfarm.admin.contract.NodeView`."""

    def __init__(
        self,
        config: Config,
        directory: DataDirectory,
        applications: Mapping[str, ApplicationFactory],
        stack: ExitStack,
    ) -> None:
        self.config = config
        self.node_id = config.node.id
        self.version = __version__
        self.started_monotonic = trio.current_time()
        self.metrics = NodeMetrics()
        self.admin_url = ""
        self.addresses: list[Endpoint] = []
        self._is_over = trio.Event()  # it was removed from its last farm
        self._removed: Removed | None = None
        self._log = EventLogger(logging.getLogger("garlicfarm.node"), node=self.node_id)
        self.users = UserStore(config.node.data_dir / "users", self._log)
        self._configurations: list[Configuration] = []
        self._named: frozenset[str] = frozenset()
        self._transports = Transports(config, self.metrics, self._log, self._named_networks)
        self._farms: dict[str, HostedFarm] = {}
        self.draining = Draining(config.node.data_dir / "drained", self._farms, self._log)
        self._listeners = Listeners(self._transports, self._farms, self.users, self.metrics, self._log)
        parts = NodeParts(
            config=config,
            directory=directory,
            stack=stack,
            users=self.users,
            metrics=self.metrics,
            transports=self._transports,
            reader_limiter=reader_limiter(),
            backup_limiter=trio.CapacityLimiter(1),
            log=self._log,
            admin_url=self._reachable_admin_url,
        )
        self._notifier = self._make_notifier() if config.notify else None
        left: Removed | None = None
        for section in config.farm:
            try:
                self._farms[section.name] = open_farm(section, applications[section.application], parts)
            except Removed as removed:
                self._log.error("removed", farm=section.name, cause=str(removed))
                left = removed
        if left is not None and not self._farms:
            raise left
        for listener in config.listener:
            self._listeners.check(listener)

    @property
    def farms(self) -> Mapping[str, FarmView]:
        return {name: farm.view for name, farm in self._farms.items()}

    @property
    def transports(self) -> Sequence[str]:
        return self._transports.schemes

    def ready(self) -> bool:
        """Whether every farm knows a leader, and its disk answers. A failed farm does neither."""
        replicas = [farm.replica for farm in self._farms.values()]
        serving = [each for each in replicas if each.core.leader_id and not each.disk.is_hanging]
        return len(serving) == len(self.config.farm)

    def collect(self) -> None:
        """Bring the gauges up to date."""
        self.metrics.forget_members()
        for farm in self._farms.values():
            farm.view.collect()

    def _named_networks(self) -> frozenset[str]:
        """The addresses in the endpoints of the Configurations. Names are not looked up for this: their
        addresses are known once this node has dialled them."""
        configurations = [farm.replica.core.configuration for farm in self._farms.values()]
        if configurations != self._configurations:
            self._configurations = configurations
            found = [_host(server.endpoint) for each in configurations for server in each.servers]
            self._named = frozenset(map(network_of, found))
        return self._named

    def _reachable_admin_url(self) -> str | None:
        is_loopback = Endpoint.parse(self.admin_url).host in ("127.0.0.1", "::1", "localhost")
        return None if is_loopback else self.admin_url

    # ------------------------------------------------------------------ running

    async def run(self, shutdown: trio.Event, task_status: trio.TaskStatus[Node]) -> None:
        """See `serve`."""
        wanted = descriptors.wanted(len(self._farms))
        if descriptors.limit() < wanted:
            self._log.warning(
                "few-descriptors", limit=descriptors.limit(), wanted=wanted, hint=descriptors.RAISE
            )
        ending = trio.Event()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as admin:
                with trio.CancelScope() as starting:
                    nursery.start_soon(_cancel_at, shutdown, starting)
                    token_file = self.config.admin.metrics_token_file
                    metrics_token = read_private_file(token_file).strip() if token_file else ""
                    tls = self.config.node.data_dir / "tls"
                    self.admin_url = await admin.start(
                        partial(
                            serve_admin,
                            partial(self._make_admin_app, ending, metrics_token),
                            bind=self.config.admin.url,
                            certificate=tls / "node.crt",
                            private_key=tls / "node.key",
                            shutdown=ending,
                        )
                    )
                    for listener in self._listeners.of_farms(self.config.listener):
                        self.addresses.append(await nursery.start(self._listeners.listen, listener))
                    self.draining.apply()
                    for farm in tuple(self._farms.values()):  # one may fail while another starts
                        await nursery.start(self._run_farm, farm)
                    self._write_admin_url()
                    nursery.start_soon(self.draining.run)
                    if self._notifier is not None:
                        nursery.start_soon(self._notifier.run)
                    self._log.info("started", version=__version__, admin=self.admin_url)
                    task_status.started(self)
                async with trio.open_nursery() as running:
                    for event in (shutdown, self._is_over):
                        running.start_soon(_cancel_at, event, running.cancel_scope)
                self._log.info("stopping")
                await self.draining.let_go(self.config.node.shutdown_timeout_s * LETTING_GO)
                ending.set()
            nursery.cancel_scope.cancel()
        self._log.flush()
        if self._removed is not None:
            raise self._removed

    async def _make_admin_app(self, ending: trio.Event, metrics_token: str) -> AsgiApp:
        create_app = await trio.to_thread.run_sync(_import_create_app)
        return create_app(self, shutdown=ending, metrics_token=metrics_token)

    def _make_notifier(self) -> Notifier:
        # Not at the top: most nodes have no receiver.
        from garlicfarm.node.notifier import Notifier

        return Notifier(self.config, lambda: self.farms, self.metrics, self._log)

    def _write_admin_url(self) -> None:
        """Write the admin URL for commands on this machine, which wait for the file to exist."""
        part = self.config.node.data_dir / "admin.url.part"
        try:
            part.unlink(missing_ok=True)
            part.touch(0o600)
            part.write_text(self.admin_url + "\n")
            part.replace(part.with_name("admin.url"))
        except OSError as error:
            raise StorageError(f"cannot write {part}: {error.strerror}") from error

    async def _run_farm(self, farm: HostedFarm, *, task_status: trio.TaskStatus[None]) -> None:
        """Run one farm's tasks. A failed store ends the farm, and so does the removal of this member. The
        last farm ends the node; after a removal in order, so that the request for it gets an answer."""
        replica = farm.replica
        try:
            await farm.run(task_status=task_status)
        except* (StorageError, Removed) as group:
            self._farms.pop(replica.farm)
            replica.metrics.set_role("")
            replica.metrics.raft_leader_id.set(0)
            error = first_error(group)
            event = "removed" if isinstance(error, Removed) else "farm-failed"
            self._log.error(event, farm=replica.farm, cause=str(error))
            if isinstance(error, StorageError) and self._notifier is not None:
                await self._notifier.on_failed(farm.view, error, is_last=not self._farms)
            if not self._farms:
                if not isinstance(error, Removed):
                    raise
                self._removed = error
                self._is_over.set()


def _import_create_app() -> Callable[..., AsgiApp]:
    # Not at the top: a node serves its farms without it (`garlicfarm.admin.server`).
    from garlicfarm.admin.app import create_app

    return create_app


def _host(endpoint: str) -> str:
    try:
        return Endpoint.parse(endpoint).host
    except ConfigError:
        return ""


async def _cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
