"""Administration through the log, by the command line and three whole nodes: all obey alike."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from prometheus_client import generate_latest

from garlicfarm.application import Origin
from garlicfarm.cli import run
from garlicfarm.client.local_node import local_node
from garlicfarm.config import load
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import EntryRefused, ProposalDropped, Removed, first_error
from garlicfarm.i2p.encoding import b32_of_hash, encode
from garlicfarm.raft import ConfChange
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import MessageType, Request
from garlicfarm_plugin_spark.node_reader import NodeReader
from tests.node.support.cluster import Cluster, cluster, password_of, simulated_member
from tests.running import wait_until

HANG_GUARD_S = 120.0

HASH = encode(bytes(range(32)))
B32 = "aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypq.b32.i2p"


@asynccontextmanager
async def farm_of_three(directory: Path) -> AsyncIterator[Cluster]:
    members = {node_id: simulated_member(node_id) for node_id in (1, 2, 3)}
    async with cluster(directory, 3, members=members, application="publisher") as nodes:
        await nodes.leader()
        yield nodes


async def command(nodes: Cluster, node_id: int, *arguments: str) -> int:
    config = str(nodes.directories[node_id] / "garlicfarm.toml")
    with trio.fail_after(HANG_GUARD_S):
        return await trio.to_thread.run_sync(partial(run, [*arguments, "--config", config]))


async def same_bytes(nodes: Cluster) -> bytes:
    """The state of all nodes once they have applied the same entries."""
    with trio.fail_after(HANG_GUARD_S):
        while True:
            farms = [nodes.replica(node_id) for node_id in nodes.running]
            if len({farm.applied_index for farm in farms}) == 1:
                (state,) = {farm.application.snapshot() for farm in farms}
                return state
            await trio.sleep(0.01)


def policy(nodes: Cluster, node_id: int) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(msgspec.json.encode(nodes.node(node_id).farms["farm"].policy()))
    return body


async def test_every_action_is_one_entry_that_all_nodes_obey_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        assert await command(nodes, 1, "farm", "exclude", B32) == 0
        assert await command(nodes, 2, "farm", "exclude", encode(bytes(32))) == 0
        assert await command(nodes, 3, "farm", "include", encode(bytes(32))) == 0
        assert await command(nodes, 1, "farm", "override", "2", "on") == 0
        assert await command(nodes, 2, "farm", "override", "3", "off") == 0
        assert await command(nodes, 2, "farm", "override", "3", "none") == 0
        capsys.readouterr()
        settings = ["interval=20s", "R=4", "lease=7s", "margin=60000", "lifetime=2h"]
        weights = ["weight.job_lag=10", "weight.tunnel_health=20"]
        assert await command(nodes, 3, "farm", "set", *settings, *weights, "-o", "jsonl") == 0
        done = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["action"] for row in done] == ["interval", "staleness", "lease", "publisher", "weights"]

        state = json.loads(await same_bytes(nodes))
        told = policy(nodes, 1)
        assert told == policy(nodes, 2) == policy(nodes, 3)
        assert {key: told[key] for key in ("interval_ms", "R", "margin", "lifetime_ms")} == {
            "interval_ms": 20_000,
            "R": 4,
            "margin": 60_000,
            "lifetime_ms": 7_200_000,
        }
        assert (told["weights"]["job_lag"], told["weights"]["tunnel_health"]) == (10, 20)
        assert told["excluded"] == [HASH]
        assert told["overrides"] == {"2": "on"}
        assert state["policy"] == {key: told[key] for key in state["policy"]}
        orders = told["orders"]
        changed = {"interval", "staleness", "lease", "publisher", "weights", "override 2", f"exclude {HASH}"}
        assert orders.keys() == changed
        assert {order["by"] for order in orders.values()} == {"local"}
        indexes = {row["action"]: row["index"] for row in done}
        assert indexes == {name: orders[name]["index"] for name in indexes}

        assert await command(nodes, 2, "farm", "show") == 0
        lease = r"\n  lease        7 s(, one of [\d.]+ s may still run)? \(by local, .*\)\n"
        assert re.search(lease, capsys.readouterr().out)

        await nodes.stop(2)
        await nodes.start(2)
        await nodes.leader()
        await same_bytes(nodes)
        assert (policy(nodes, 2))["orders"] == orders


async def test_silent_members_are_removed_by_an_order_that_says_so_where_it_removes_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        assert await command(nodes, 1, "farm", "set", "min_members=4", "forget_after=7d") == 0
        assert (
            "none of the 3 members is removed: that needs more than min_members=4" in capsys.readouterr().err
        )
        assert policy(nodes, 1)["forget"] == {"after_ms": 604_800_000, "min_members": 4}
        assert await command(nodes, 1, "farm", "show") == 0
        shown = r"\n  forget       members silent for 7d, while there are more than 4 \(by local, .*\)\n"
        assert re.search(shown, capsys.readouterr().out)
        assert await command(nodes, 1, "farm", "set", "forget_after=off") == 0
        assert capsys.readouterr().err == ""
        assert not {"forget"} & {*policy(nodes, 1), *policy(nodes, 1)["orders"]}


async def test_farm_without_statuses_takes_no_order_to_remove_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path, application="log") as nodes:
        await nodes.leader()
        assert await command(nodes, 1, "farm", "set", "forget_after=7d") == 1
        assert "the application log has nothing to administer" in capsys.readouterr().err


async def test_who_is_no_admin_administers_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        before = policy(nodes, 1)
        secret = tmp_path / "alice"
        secret.touch(0o600)
        secret.write_text(password_of("alice"))
        as_alice = ("--user", "alice", "--password-file", str(secret))
        for arguments in (
            ("exclude", B32),
            ("override", "1", "off"),
            ("set", "R=4"),
            ("set", "weight.job_lag=1"),
        ):
            assert await command(nodes, 1, "farm", *arguments, *as_alice) == 4
            assert "needs the role admin; alice has writer" in capsys.readouterr().err
        assert {**policy(nodes, 1), "index": 0} == {**before, "index": 0}
        UserStore(nodes.data(1) / "users").add("alice", "admin", password_of("alice"))
        assert await command(nodes, 1, "farm", "set", "R=4", "-o", "jsonl", *as_alice) == 0
        await nodes.applied(json.loads(capsys.readouterr().out)["index"])  # a follower's word comes before
        assert (policy(nodes, 1))["orders"]["staleness"]["by"] == "alice"


async def test_what_cannot_be_obeyed_is_refused_and_nothing_of_it_is_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        for arguments in (("farm", "override", "9", "off"), ("member", "remove", "9")):
            assert await command(nodes, 1, *arguments) == 1
            assert ": no such member. See `garlicfarm member list`" in capsys.readouterr().err
        # The first one is right, and is not sent: the second one is wrong.
        assert await command(nodes, 1, "farm", "set", "R=4", "weight.job_lag=16") == 2
        assert "would add up to 101, not to 100: weight.router_uptime=20" in capsys.readouterr().err
        assert (policy(nodes, 1))["orders"] == {}


async def test_show_prints_every_statistic_of_every_member(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        fold = nodes.replica().application.fold  # type: ignore[attr-defined]
        await wait_until(lambda: len(fold.scores()) >= 3)
        assert await command(nodes, 1, "farm", "exclude", B32) == 0
        await same_bytes(nodes)
        capsys.readouterr()
        assert await command(nodes, 2, "farm", "show") == 0
        text = capsys.readouterr().out
        assert await command(nodes, 2, "farm", "show", "-o", "json") == 0
        body = json.loads(capsys.readouterr().out)
        assert body["schema"] == "garlicfarm.ranking/1"
        assert f"exclude {HASH} (by local, " in text
        assert [row["id"] for row in body["members"] if row["status"]] != []
        for row in body["members"]:
            block = text.partition(f"\nmember {row['id']}: ")[2].partition("\nmember")[0]
            for path in paths("", row["status"]):
                assert f"\n    {path} = " in block
            assert "router.uptime" in block
            for name, part in row["parts"].items():
                assert f" {part['value']} at {part['weight']} %" in block, name
            assert row["measured"] in (95, 100)  # the first status knows of no handshake yet
            assert f"  score {row['score']}, {row['measured']} % of it measured, leaves at cost " in block
            for sentence in row["why"]:
                assert f"\n  {sentence}\n" in block
            assert " s old, entry " in block
        assert await command(nodes, 2, "farm", "show", "-o", "jsonl") == 0
        assert len(capsys.readouterr().out.splitlines()) == 3


async def test_show_prints_whether_stored_rankings_are_the_nodes_own_and_who_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        with trio.fail_after(HANG_GUARD_S):
            for batch in range(100):
                await same_bytes(nodes)
                ranking = nodes.node(1).farms["farm"].ranking()
                for query, publisher in (("alike", ranking["publisher"]), ("other", 9)):
                    body = msgspec.json.encode(ranking | {"publisher": publisher})
                    rankings = nodes.node(2).farms["farm"].rankings
                    index = ranking["index"]
                    await rankings.put(query, batch, body, asof=index, run="r", user="alice")
                rows = rankings.queries()
                if all(row["comparison"] for row in rows):
                    break
                await trio.sleep(0.05)  # statuses come as they come: node 2 was ahead
        assert [row["comparison"]["equal"] for row in rows] == [True, False]
        node = nodes.node(2)
        config = load(nodes.directories[2] / "garlicfarm.toml", {})
        with closing(NodeReader(local_node(config))) as reader:
            await trio.to_thread.run_sync(reader.report, "farm", "alike", 1)
        assert await command(nodes, 2, "farm", "show") == 0
        text = capsys.readouterr().out
        assert re.search(
            r"\n  query alike of alice: batch \d+ as of index \d+, .*Z; equal at index \d+\n", text
        )
        assert re.search(r"\n  query other of alice: .*; different at index \d+: publisher 9, here ", text)
        assert re.search(
            r"\n  reader alike of local: has read up to index 1, \d+ behind, .* s ago; since ", text
        )
        node.collect()
        shown = generate_latest(node.metrics.registry).decode()
        assert 'garlicfarm_farm_ranking_equal{farm="farm",query="alike"} 1.0' in shown
        assert 'garlicfarm_farm_ranking_equal{farm="farm",query="other"} 0.0' in shown

        await nodes.stop(2)
        await nodes.start(2)
        again = nodes.node(2).farms["farm"].rankings
        assert [(row["query"], row["comparison"]) for row in again.queries()] == [
            ("alike", None),
            ("other", None),
        ]
        assert await again.body("other") == body


def paths(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from paths(f"{path}.{key}".lstrip("."), inner)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from paths(f"{path}[{place}]", inner)
    else:
        yield path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["set"], "Missing argument"),
        (["set", "R"], "R: it must be NAME=VALUE"),
        (["set", "R=3", "R=4"], "each name once"),
        (["set", "R=2"], "R must be 3 to 1000"),
        (["set", "R=-3"], "R=-3: it must be a whole number"),
        (["set", "R=٣"], "it must be a whole number"),
        (["set", "interval=10x"], "interval=10x: it must be seconds, or a number and one of ms, s, m, h, d"),
        (["set", "interval=999ms"], "interval must be 1s to 1h"),
        (["set", "interval=2h"], "interval must be 1s to 1h"),
        (["set", "control=9s"], "control must be 10s to 1h"),
        (["set", "forget_after=0"], "forget_after must be 1h to 365d, or off"),
        (["set", "forget_after=59m"], "forget_after must be 1h to 365d, or off"),
        (["set", "forget_after=366d"], "forget_after must be 1h to 365d, or off"),
        (["set", "forget_after=never"], "forget_after=never: it must be seconds, or a number"),
        (
            ["set", "forget_after=7d", "min_members=2"],
            "min_members must be 3 to 1000: two members can lose no",
        ),
        (["set", "min_members=3"], "min_members needs a time beside it"),
        (["set", "min_members=3", "forget_after=off"], "min_members needs a time beside it"),
        (["set", "margin=1000001"], "margin must be 0 to 1000000"),
        (["set", "lifetime=1s"], "lifetime must be 10m to 18h"),
        (
            ["set", "speed=9"],
            "speed: there is no such parameter; the parameters are interval, R, lease, control",
        ),
        (["set", "weight.luck=9"], "weight.luck: there is no such part; the parts are router_uptime"),
        (["override", "0", "on"], "0 is not in the range"),
        (["override", "1", "perhaps"], "is not one of"),
        (["exclude", "short"], "HASH must be 44 characters of I2P base64, or 52 of base32"),
        (["exclude", encode(bytes(31))], "HASH must be 44 characters"),
        (["include", "abc.b32.i2p"], "HASH must be 44 characters"),
    ],
)
def test_nonsense_is_told_with_the_field_before_a_node_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    # There is no such node: who asked it would end with 2 and another message, or with 3.
    nobody = ["--node", "https://127.0.0.1:1", "--user", "x", "--password-file", str(tmp_path / "x")]
    assert run(["farm", *arguments, *nobody]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("refused", "requests"), [("entry", 4), ("change", 1), ("change by the leader", 1)])
async def test_removal_that_is_refused_three_times_during_a_transfer_is_one_order_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, requests: int
) -> None:
    """Before the order is in the log the command repeats its request, after that the node repeats its own."""
    refusals, asked_for = [ProposalDropped(Refusal.LEADERSHIP_IN_TRANSFER)] * 3, []
    async with farm_of_three(tmp_path) as nodes:
        leader = await nodes.leader()
        asked, gone = sorted({1, 2, 3} - {leader})
        if refused == "change by the leader":
            asked = leader
        raw = nodes.replica(leader).raw
        propose_conf_change = raw.propose_conf_change
        view, proposals = nodes.node(asked).farms["farm"], nodes.replica(asked).proposals
        peers = nodes.replica(asked).peers
        change_member, post, call = view.change_member, proposals.post, peers.call

        async def counted(*arguments: Any) -> tuple[int, int]:
            asked_for.append(arguments)
            return await change_member(*arguments)

        async def refusing_orders(entry: bytes, origin: Origin) -> tuple[int, int]:
            if origin.user and refusals:
                raise refusals.pop()
            return await post(entry, origin)

        async def refusing_call(member: int, request: Request) -> object:
            if refusals and request.type is MessageType.REMOVE_SERVER_REQUEST:
                raise refusals.pop()
            return await call(member, request)

        def refusing_proposal(change: ConfChange, token: int) -> None:
            if refusals:
                raise refusals.pop()
            propose_conf_change(change, token)

        monkeypatch.setattr(view, "change_member", counted)
        monkeypatch.setattr(
            *{
                "entry": (proposals, "post", refusing_orders),
                "change": (peers, "call", refusing_call),
                "change by the leader": (raw, "propose_conf_change", refusing_proposal),
            }[refused]
        )
        monkeypatch.setattr("garlicfarm.cli.member.PATIENCE_S", 25.0)
        assert await command(nodes, asked, "member", "remove", str(gone)) == 0
        pages = [page async for page in view.entries(0, 1 << 20, upto=view.commit_index)]
        entries = [entry.value for page in pages for entry in page if b'"admin"' in entry.value]
        orders = [json.loads(entry)["config"]["admin"] for entry in entries]
    assert refusals == []
    assert [(order["action"], order["by"]) for order in orders] == [("remove", "local")]
    assert len(asked_for) == requests


@pytest.mark.parametrize("removes", ["leader", "follower"])
async def test_follower_removes_another_member_and_the_log_says_who_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], removes: str
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        leader = await nodes.leader()
        asked, other = sorted({1, 2, 3} - {leader})
        gone = leader if removes == "leader" else other
        assert await command(nodes, asked, "member", "remove", str(gone), "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["after"]["members"] == 2
        left = nodes.replica(asked)
        assert gone not in [server.id for server in left.configuration.servers]
        assert policy(nodes, asked)["orders"][f"remove {gone}"]["by"] == "local"


@pytest.mark.parametrize(
    ("leads", "by"), [(True, "member remove"), (False, "node leave")], ids=["leader", "follower"]
)
async def test_member_is_removed_from_its_own_machine_and_the_log_says_who_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], leads: bool, by: str
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        leader = await nodes.leader()
        leaving = leader if leads else next(node_id for node_id in nodes.running if node_id != leader)
        running = nodes.running[leaving]
        words = [*by.split(), *([str(leaving)] if by == "member remove" else [])]
        for _ in range(20):
            if not await command(nodes, leaving, *words, "-o", "json"):
                break
            assert "too few members heard" in capsys.readouterr().err  # on a machine that stood still
        body = json.loads(capsys.readouterr().out)
        with trio.fail_after(HANG_GUARD_S):
            await running.ended.wait()
        assert running.error is not None
        assert isinstance(first_error(running.error), Removed)
        successor = await nodes.leader()
        await nodes.applied(body["index"])
        assert leaving not in [server.id for server in nodes.replica(successor).configuration.servers]
        assert policy(nodes, successor)["orders"][f"remove {leaving}"]["by"] == "local"


async def test_whoever_asks_the_node_that_took_an_order_finds_it_there(tmp_path: Path) -> None:
    async with farm_of_three(tmp_path) as nodes:
        with trio.fail_after(HANG_GUARD_S):
            for turn in range(8):
                for node_id in nodes.running:
                    view = nodes.node(node_id).farms["farm"]
                    hash_ = encode(bytes([turn, node_id]) * 16)
                    index, _ = await view.administer("exclude", {"hash": hash_}, "admin")
                    assert view.commit_index >= index
                    assert hash_ in json.dumps(policy(nodes, node_id)["excluded"])


async def test_removal_that_is_refused_leaves_no_order_in_the_log(tmp_path: Path) -> None:
    async with farm_of_three(tmp_path) as nodes:
        leader = await nodes.leader()
        first, second = sorted({1, 2, 3} - {leader})
        view = nodes.node(leader).farms["farm"]
        for gone in (first, second):
            await view.change_member("remove", gone, "", True, "local")
        for refused, reason in ((leader, Refusal.THE_LAST_MEMBER), (first, Refusal.NO_SUCH_MEMBER)):
            with pytest.raises(ProposalDropped, match=reason):
                await view.change_member("remove", refused, "", False, "local")
        assert f"remove {leader}" not in policy(nodes, leader)["orders"]


async def test_ban_at_one_member_is_in_force_at_all_and_what_cannot_be_obeyed_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with farm_of_three(tmp_path) as nodes:
        assert await command(nodes, 1, "publish", "ban", B32) == 0
        assert await command(nodes, 2, "publish", "allow", encode(bytes(32))) == 0
        assert "only clients on the access list are served: 1" in capsys.readouterr().err
        assert await command(nodes, 3, "farm", "set", "control=30s") == 0
        await same_bytes(nodes)
        assert all(policy(nodes, one)["control_ms"] == 30_000 for one in (1, 2, 3))
        told = [policy(nodes, one)["clients"] for one in (1, 2, 3)]
        assert told[0] == told[1] == told[2]
        assert ([*told[0]["banned"]], [*told[0]["allowed"]]) == ([HASH], [encode(bytes(32))])
        capsys.readouterr()
        assert await command(nodes, 2, "publish", "clients", "-o", "jsonl") == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["client"], row["is"]) for row in rows if row["is"] == "banned"] == [(B32, "banned")]
        assert await command(nodes, 2, "publish", "show") == 0
        assert "1 banned; only 1 on the access list are served" in capsys.readouterr().out
        assert await command(nodes, 2, "farm", "show") == 0
        text = capsys.readouterr().out
        assert "\n  clients      1 banned, 1 on the access list\n" in text
        assert "\n  control      30 s (by local, " in text
        for node in map(nodes.node, nodes.running):
            node.collect()
            shown = generate_latest(node.metrics.registry).decode()
            assert 'garlicfarm_farm_clients{farm="farm",list="banned"} 1.0' in shown
            assert 'garlicfarm_farm_clients{farm="farm",list="allowed"} 1.0' in shown

        assert await command(nodes, 3, "publish", "unban", B32) == 0
        leaf = nodes.replica(1).application.fold.leases()[0].hash  # type: ignore[attr-defined]
        for arguments, why in (
            (("unban", B32), "not banned; `garlicfarm publish clients` lists all"),
            (("disallow", B32), "not on the access list; `garlicfarm publish clients` lists all"),
            (("ban", b32_of_hash(leaf)), "the farm's own; name the destination of a client"),
        ):
            capsys.readouterr()
            assert await command(nodes, 3, "publish", *arguments) == 1
            assert why in capsys.readouterr().err
        view = nodes.node(1).farms["farm"]
        with pytest.raises(EntryRefused, match="in the past; by the clocks of the farm's members"):
            await view.administer("ban", {"hash": HASH, "until_ms": 1_600_000_000_000}, "admin")
