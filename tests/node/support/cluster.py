"""Whole nodes in this process: real stores, TLS on loopback, the real clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trio

from garlicfarm.client.farm import FarmClient, open_farm_client
from garlicfarm.client.trust import client_tls
from garlicfarm.config import load
from garlicfarm.credentials.member_credentials import member_password, read_secret_file
from garlicfarm.credentials.roles import UserRole
from garlicfarm.credentials.users import UserStore
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.lab.processes import ProcessFarm, free_ports
from garlicfarm.levels import THIS
from garlicfarm.net.handshake import DialCredentials, Established, initiate
from garlicfarm.node import Node, serve
from garlicfarm.node.admin_view import FarmAdminView
from garlicfarm.node.replica import Replica
from garlicfarm.plugins import make_transport
from garlicfarm.setup.provision import FarmPlan, MadeFarm, MemberPlan, create_farm
from garlicfarm.transport import Endpoint
from garlicfarm.wire import ResponseDecoder, encode_request
from garlicfarm.wire.messages import LogEntry, MessageType, Request, ValueType

ALONE: Mapping[str, Any] = {
    "election_timeout_min_s": 0.02,
    "election_timeout_max_s": 0.04,
    "heartbeat_s": 0.01,
    "rpc_timeout_s": 30.0,
}
"""``[farm.raft]`` of a farm of one: a leader at once, whose clients wait for its disk, which may be busy."""

ALONE_AND_QUICK: Mapping[str, Any] = {**ALONE, "rpc_timeout_s": 1.0}
"""The same where what is waited for never comes."""

THREE: Mapping[str, Any] = {
    "election_timeout_min_s": 0.6,
    "election_timeout_max_s": 1.2,
    "heartbeat_s": 0.15,
    "rpc_timeout_s": 1.0,
}
"""``[farm.raft]`` of members that share one event loop."""

STEADY: Mapping[str, Any] = {**THREE, "election_timeout_min_s": 2.0, "election_timeout_max_s": 2.5}
"""The same, where a test counts indexes or looks at one leader: a machine that keeps it from its heartbeats
for a second costs no election."""

TRANSPORT: Any = make_transport("ssl", {}, Path())
USERS: Mapping[str, UserRole] = {"alice": "writer", "bob": "reader"}


def password_of(user: str) -> str:
    return f"the word of {user}, kept secret"


def client_request(*values: bytes, source: int = 0, destination: int = 0, **fields: int) -> Request:
    entries = tuple(LogEntry(0, ValueType.APPLICATION, value) for value in values)
    return Request(MessageType.CLIENT_REQUEST, source, destination, entries=entries, **fields)


MESSAGE_TIMEOUT_S = 240.0


async def next_message(stream: trio.abc.Stream, decoder: Any) -> Any:
    """The next message that the other side sends; None: it closed the connection."""
    with trio.fail_after(MESSAGE_TIMEOUT_S):
        while (message := decoder.next_message()) is None:
            try:
                data = await stream.receive_some(65536)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            decoder.receive_data(data)
    return message


class Wire:
    """A hand-driven connection to a node, after its handshake: what is sent may be no request at all."""

    def __init__(self, established: Established) -> None:
        self.stream = established.stream
        self.leader = established.leader
        self._decoder = ResponseDecoder()
        self._decoder.receive_data(established.leftover)

    async def send(self, *messages: Request | bytes) -> None:
        data = [each if isinstance(each, bytes) else encode_request(each) for each in messages]
        await self.stream.send_all(b"".join(data))

    async def receive(self) -> Any:
        """The next answer, a `Response`; None: the node closed the connection."""
        return await next_message(self.stream, self._decoder)

    async def ask(self, request: Request | bytes) -> Any:
        await self.send(request)
        return await self.receive()


class Running:
    """One node of a `Cluster` while it runs."""

    def __init__(self) -> None:
        self.shutdown = trio.Event()
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.error: BaseException | None = None
        self.node: Node


class Cluster:
    """``nodes`` are those that run; ``directories`` those that could."""

    def __init__(
        self, made: MadeFarm, plan: FarmPlan, nursery: trio.Nursery, applications: Mapping[str, Any]
    ) -> None:
        self.plan = plan
        self.farm_id = made.farm_id
        self.endpoints = {server.id: server.endpoint for server in made.configuration.servers}
        self.directories = dict(made.directories)
        self.running: dict[int, Running] = {}
        self.applications = applications
        self.environ: dict[str, str] = {}
        self.opened: list[trio.abc.Stream] = []
        self._nursery = nursery
        secret = read_secret_file(self.data(1) / "secrets" / f"{plan.name}.secret")[0]
        self.password: Callable[[int], str] = partial(member_password, secret, made.farm_id)

    def data(self, node_id: int) -> Path:
        return self.directories[node_id] / "data"

    def node(self, node_id: int = 1) -> Node:
        return self.running[node_id].node

    def replica(self, node_id: int = 1, name: str = "") -> Replica:
        view = self.node(node_id).farms[name or self.plan.name]
        assert isinstance(view, FarmAdminView)
        return view.replica

    def endpoint(self, node_id: int = 1) -> Endpoint:
        return Endpoint.parse(self.endpoints[node_id])

    def favour(self, leader: int) -> None:
        """Let a node that does not run yet stand for election before all others, and once more if nobody
        was let in yet the first time."""
        for node_id, directory in self.directories.items():
            if node_id != leader:
                file = directory / "garlicfarm.toml"
                text = file.read_text().replace("timeout_min_s = 0.6", "timeout_min_s = 3.0")
                file.write_text(text.replace("timeout_max_s = 1.2", "timeout_max_s = 4.0"))

    async def start(self, *ids: int) -> None:
        async with trio.open_nursery() as nursery:
            for node_id in ids or self.directories:
                nursery.start_soon(self._start, node_id)

    async def _start(self, node_id: int) -> None:
        self.running[node_id] = running = Running()
        running.node = await self._nursery.start(self._run, node_id, running)

    async def _run(self, node_id: int, running: Running, *, task_status: trio.TaskStatus[Node]) -> None:
        config = load(self.directories[node_id] / "garlicfarm.toml", self.environ)
        listening = False

        class Status:
            def started(self, node: Node) -> None:
                nonlocal listening
                listening = True
                task_status.started(node)

        status: Any = Status()
        try:
            with running.scope:
                await serve(
                    config,
                    applications=self.applications,
                    shutdown=running.shutdown,
                    task_status=status,
                )
        except Exception as error:
            if not listening:
                raise
            running.error = error
        finally:
            self.running.pop(node_id, None)
            running.ended.set()

    async def stop(self, *ids: int) -> None:
        """End nodes in order."""
        ending = [self.running[node_id] for node_id in ids or tuple(self.running)]
        for running in ending:
            running.shutdown.set()
        for running in ending:
            await running.ended.wait()

    async def leader(self, *among: int) -> int:
        """The leader that all running nodes (or those named) agree on."""
        with trio.fail_after(240):
            while True:
                views = {self.replica(node_id).leader_id for node_id in among or self.running}
                if (
                    len(views) == 1
                    and (leader := views.pop()) in self.running
                    and self.replica(leader).is_leader
                ):
                    return leader
                await trio.sleep(0.01)

    async def applied(self, index: int) -> None:
        """All running nodes have applied up to ``index``."""
        with trio.fail_after(240):
            for node_id in self.running:
                await self.replica(node_id).wait_applied(index - 1)

    # ------------------------------------------------------------------ from outside

    def connect(
        self,
        node_id: int = 1,
        source: str = "127.0.0.1",
        wrap: Callable[[trio.abc.Stream], trio.abc.Stream] = lambda stream: stream,
    ) -> Callable[[], Any]:
        """How to open a TLS stream to a node, from any address of loopback."""
        endpoint = self.endpoint(node_id)

        async def open_stream() -> trio.abc.Stream:
            tcp = await trio.open_tcp_stream(endpoint.host, endpoint.port, local_address=source)
            tls = client_tls(pin=endpoint.params["pin"], ca=None)
            stream = trio.SSLStream(tcp, tls, https_compatible=True)
            try:
                await stream.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            return wrap(stream)

        return open_stream

    async def login(
        self,
        user: str = "alice",
        password: str | None = None,
        *,
        node_id: int = 1,
        farm: str = "",
        source: str = "127.0.0.1",
        wrap: Callable[[trio.abc.Stream], trio.abc.Stream] = lambda stream: stream,
        extensions: Mapping[str, str] = MappingProxyType({}),
    ) -> Wire:
        """Log in; the password of members and of `USERS` is known. Closed with the cluster."""
        if password is None:
            password = self.password(int(user)) if user.isdigit() else password_of(user)
        credentials = DialCredentials(
            farm or self.plan.name,
            user,
            password,
            ChallengeCache(),
            extensions=extensions,
            program=lambda: THIS if user.isdigit() else None,
        )
        host = self.endpoint(node_id).authority
        established = await initiate(self.connect(node_id, source, wrap), credentials, host=host)
        self.opened.append(established.stream)
        return Wire(established)

    @asynccontextmanager
    async def client(self, *ids: int, timeout_s: float = 10.0, **more: Any) -> AsyncIterator[FarmClient]:
        endpoints = {node_id: self.endpoints[node_id] for node_id in ids or self.endpoints}
        options: dict[str, Any] = {
            "user": "alice",
            "password": password_of("alice"),
            "farm": self.plan.name,
            "farm_id": self.farm_id,
            "transport": lambda scheme: TRANSPORT,
        }
        async with open_farm_client(endpoints, timeout_s=timeout_s, **(options | more)) as client:
            yield client


def let_post(farm: ProcessFarm) -> None:
    """Let ``alice`` post to the nodes of a farm of processes."""
    for node in farm.nodes.values():
        UserStore(node.directory / "data" / "users").add("alice", "writer", password_of("alice"))


def posting(farm: ProcessFarm, **more: Any) -> AbstractAsyncContextManager[FarmClient]:
    """Her client."""
    who = {"farm": farm.name, "user": "alice", "password": password_of("alice")}
    return open_farm_client(farm.endpoints, transport=lambda scheme: TRANSPORT, **(who | more))


def member(scheme: str = "ssl", **plan: Any) -> MemberPlan:
    """A member on ports of its own."""
    (port,) = free_ports(1)
    return MemberPlan(endpoint=f"{scheme}://127.0.0.1:{port}", admin_url="https://127.0.0.1:0", **plan)


def simulated_member(node_id: int, **plan: Any) -> MemberPlan:
    """The same with a simulated router, and a leaf."""
    router = {"plugin": "simulated", "seed": node_id}
    return member(router=router, leaves=(encode(simulated_destination(node_id)),), **plan)


@asynccontextmanager
async def cluster(
    directory: Path,
    count: int = 1,
    *,
    start: bool = True,
    applications: Mapping[str, Any] | None = None,
    members: Mapping[int, MemberPlan] | None = None,
    **plan: Any,
) -> AsyncIterator[Cluster]:
    """A farm of ``count`` nodes, by default of application ``log``, with the users `USERS`."""
    plan = {"application": "log", "raft": ALONE if count == 1 else THREE} | plan
    if members is None:
        members = {node_id: member() for node_id in range(1, count + 1)}
    farm_plan = FarmPlan(**plan)
    made = await trio.to_thread.run_sync(create_farm, directory / "farm", members, farm_plan)
    for path in made.directories.values():
        for name, role in USERS.items():
            UserStore(path / "data" / "users").add(name, role, password_of(name))
    async with trio.open_nursery() as nursery:
        running = Cluster(made, farm_plan, nursery, applications)
        if start:
            await running.start()
        try:
            yield running
        finally:
            for stream in running.opened:
                await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
