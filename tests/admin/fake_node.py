"""A node in memory: what the admin room sees of a real one, with every answer in the test's hand."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import trio

from garlicfarm.admin.app import create_app
from garlicfarm.admin.server import serve
from garlicfarm.application import AdminEndpoint
from garlicfarm.client import AdminClient
from garlicfarm.client.trust import client_tls
from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import Compacted, EntryRefused
from garlicfarm.feed.binary_format import HEAD_BYTES
from garlicfarm.feed.source import EntryStream
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.draining import Draining
from garlicfarm.node.stored_rankings import StoredRankings
from garlicfarm.raft.types import Entry
from garlicfarm.storage import RankingStore
from garlicfarm.wire.messages import ValueType

PASSWORDS = {
    "rita": ("reader", "rita's word"),
    "paul": ("writer", "paul's word"),
    "anna": ("admin", "anna's word"),
}
LOCAL_PASSWORD = "local's word"


def client_of(nodes: Mapping[str, FakeNode], user: str = "rita") -> AdminClient:
    """A client of several nodes, by their URLs."""
    urls = [f"{url}?pin={node.pin}" for url, node in nodes.items()]
    return AdminClient(urls, user=user, password=PASSWORDS[user][1])


class FakeFarm:
    """A farm of one whose log is a list."""

    def __init__(self, name: str = "farm") -> None:
        self.farm = name
        self.is_leader = True
        self.disk_hangs_s: float | None = None
        self.application = "publisher"
        self.ranked = [ranked_row(1)]
        self.endpoints: list[AdminEndpoint] = []
        self.farm_id = bytes(range(16))
        self.node_id = 1
        self.first_index = 1
        self.log: list[Entry] = []
        self.posted_by: list[str] = []
        self.post_error: Exception | None = None
        self.post_blocks = False
        self.read_error: Exception | None = None
        self.confirmed = 0
        self.confirm_error: Exception | None = None
        self.url_of_leader: str | None = None
        self.events: list[dict[str, Any]] = []
        self.feeds: list[dict[str, Any]] = []
        self.joining: dict[str, Any] | None = None
        self.changes: list[tuple[str, int, str, bool, str]] = []
        self.raised: list[tuple[int, str]] = []
        self.level: dict[str, Any] = {"in_force": 1, "highest": 1, "brings": {}, "hindered_by": []}
        self.snapshot = b"snapshot"
        self.saved: Sequence[bytes] = (b"saved", b"snapshot")
        self.saved_error: Exception | None = None
        self.waiting = 0
        self.batches: list[int] = []
        self._commit_event = trio.Event()
        self.store_rankings(Path("/dev/null"))

    @property
    def commit_index(self) -> int:
        return self.first_index + len(self.log) - 1

    def commit(self, value: bytes, kind: ValueType = ValueType.APPLICATION) -> int:
        self.log.append(Entry(self.commit_index + 1, 3, kind, value))
        self.tell()
        return self.commit_index

    def tell(self) -> None:
        """Something has changed."""
        self._commit_event.set()
        self._commit_event = trio.Event()

    async def wait_change(self) -> None:
        await self._commit_event.wait()

    @property
    def applied_index(self) -> int:
        return self.commit_index

    async def wait_applied(self, beyond: int) -> None:
        await self.wait_commit(beyond)

    def store_rankings(self, directory: Path) -> None:
        """Keep the rankings of queries in ``directory``, as a node does."""

        def own() -> dict[str, Any]:
            return {"index": self.commit_index, **self.ranking()}

        log = EventLogger(logging.getLogger("garlicfarm.raft"), farm=self.farm)
        self.rankings = StoredRankings(RankingStore(directory), own, cast(CoreInbox, self), log)

    def compact(self, first_index: int) -> None:
        del self.log[: first_index - self.first_index]
        self.first_index = first_index

    def status(self) -> dict[str, Any]:
        members = [
            _member(1, "leader", publisher=True, applied=self.commit_index),
            _member(2, "follower", rtt_s=0.0021, lag=4),
            _member(3, "unreachable", error="connection refused"),
        ]
        return {
            "schema": "garlicfarm.status/1",
            "farm": self.farm,
            "farm_id": self.farm_id.hex(),
            "node": 1,
            "application": self.application,
            "role": "leader",
            "leader": 1,
            "leader_lost": None,
            "publisher": 1,
            "level": self.level,
            "term": 3,
            "commit": self.commit_index,
            "applied": self.commit_index,
            "leader_commit": self.commit_index,
            "first_index": self.first_index,
            "last_index": self.commit_index,
            "quorum": True,
            "fault_tolerance": 0,
            "needed": 0,
            "disk_hangs_s": self.disk_hangs_s,
            "feeds": self.feeds,
            "events": self.events,
            "members": members,
        }

    def entries(
        self, after: int, max_bytes: int, *, upto: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        return EntryStream(self.read, self.wait_commit, after, max_bytes, upto)

    async def read(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        await trio.lowlevel.checkpoint()
        if self.read_error is not None:
            raise self.read_error
        if after < self.first_index - 1:
            raise Compacted(self.first_index)
        chosen: list[Entry] = []
        for entry in self.log[after - self.first_index + 1 : upto - self.first_index + 1]:
            max_bytes -= len(entry.value) + HEAD_BYTES
            if chosen and max_bytes < 0:
                break
            chosen.append(entry)
        return chosen

    async def wait_commit(self, beyond: int) -> int:
        self.waiting += 1
        try:
            while self.commit_index <= beyond:
                await self._commit_event.wait()
        finally:
            self.waiting -= 1
        return self.commit_index

    async def post(self, entry: bytes, user: str) -> tuple[int, int]:
        await trio.lowlevel.checkpoint()
        if self.post_error is not None:
            raise self.post_error
        if self.post_blocks:
            await trio.sleep_forever()
        self.posted_by.append(user)
        return self.commit(entry), 3

    async def post_batch(
        self, entries: Sequence[bytes], user: str
    ) -> Sequence[tuple[int, int] | EntryRefused]:
        await trio.lowlevel.checkpoint()
        self.batches.append(len(entries))
        outcomes: list[tuple[int, int] | EntryRefused] = []
        for entry in entries:
            if entry.startswith(b"refuse"):
                outcomes.append(EntryRefused("$.date", "absent"))
            else:
                outcomes.append(await self.post(entry, user))
        return outcomes

    async def administer(self, action: str, args: dict[str, Any], user: str) -> tuple[int, int]:
        return await self.post(repr((action, args, user)).encode(), user)

    async def read_index(self) -> int:
        await trio.lowlevel.checkpoint()
        if self.confirm_error is not None:
            raise self.confirm_error
        self.confirmed += 1
        return self.commit(b"confirmed %d" % self.confirmed)  # it was not applied here before

    def state(self) -> tuple[int, bytes]:
        return self.commit_index, self.snapshot

    async def saved_snapshot(self) -> Sequence[bytes]:
        await trio.lowlevel.checkpoint()
        if self.saved_error is not None:
            raise self.saved_error
        return self.saved

    async def oldest_state(self) -> tuple[int, bytes]:
        await trio.lowlevel.checkpoint()
        return self.first_index - 1, self.snapshot if self.first_index > 1 else b""

    def ranking(self, *, statuses: bool = False) -> dict[str, Any]:
        more = {"status": {"id": 1}, "age_s": 2.5} if statuses else {}
        rows = [row | more for row in self.ranked]
        return {"schema": "garlicfarm.ranking/1", "publisher": 1, "since": 1, "members": rows}

    def policy(self) -> dict[str, Any]:
        return {"schema": "garlicfarm.policy/1", "farm": self.farm, "index": self.commit_index}

    def leader(self) -> tuple[int, str] | None:
        return 1, "ssl://127.0.0.1:1"

    def leader_url(self) -> str | None:
        return self.url_of_leader

    def members(self) -> dict[str, Any]:
        body = self.status()
        rows = [{key: row[key] for key in ("id", "endpoint", "role")} for row in body["members"]]
        return {
            "schema": "garlicfarm.members/1",
            "farm": self.farm,
            "leader": 1,
            "members": rows,
            "joining": self.joining,
            "quorum": True,
            "fault_tolerance": 0,
            "used_ids": [1, 2, 3, 7],
            "level": body["level"]["in_force"],
        }

    async def change_member(
        self, change: str, member: int, endpoint: str, force: bool, user: str
    ) -> tuple[int, int]:
        self.changes.append((change, member, endpoint, force, user))
        return await self.post(b"change", user)

    async def raise_level(self, level: int, user: str) -> tuple[int, int]:
        self.raised.append((level, user))
        return await self.post(b"level", user)

    async def step_down(self, to: int, user: str) -> int:
        await self.post(b"step down", user)
        return to or 2

    async def repair(self, user: str) -> int:
        await self.post(b"repair", user)
        return 7


def ranked_row(member: int, **known: Any) -> dict[str, Any]:
    """A member in the ranking."""
    parts = {
        "job_lag": {"value": 250_000, "weight": 15, "reported": True},
        "remote_sensing": {"value": 500_000, "weight": 5, "reported": False},
    }
    about = {"mode": "auto", "eligible": True, "publisher": False, "reason": "because", "why": []}
    return {"id": member, "score": 650_000, "measured": 15, "parts": parts, **about, **known}


def _member(member: int, role: str, **known: Any) -> dict[str, Any]:
    unknown = dict.fromkeys(
        (
            "term",
            "commit",
            "applied",
            "match",
            "lag",
            "last_contact_s",
            "rtt_s",
            "version",
            "age_s",
            "error",
            "revision",
            "levels",
            "trouble",
            "trouble_since_ms",
        )
    )
    endpoint = f"ssl://127.0.0.1:{27150 + member}?pin=sha256-abc"
    row = {
        "id": member,
        "endpoint": endpoint,
        "transport": "ssl",
        "role": role,
        "publisher": False,
        "drained": False,
    }
    return {**row, **unknown, **known}


class FakeNode:
    """A node with users in ``data_dir``, a certificate of its own, and farms in memory."""

    def __init__(self, data_dir: Path, farms: Sequence[str] = ("farm",)) -> None:
        self.data_dir = data_dir
        self.node_id = 1
        self.version = "0.0-test"
        self.started_monotonic = 0.0
        self.transports = ["ssl"]
        self.farms = {name: FakeFarm(name) for name in farms}
        for name, farm in self.farms.items():
            farm.store_rankings(data_dir / "farms" / name / "rankings")
        self.metrics = NodeMetrics()
        self.leader_known = True
        self.requests = 0
        self.running_requests = 0
        self.largest_piece = 0
        data_dir.mkdir(exist_ok=True)
        self.certificate = data_dir / "tls" / "node.crt"
        self.private_key = data_dir / "tls" / "node.key"
        self.pin = make_certificate(self.certificate, self.private_key, "127.0.0.1")
        log = EventLogger(logging.getLogger("garlicfarm.node"), node=1)
        self.users = UserStore(data_dir / "users", log)
        self.draining = Draining(data_dir / "drained", {}, log)
        for name, (role, password) in PASSWORDS.items():
            self.users.add(name, role, password)  # type: ignore[arg-type]
        self.users.add("local", "admin", LOCAL_PASSWORD)
        password_file = data_dir / "local.password"
        password_file.touch(0o600)
        password_file.write_text(LOCAL_PASSWORD + "\n")

    @property
    def farm(self) -> FakeFarm:
        return self.farms["farm"]

    def ready(self) -> bool:
        return self.leader_known

    def collect(self) -> None:
        self.metrics.farm("farm").raft_commit_index.set(self.farms["farm"].commit_index)

    def client(self, url: str, user: str = "anna", **options: Any) -> AdminClient:
        options = {"pin": self.pin, "password": PASSWORDS[user][1], **options}
        return AdminClient([url], user=user, **options)

    def http(self, url: str, user: str | None = None) -> httpx.AsyncClient:
        """A client that is no more than HTTP: what answers look like to others."""
        auth = None if user is None else httpx.DigestAuth(user, PASSWORDS[user][1])
        tls = client_tls(pin=self.pin, ca=None)
        return httpx.AsyncClient(base_url=url, verify=tls, auth=auth, trust_env=False)

    async def impersonated(
        self, handle: Callable[[trio.SSLStream[trio.SocketStream]], Awaitable[None]], nursery: trio.Nursery
    ) -> str:
        """The URL of a server with the node's certificate that does what ``handle`` does."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.certificate, self.private_key)
        (listener,) = await trio.open_ssl_over_tcp_listeners(0, tls, host="127.0.0.1", https_compatible=True)
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        port = listener.transport_listener.socket.getsockname()[1]  # type: ignore[attr-defined]
        return f"https://127.0.0.1:{port}"

    async def serve(
        self, shutdown: trio.Event, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        app = create_app(self, shutdown=shutdown)  # type: ignore[arg-type]

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            async def measured(message: Any) -> None:
                self.largest_piece = max(self.largest_piece, len(message.get("body", b"")))
                await send(message)

            self.requests += 1
            self.running_requests += 1
            try:
                await app(scope, receive, measured)
            finally:
                self.running_requests -= 1

        async def make_app() -> Any:
            return counted

        await serve(
            make_app,
            bind="https://127.0.0.1:0",
            certificate=self.certificate,
            private_key=self.private_key,
            shutdown=shutdown,
            task_status=task_status,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """The node's admin listener, for as long as the block runs; its URL."""
        shutdown = trio.Event()
        async with trio.open_nursery() as nursery:
            yield await nursery.start(partial(self.serve, shutdown))
            shutdown.set()
