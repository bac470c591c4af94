"""No committed entry breaks a page: whatever is in the log, each endpoint answers, and JSON is JSON.

Entries are committed without being judged, as by a foreign or older leader. The node's view and its fold
are the real ones, over a farm in memory.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.admin.access import Authenticator
from garlicfarm.admin.app import create_app
from garlicfarm.application import ApplicationContext
from garlicfarm.feed.pages import PageReader
from garlicfarm.metrics import NodeMetrics
from garlicfarm.node.admin_view import FarmAdminView
from garlicfarm.node.publisher import PublisherApplication
from garlicfarm.node.replica import Replica
from garlicfarm.publishing.administration import ACTIONS
from garlicfarm.raft import Change, ConfChange, Entry
from garlicfarm.testing.memory_cluster import Cluster, cluster
from garlicfarm.wire.messages import ClusterServer
from tests.publishing.scripted_log import T0, destination
from tests.publishing.test_admission import ARGS

PAGES = (
    "/",
    "/?farm=farm&index=1",
    "/?farm=other",
    "/v1/node",
    "/v1/farms",
    *(
        f"/v1/farms/farm/{what}"
        for what in (
            "status",
            "log",
            "log?types=all&limit=20000",
            "state",
            "ranking",
            "ranking?statuses=true",
            "policy",
            "members",
        )
    ),
    "/metrics",
)

# What JSON libraries, Python and browsers stumble over.
ODD = [
    *("0.5", "-0", "-0.0", "1e400", "-1e-400", "1E5", "9" * 19, "9" * 20, "-" + "9" * 18),
    *("9223372036854775807", "-9223372036854775808", "18446744073709551616", "NaN", "true", "null", "{}"),
    *('""', r'"\u0000"', r'"\ud83d\ude00"', r'"\ud800"', r'"\u2028\u202e"', '"</script><b>&\'"', '"{{ 7 }}"'),
    *('"%s"', '"javascript:alert(1)"', '"https://a.example\\r\\nX: y"', '"https://ü.example"'),
]
TEXT = st.text(max_size=5).map(json.dumps)
JSON = st.recursive(
    st.sampled_from(ODD) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]")
        | st.dictionaries(TEXT, inner, max_size=3).map(
            lambda items: "{" + ",".join(f"{key}:{value}" for key, value in items.items()) + "}"
        )
    ),
    max_leaves=4,
)
DATES = st.sampled_from([0, 1, T0, T0 + 10**12, 2**32 * 1000 - 1, 2**63 - 1])
WORDS = st.sampled_from([word for word in ODD if word.startswith('"')])


def with_odd(document: dict[str, Any], odd: Sequence[tuple[str, str]]) -> bytes:
    """JSON of ``document`` where each "ODD n" stands for raw text, and one member of it too."""
    text = json.dumps(document)
    for key, raw in odd:
        text = text.replace(json.dumps(key), raw)
    return text.encode()


@st.composite
def notes(draw: st.DrawFn) -> bytes:
    config = {"by": "BY", "x": "X"}
    note = {"cluster": "farm", "date": draw(DATES), "id": 0, "sequence": draw(DATES), "config": config}
    return with_odd(note | {"y": "Y"}, [("BY", draw(WORDS)), ("X", draw(JSON)), ("Y", draw(JSON))])


@st.composite
def statuses(draw: st.DrawFn) -> bytes:
    date = draw(DATES)
    big = draw(st.sampled_from([0, 1, 2**63 - 1]))
    node = {"version": "V", "term": big, "role": "W", "commit": big, "applied": big, "admin_url": "U"}
    leaf = {"destination": destination(1), "x": "X", "leaseSetExpires": big}
    both = {"in": big, "out": big, "x": "X"}
    router = {"uptime": big, "jobLag": big, "configuredBandwidth": both, "currentBandwidth": both, "x": "X"}
    status = {
        "cluster": "farm",
        "date": date,
        "id": draw(st.sampled_from([1, 1, 1, 2, 2**31 - 1])),
        "sequence": draw(DATES),
        "config": {"node": node | {"x": "X"}, "x": "X"},
        "meta": {"publishing": draw(st.booleans()), "lastPublishedTime": big, "x": "X"},
        "router": router,
        "destinations": [leaf],
        "remoteRouters": [{"lastSeenVersion": "V", "connectTest": {"ms": big, "ok": True}, "x": "X"}],
        "x": "X",
    }
    words = [("V", draw(WORDS)), ("W", draw(WORDS)), ("U", draw(WORDS))]
    return with_odd(status, [*words, ("X", draw(JSON))])


@st.composite
def orders(draw: st.DrawFn) -> bytes:
    action = draw(st.sampled_from(sorted(ACTIONS)))
    args = ARGS[action] | ({"member": 1} if "member" in ARGS[action] else {}) | {"x": "X"}
    admin = {"action": action, "by": "BY", "args": args, "y": "X"}
    document = {"cluster": "farm", "date": draw(DATES), "id": 1, "config": {"admin": admin, "z": "X"}}
    return with_odd(document, [("BY", draw(WORDS)), ("X", draw(JSON))])


ENTRIES = notes() | statuses() | orders() | JSON.map(str.encode) | st.binary(max_size=20)


class Pages(PageReader):
    """Those of a store in memory."""

    def __init__(self, farm: Replica) -> None:
        self._farm = farm

    async def read(self, after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        await trio.lowlevel.checkpoint()
        return self._farm.store.entries(after + 1, upto + 1, max_bytes)


class Silent(PublisherApplication):
    """Posts no statuses of its own."""

    async def run(self, context: ApplicationContext) -> None:
        pass


class Users:
    def role(self, user: str) -> str:
        return "admin"

    def lookup(self, user: str) -> dict[str, str]:
        return {}


class FarmView(FarmAdminView):
    def __init__(self, farm: Replica) -> None:
        super().__init__(farm, Pages(farm), Path("/dev/null"))
        self.application = "publisher"


class OneNode:
    """A node with one farm. Implements what `create_app` asks of it."""

    node_id, version, started_monotonic, transports = 1, "0.0-test", 0.0, ("ssl",)

    def __init__(self, farm: Replica) -> None:
        self.farms = {"farm": FarmView(farm)}
        self.users = Users()
        self.metrics = NodeMetrics()

    def ready(self) -> bool:
        return True

    def collect(self) -> None:
        self.farms["farm"].collect()


async def commit(nodes: Cluster, entries: Sequence[bytes]) -> None:
    farm = nodes.replica(await nodes.leader())
    for entry in entries:
        proposal = farm.proposals.propose(partial(farm.raw.propose, (entry,)))
        index, _ = await farm.proposals.outcome(proposal)
    await nodes.applied(index)


async def look_at_all_pages(farm: Replica) -> None:
    app = create_app(cast(Any, OneNode(farm)), shutdown=trio.Event(), metrics_token="")
    transport = httpx.ASGITransport(cast(Any, app), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
        for page in PAGES:
            response = await client.get(page)
            assert response.status_code == (404 if page == "/?farm=other" else 200), page
            if response.headers["content-type"] == "application/json":
                response.json()
            elif response.headers["content-type"] == "application/jsonl":
                [json.loads(line) for line in response.text.splitlines()]
        form = {"action": "stepdown", "farm": "farm"}
        assert (await client.post("/", data=form)).status_code == 403
        deposed = await client.get("/v1/farms/farm/status?linearizable=true")
        assert deposed.status_code == 200


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    """A farm of one in memory."""

    async def main() -> None:
        async with cluster(1, application=lambda: Silent("farm")) as nodes:
            await scenario(nodes)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture(autouse=True, scope="module")
def anna() -> Any:
    """Everybody is."""

    async def user(self: Authenticator, request: object, role: str) -> str:
        return "anna"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Authenticator, "user", user)
        yield


@settings(max_examples=60)
@given(st.lists(ENTRIES, min_size=1, max_size=6))
def test_pages_answer_whatever_is_committed(entries: list[bytes]) -> None:
    async def scenario(nodes: Cluster) -> None:
        await commit(nodes, entries)
        await look_at_all_pages(nodes.replica(1))

    run(scenario)


@pytest.mark.parametrize("odd", [*ODD, "9" * 5000, '"' + "x" * 5000 + '"'], ids=lambda raw: raw[:20])
def test_pages_answer_after_an_order_with_an_odd_argument(odd: str) -> None:
    document = {"action": "staleness", "by": "alice", "args": {"R": 3, "x": "X"}}
    order = {"cluster": "farm", "date": T0, "id": 1, "config": {"admin": document}}

    async def scenario(nodes: Cluster) -> None:
        await commit(nodes, [with_odd(order, [("X", odd)])])
        await look_at_all_pages(nodes.replica(1))

    run(scenario)


@pytest.mark.parametrize(
    "endpoint", ["", "nonsense", "tcp://[x]:1", "ssl://a:99999", "\x00\ud7ff", "x" * 1000]
)
def test_pages_answer_whatever_endpoint_is_in_the_configuration(endpoint: str) -> None:
    async def scenario(nodes: Cluster) -> None:
        farm = nodes.replica(await nodes.leader())
        change = ConfChange(Change.SET, ClusterServer(1, endpoint))
        await commit(nodes, [b"x"])
        proposal = farm.proposals.propose(partial(farm.raw.propose_conf_change, change))
        index, _ = await farm.proposals.outcome(proposal)
        await nodes.applied(index)
        await look_at_all_pages(farm)

    run(scenario)
