"""A node: its data directory, its farms, their listeners and the admin listener, as one tree of tasks."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, NoReturn

import msgspec
import trio

from garlicfarm._version import __version__
from garlicfarm.admin.app import create_app
from garlicfarm.admin.contract import FarmView
from garlicfarm.admin.server import serve as serve_admin
from garlicfarm.application import Application
from garlicfarm.config import Config, FarmSection, ListenerSection
from garlicfarm.credentials.master_key import check_master_key
from garlicfarm.credentials.member_credentials import member_lookup, member_password, read_secret_file
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import (
    ConfigError,
    OutcomeUnknown,
    PluginError,
    Removed,
    StorageError,
    TransportError,
    first_error,
)
from garlicfarm.extensions import EXTENSIONS
from garlicfarm.feed.pages import PageReader, reader_limiter
from garlicfarm.http.digest import REALM, ChallengeCache, DigestVerifier
from garlicfarm.log_application import LogApplication
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.net.admission import Admission
from garlicfarm.net.handshake import (
    Established,
    FarmCredentials,
    HandshakeLimiter,
    dial_without_handshake,
    initiate,
    respond,
    without_handshake,
)
from garlicfarm.net.link import CONNECTION_ERRORS, close
from garlicfarm.node.admin_view import FarmAdminView
from garlicfarm.node.publisher.handover import HandOver
from garlicfarm.node.publisher.publishing_task import PublishingTask
from garlicfarm.node.publisher.status_reporter import StatusReporter
from garlicfarm.node.replica import Replica
from garlicfarm.node.retention import Retention
from garlicfarm.node.session import Principal, Session
from garlicfarm.plugins import make_router, make_transport
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.publishing.i2p_base64 import decode_destination
from garlicfarm.publishing.lease import Lease
from garlicfarm.router import Router
from garlicfarm.storage import DataDirectory, LogReader, LogStore, Writer
from garlicfarm.transport import Endpoint, Peer, Transport, listener_problems, network_of
from garlicfarm.wire.messages import Configuration

__all__ = ["APPLICATIONS", "Node", "serve"]

HANDSHAKE_TIMEOUT_S = 10.0
HARMLESS = {
    "stale",  # after a restart of ours every right password comes over an old nonce first, and at once again
    "timeout",  # whoever looks which ports are open says nothing
    "closed",  # nor that; and of a member's streams, all but the first that is let in are closed
    "broken",
    "gone",
}
"""Why a connection is not let in, where nobody has said anything wrong."""
SESSIONS_PER_USER = 16
PLAIN_SESSIONS = 256  # where there are no users, of all together

ApplicationFactory = Callable[[str], Application]

APPLICATIONS: Mapping[str, ApplicationFactory] = MappingProxyType(
    {"publisher": PublisherApplication, "log": lambda farm: LogApplication()}
)
"""The applications in the house (D14): name in the configuration → factory, given the farm's name."""


async def serve(
    config: Config,
    *,
    applications: Mapping[str, ApplicationFactory] = APPLICATIONS,
    shutdown: trio.Event | None = None,
    task_status: trio.TaskStatus[Node] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a node until ``shutdown`` is set, then end it in order; reports the node once it listens, which it
    never does if ``shutdown`` comes first.

    :param applications: name in the configuration → factory, given the farm's name. It gives a new object
        each time it is called: between plain peers `restore` is tried on another one first, in another
        thread.
    :raises ConfigError: the configuration, or a file that it names, is not usable.
    :raises StorageError: the store is missing, in use, damaged or of another version; or the last
        farm's store failed.
    :raises TransportError: a listener cannot be bound.

    Cancelled: ends at once; what was acknowledged is durable all the same.
    """
    if shutdown is None:
        shutdown = trio.Event()
    with ExitStack() as stack:
        directory = stack.enter_context(DataDirectory.open(config.node.data_dir))
        if directory.node_id != config.node.id:
            owner = f"{config.node.data_dir} belongs to node {directory.node_id}"
            raise ConfigError([f"node.id is {config.node.id}, but {owner}"])
        node = Node(config, directory, applications, stack)
        await node.run(shutdown, task_status)


class _Member:
    """What one farm needs beside the `Replica` itself."""

    def __init__(
        self,
        farm: Replica,
        view: FarmAdminView,
        retention: Retention,
        credentials: FarmCredentials,
        router: Router | None,
    ) -> None:
        self.farm = farm
        self.view = view
        self.retention = retention
        self.credentials = credentials
        self.router = router


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
        self.users = UserStore(config.node.data_dir / "users")
        self.metrics = NodeMetrics()
        self.admin_url = ""
        self.addresses: list[Endpoint] = []
        self._over = trio.Event()  # it was removed from its last farm
        self._removed: Removed | None = None
        self._log = EventLogger(logging.getLogger("garlicfarm.node"), node=self.node_id)
        self._transports: dict[str, Transport] = {}
        self._admission = Admission(named=self._named)
        self._configurations: list[Configuration] = []
        self._named_networks: frozenset[str] = frozenset()
        self._sessions: dict[tuple[str, str], deque[trio.CancelScope]] = {}
        self._limiter = reader_limiter()
        self._members: dict[str, _Member] = {}
        for section in config.farm:
            self._members[section.name] = self._make_member(section, directory, applications, stack)
        for listener in config.listener:
            self._check_listener(listener)

    @property
    def farms(self) -> Mapping[str, FarmView]:
        return {name: member.view for name, member in self._members.items()}

    @property
    def transports(self) -> Sequence[str]:
        return sorted(self._transports)

    def ready(self) -> bool:
        """Whether every farm knows a leader, and its disk answers; one that has failed does not."""
        farms = [member.farm for member in self._members.values()]
        serving = [farm for farm in farms if farm.leader_id and not farm.disk.hangs]
        return len(serving) == len(self.config.farm)

    def collect(self) -> None:
        """Bring the gauges up to date."""
        self.metrics.forget_members()
        for member in self._members.values():
            member.view.collect()

    # ------------------------------------------------------------------ making

    def _make_member(
        self,
        section: FarmSection,
        directory: DataDirectory,
        applications: Mapping[str, ApplicationFactory],
        stack: ExitStack,
    ) -> _Member:
        path = directory.farm_directory(section.name)
        store = LogStore.open(path, farm=section.name, is_jraft=self._is_jraft(section.name))
        stack.callback(store.close)
        genesis = store.genesis
        if genesis.application != section.application:
            raise ConfigError(
                [
                    f"farm {section.name}: the store is of application {genesis.application!r}, "
                    f"the configuration says {section.application!r}"
                ]
            )
        reader = LogReader(path)
        stack.callback(reader.close)
        farm_secrets = read_secret_file(section.secret_file)
        password = member_password(farm_secrets[0], genesis.farm_id, self.node_id)
        log = EventLogger(logging.getLogger("garlicfarm.raft"), farm=section.name, node=self.node_id)
        application = applications[section.application](section.name)
        for problem in store.problems:
            log.warning("snapshot-unusable", cause=problem)
        if store.restored is not None:
            application.restore(store.restored.state)
            store.restored = msgspec.structs.replace(store.restored, state=b"")  # it may be large
        writer: Writer

        def check_state(state: bytes) -> None:
            applications[section.application](section.name).restore(state)

        def make_writer(*report: Any) -> Writer:
            nonlocal writer
            writer = Writer(store, *report, check_state=check_state)
            return writer

        farm = Replica(
            section,
            self.node_id,
            store,
            make_writer,
            application,
            partial(self._dial, section, genesis.farm_id, password, ChallengeCache(section.algorithms)),
            self.metrics.farm(section.name),
            log,
        )
        if store.restored is not None:
            farm.membership.restored(store.restored.configuration, store.restored.all_members)
        pages = PageReader(reader, self._limiter)
        view = FarmAdminView(farm, pages)
        lookup = member_lookup(farm_secrets, genesis.farm_id, self.users.lookup)
        verifier = DigestVerifier(REALM, section.algorithms, secrets.token_bytes(32), lookup)
        credentials = FarmCredentials(section.name, genesis.farm_id, verifier, EXTENSIONS, view.leader)
        router = None
        if section.router:
            table = {key: value for key, value in section.router.items() if key != "plugin"}
            router = make_router(section.router["plugin"], table, self.config.base_dir)
        return _Member(farm, view, Retention(farm, store, writer, pages), credentials, router)

    def _transport(self, scheme: str) -> Transport:
        if scheme not in self._transports:
            table = self.config.transport.get(scheme, {})
            transport = make_transport(scheme, table, self.config.base_dir)
            transport.on_drop = partial(self._rejected, scheme)
            if transport.handshake:
                transport.admit = partial(self._admission.admit, on_cut=partial(self._cut, scheme))
            self._transports[scheme] = transport
        return self._transports[scheme]

    async def _dial(
        self,
        section: FarmSection,
        farm_id: bytes,
        password: str,
        challenges: ChallengeCache,
        member: int,
        text: str,
    ) -> Established:
        """A member that this node cannot dial must not end it: the others may do without."""
        try:
            endpoint = Endpoint.parse(text, section.default_transport)
            transport = self._transport(endpoint.scheme)
            if not transport.handshake:
                return await dial_without_handshake(transport, endpoint, section.name)
            established = await initiate(
                partial(transport.open_stream, endpoint),
                host=endpoint.authority,
                proxied=endpoint.proxied,
                farm=section.name,
                user=str(self.node_id),
                password=password,
                cache=challenges,
                farm_id=farm_id,
                extensions=EXTENSIONS,
            )
            self._welcome_dialled(established.stream)
            return established
        except CONNECTION_ERRORS:
            raise
        except (ConfigError, PluginError) as error:
            raise TransportError(f"member {member} cannot be dialled at {text}: {error}") from error
        except Exception as error:
            # A defect of a transport, or an endpoint that it stumbles over: all members have that in common.
            leaf, where = _place(error)
            self._log.error("dial-defect", peer=member, error=type(leaf).__name__, where=where)
            what = f"a defect of the transport {endpoint.scheme}, or of this program"
            raise TransportError(f"member {member} cannot be dialled at {text}: {what} ({where})") from error

    def _named(self) -> frozenset[str]:
        """The addresses in the endpoints of the Configurations. No name is looked up for this: the address
        behind one is known once this node has dialled it."""
        configurations = [member.farm.configuration for member in self._members.values()]
        if configurations != self._configurations:
            self._configurations = configurations
            found = [_host(server.endpoint) for each in configurations for server in each.servers]
            self._named_networks = frozenset(map(network_of, found))
        return self._named_networks

    def _welcome_dialled(self, stream: trio.abc.Stream) -> None:
        """A member answered there: it may dial us from there."""
        tcp = stream.transport_stream if isinstance(stream, trio.SSLStream) else None
        if isinstance(tcp, trio.SocketStream):  # else it is a transport whose addresses tell nothing
            with suppress(OSError):  # it left again
                self._admission.welcome(Peer(tcp.socket.getpeername()[0], True, None))

    # ------------------------------------------------------------------ running

    async def run(self, shutdown: trio.Event, task_status: trio.TaskStatus[Node]) -> None:
        """See `serve`."""
        ending = trio.Event()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as admin:
                with trio.CancelScope() as starting:
                    nursery.start_soon(_cancel_at, shutdown, starting)
                    token_file = self.config.admin.metrics_token_file
                    tls = self.config.node.data_dir / "tls"
                    self.admin_url = await admin.start(
                        partial(
                            serve_admin,
                            create_app(
                                self,
                                shutdown=ending,
                                metrics_token=read_private_file(token_file).strip() if token_file else "",
                            ),
                            bind=self.config.admin.url,
                            certificate=tls / "node.crt",
                            private_key=tls / "node.key",
                            shutdown=ending,
                        )
                    )
                    for listener in self.config.listener:
                        self.addresses.append(await nursery.start(self._listen, listener))
                    for member in tuple(self._members.values()):  # one may fail while the next one starts
                        await nursery.start(self._run_member, member)
                    self._tell_admin_url()
                    self._log.info("started", version=__version__, admin=self.admin_url)
                    task_status.started(self)
                async with trio.open_nursery() as running:
                    for event in (shutdown, self._over):
                        running.start_soon(_cancel_at, event, running.cancel_scope)
                self._log.info("stopping")
                ending.set()
                await self._hand_over()
            nursery.cancel_scope.cancel()
        self._log.flush()
        if self._removed is not None:
            raise self._removed

    def _tell_admin_url(self) -> None:
        """Write where commands of this machine find the node; they wait for the file to exist."""
        part = self.config.node.data_dir / "admin.url.part"
        try:
            part.unlink(missing_ok=True)
            part.touch(0o600)
            part.write_text(self.admin_url + "\n")
            part.replace(part.with_name("admin.url"))
        except OSError as error:
            raise StorageError(f"cannot write {part}: {error.strerror}") from error

    async def _hand_over(self) -> None:
        """Where this node leads, let others lead before it is gone."""
        with trio.move_on_after(self.config.node.shutdown_timeout_s / 2):
            async with trio.open_nursery() as nursery:
                for member in self._members.values():
                    nursery.start_soon(member.farm.hand_over)

    async def _run_member(self, member: _Member, *, task_status: trio.TaskStatus[None]) -> None:
        """One farm's tree. A failed store ends that farm, and so does its removal; the last one ends the
        node, in order where it is removed: who asked for that gets an answer."""
        farm = member.farm
        try:
            async with member.router or nullcontext(), trio.open_nursery() as nursery:
                await nursery.start(farm.run)
                nursery.start_soon(member.retention.run)
                self._start_posting(nursery, member)
                task_status.started()
        except* (StorageError, Removed) as group:
            self._members.pop(farm.name)
            farm.metrics.set_role("")
            farm.metrics.raft_leader_id.set(0)
            error = first_error(group)
            event = "removed" if isinstance(error, Removed) else "farm-failed"
            self._log.error(event, farm=farm.name, cause=str(error))
            if not self._members:
                if not isinstance(error, Removed):
                    raise
                self._removed = error
                self._over.set()

    def _start_posting(self, nursery: trio.Nursery, member: _Member) -> None:
        farm, application = member.farm, member.farm.application
        if not isinstance(application, PublisherApplication):
            return
        meta = farm.section.meta
        lease = Lease()
        publisher = None
        if member.router is not None and meta.destination and meta.key_file is not None:
            check_master_key(meta.key_file, meta.destination)
            publisher = PublishingTask(
                farm, application, member.router, decode_destination(meta.destination), lease
            )
            nursery.start_soon(publisher.run)
        loopback = Endpoint.parse(self.admin_url).host in ("127.0.0.1", "::1", "localhost")
        admin_url = None if loopback else self.admin_url
        nursery.start_soon(StatusReporter(farm, application, member.router, publisher, lease, admin_url).run)
        nursery.start_soon(HandOver(farm, application).run)

    # ------------------------------------------------------------------ listening

    def _is_jraft(self, farm: str) -> bool:
        """Whether a farm's peers are without a handshake."""
        listeners = [each for each in self.config.listener if farm in (each.farms or (farm,))]
        return any(not self._transport(Endpoint.parse(each.url).scheme).handshake for each in listeners)

    def _check_listener(self, listener: ListenerSection) -> None:
        url = Endpoint.parse(listener.url)
        farms = listener.farms or tuple(self._members)
        if problems := listener_problems(self._transport(url.scheme), url, farms):
            raise ConfigError(problems)

    async def _listen(self, listener: ListenerSection, *, task_status: trio.TaskStatus[Endpoint]) -> NoReturn:
        url = Endpoint.parse(listener.url)
        names = listener.farms or tuple(self._members)
        credentials = {name: self._members[name].credentials for name in names}
        # How long members that dial us wait to be let in (D3).
        patience_s = [self._members[name].farm.section.raft.rpc_timeout_s for name in names]
        limiter = HandshakeLimiter(
            admission=self._admission,
            deadline_s=max(HANDSHAKE_TIMEOUT_S, *patience_s),
            longest_delay_s=min(patience_s) / 2,
            on_rejected=partial(self._rejected, url.scheme),
        )
        handler = partial(self._serve_stream, url.scheme, credentials, limiter)
        await self._transport(url.scheme).serve(url, handler, task_status=task_status)

    def _cut(self, scheme: str, peer: Peer) -> None:
        self._rejected(scheme, peer, "busy")

    def _rejected(self, scheme: str, peer: Peer, reason: str) -> None:
        if reason == "challenge":  # every first visit is one
            return
        self.metrics.listener_rejected.labels(scheme, reason).inc()
        if reason == "password":
            self.metrics.auth_failures.labels("").inc()
        level = logging.INFO if reason in HARMLESS else logging.WARNING
        # One cause for all addresses: whoever floods us may have many.
        self._log.log(level, "rejected", address=peer.address, reason=reason, transport=scheme)

    async def _serve_stream(
        self,
        scheme: str,
        credentials: Mapping[str, FarmCredentials],
        limiter: HandshakeLimiter,
        stream: trio.abc.Stream,
        peer: Peer,
    ) -> None:
        """One incoming connection. Whatever is wrong with the peer ends here, and costs it alone."""
        connections = self.metrics.listener_connections.labels(scheme, "open")
        connections.inc()
        try:
            established: Established | None
            if self._transport(scheme).handshake:
                established = await respond(stream, credentials, limiter, peer)
            else:
                established = without_handshake(stream, next(iter(credentials)))
            if established is not None:
                await self._serve_session(established, peer)
        except* (*CONNECTION_ERRORS, OutcomeUnknown) as group:
            lost = first_error(group)
            self.metrics.listener_rejected.labels(scheme, "broken").inc()
            cause = str(lost) or type(lost).__name__
            self._log.warning("connection-lost", address=peer.address, cause=cause)
        except* Exception as group:  # noqa: BLE001
            # A defect of ours, or a users file that broke: it must not take the other connections along,
            # nor pass unseen. Where, and not what: the text may quote the peer.
            error, where = _place(group)
            self.metrics.listener_rejected.labels(scheme, "defect").inc()
            self._log.error("connection-defect", error=type(error).__name__, where=where)
        finally:
            connections.dec()
            await close(stream)

    async def _serve_session(self, established: Established, peer: Peer) -> None:
        member = self._members.get(established.farm)
        if member is None:
            return
        user = established.user
        if user.isdigit():
            self._admission.welcome(peer)
            caller = Principal(f"member {user}", int(user), True, established.extensions)
        elif not user:
            caller = Principal("a plain peer", 0, True, trusted=True)
        else:
            login = self.users.login(user)
            if login is None:
                return  # removed since
            caller = Principal(f"user {user}", 0, False, established.extensions, login=login)
        farm = member.farm
        session = Session(farm, established.stream, caller, established.leftover, farm.answer_timeout_s)
        scopes = self._sessions.setdefault((established.farm, user), deque())
        with trio.CancelScope() as scope:
            scopes.append(scope)
            if len(scopes) > (SESSIONS_PER_USER if user else PLAIN_SESSIONS):
                scopes.popleft().cancel()  # the oldest is the likeliest to be half open
            try:
                await session.run()
            finally:
                if scope in scopes:
                    scopes.remove(scope)
                if caller.member_id:  # it was there until now
                    self._admission.welcome(peer)


def _host(endpoint: str) -> str:
    try:
        return Endpoint.parse(endpoint).host
    except ConfigError:
        return ""


async def _cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _place(error: BaseException) -> tuple[BaseException, str]:
    """What went wrong at first, and where."""
    error = first_error(error)
    frames = traceback.extract_tb(error.__traceback__)
    return error, f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
