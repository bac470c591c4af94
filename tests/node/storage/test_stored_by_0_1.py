"""What version 0.1 stored with its words, ``farm`` and ``poster``, is read as ``publisher`` and ``writer``,
and written so from then on."""

from __future__ import annotations

import json
import sqlite3
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import closing
from pathlib import Path

import pytest
import trio

from garlicfarm.client import AdminClient
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.join_token import decode_token, encode_token
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import AuthError
from garlicfarm.lab.processes import NodeProcess, free_ports
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.setup.recovery import read_survivor, recover_store
from garlicfarm.storage import read_genesis
from garlicfarm.storage.snapshots import list_snapshots, read_snapshot, write_snapshot
from tests.node.support.stored_by_0_1 import OLD_PORT, edited, started, unpacked

COMMAND = (sys.executable, "-m", "garlicfarm")
TIMEOUT_S = 240


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return unpacked(tmp_path)


def client_of(node: NodeProcess, user: str) -> AdminClient:
    """A client as one of the users that 0.1 stored."""
    password = (node.directory / f"{user.removeprefix('the-')}.password").read_text().strip()
    pin = pin_of_file(node.directory / "data" / "tls" / "node.crt")
    return AdminClient([str(node.url)], user=user, password=password, pin=pin)


def test_files_have_the_words_of_0_1(node: Path) -> None:
    assert b'"role":"poster"' in (node / "data" / "users").read_bytes()
    assert b'"application":"farm"' in _json_of((node / "join.token").read_text())
    for path in list_snapshots(node / "data" / "farms" / "farm" / "snapshots"):
        assert b'"application":"farm"' in path.read_bytes()
    assert 'application = "farm"' in (node / "garlicfarm.toml").read_text()


def test_stored_role_poster_is_read_as_writer_and_written_with_the_next_change(node: Path) -> None:
    users = UserStore(node / "data" / "users")
    assert dict(users.list()) == {
        "local": "admin",
        "the-admin": "admin",
        "the-poster": "writer",
        "the-reader": "reader",
    }
    users.add("another", "reader", "password")
    stored = [json.loads(line) for line in (node / "data" / "users").read_text().splitlines()]
    assert [user["role"] for user in stored] == ["admin", "reader", "writer", "admin", "reader"]


def test_stored_application_farm_is_read_as_publisher(node: Path) -> None:
    farms = node / "data" / "farms"
    assert [read_genesis(farms / name).application for name in ("farm", "vault")] == ["publisher", "log"]


def test_algorithm_1_is_read_as_2(node: Path) -> None:
    farms, token = node / "data" / "farms", (node / "join.token").read_text()
    for name in ("farm", "vault"):
        with closing(sqlite3.connect(farms / name / "log.db")) as db:
            assert db.execute("SELECT algorithm FROM meta").fetchall() == [(1,)]
        assert read_genesis(farms / name).algorithm == 2
    assert b'"algorithm":1' in _json_of(token)
    assert decode_token(token).algorithm == 2


def test_state_of_0_1_continues_under_algorithm_2(node: Path) -> None:
    """Both of its snapshots, and the entries after the newer one."""
    store = node / "data" / "farms" / "farm"
    for path in list_snapshots(store / "snapshots"):
        assert b'"algorithm":1' in path.read_bytes()
        snapshot = read_snapshot(path)
        assert snapshot.algorithm == 2
        assert snapshot.state.count(b'"algorithm":1,') == 1
        fold = PublisherApplication("farm")
        fold.restore(snapshot.state)
        assert fold.snapshot() == snapshot.state.replace(b'"algorithm":1,', b'"algorithm":2,')
    survivor = read_survivor(store, "farm", PublisherApplication("farm"))
    assert survivor.commit == 42
    assert b'"algorithm":2' in survivor.application.snapshot()


def test_snapshot_of_0_1_is_read_as_publisher_and_written_so(node: Path, tmp_path: Path) -> None:
    path = list_snapshots(node / "data" / "farms" / "farm" / "snapshots")[0]
    snapshot = read_snapshot(path)
    assert (snapshot.application, snapshot.index) == ("publisher", 40)
    assert snapshot.state.startswith(b'{"schema":"garlicfarm.farm/1"')
    write_snapshot(tmp_path / "new", snapshot)
    assert b'"application":"publisher","algorithm":2' in (tmp_path / "new" / path.name).read_bytes()
    assert read_snapshot(tmp_path / "new" / path.name) == snapshot


def test_recovery_of_a_store_of_0_1_writes_todays_word(node: Path) -> None:
    store = node / "data" / "farms" / "farm"
    survivor = read_survivor(store, "farm", PublisherApplication("farm"))
    recover_store(store, 1, survivor)
    (segment,) = (store / "log").glob("*.seg")
    assert b'"application":"publisher"' in segment.read_bytes()


def test_token_of_0_1_is_read_as_publisher_and_written_so(node: Path) -> None:
    token = decode_token((node / "join.token").read_text())
    assert (token.farm, token.id, token.application) == ("farm", 2, "publisher")
    assert b'"application":"publisher"' in _json_of(encode_token(token))


@pytest.mark.slow
async def test_node_of_0_1_started_and_served_has_todays_words(node: Path) -> None:
    edited(node, 0)
    snapshots = node / "data" / "farms" / "farm" / "snapshots"
    old = list_snapshots(snapshots)
    async with started(node) as farm:
        process = farm.nodes[1]
        async with process.client() as local:
            status = await local.status("farm")
            assert (status["application"], status["publisher"]) == ("publisher", None)
            assert status["first_index"] == 37
            assert {each["name"]: each["application"] for each in await local.farms()} == {
                "farm": "publisher",
                "vault": "log",
            }
            assert (await local.ranking("farm"))["farm"] == "farm"
            assert (await local.page("vault", after=0))[0].entries[-1].value == b"entry of the log\n"
        async with client_of(process, "the-reader") as reader:
            with pytest.raises(AuthError, match="needs the role writer; the-reader has reader"):
                await reader.post("vault", b"not mine")
        async with client_of(process, "the-poster") as writer:
            with pytest.raises(AuthError, match="needs the role admin; the-poster has writer"):
                await writer.policy("farm")
            first = await _note(writer, 0)
            assert await writer.post("vault", b"another") > (2, 1)
            for number in range(1, 10):  # enough for a snapshot
                await _note(writer, number)
        with trio.fail_after(TIMEOUT_S):
            while (newest := list_snapshots(snapshots)[0]) in old:  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert int(newest.name.partition("-")[0]) > 42
        assert b'"application":"publisher"' in newest.read_bytes()
        assert await farm.stop(1) == 0
        await farm.start(1)  # from the new snapshot
        async with process.client() as local:
            assert (await local.status("farm"))["commit"] >= first


@pytest.mark.slow
async def test_token_of_0_1_lets_a_node_join_with_the_same_state(node: Path, tmp_path: Path) -> None:
    """The snapshot that the new member is sent is the one that 0.1 wrote: neither takes another one."""
    port, its_port = free_ports(2)
    edited(node, port)
    file = node / "garlicfarm.toml"
    file.write_text(file.read_text().replace("snapshot_every_entries = 10", "snapshot_every_entries = 10000"))
    body = _json_of((node / "join.token").read_text())
    token = node / "join.token"
    body = body.replace(b":%d" % OLD_PORT, b":%d" % port).replace(b'entries":10,', b'entries":10000,')
    token.write_text(urlsafe_b64encode(body).decode())
    joiner = NodeProcess(2, tmp_path / "node-2")
    async with started(node) as farm:
        own = ["--endpoint", f"ssl://127.0.0.1:{its_port}", "--admin-url", "https://127.0.0.1:0"]
        with trio.fail_after(TIMEOUT_S):
            done = await trio.run_process(
                [*COMMAND, "node", "join", str(joiner.directory), "--token-file", str(token), *own],
                capture_stderr=True,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        assert 'application = "publisher"' in (joiner.directory / "garlicfarm.toml").read_text()
        store = joiner.directory / "data" / "farms" / "farm"
        assert [path.name for path in list_snapshots(store / "snapshots")] == ["40-1.snap"]
        assert b'"application":"farm"' in (store / "snapshots" / "40-1.snap").read_bytes()
        assert read_genesis(store).application == "publisher"
        farm.nodes[2] = joiner
        await farm.start(2)
        states: dict[int, dict[int, bytes]] = {1: {}, 2: {}}
        async with farm.nodes[1].client() as old, joiner.client() as new:
            with trio.fail_after(TIMEOUT_S):
                while not (both := states[1].keys() & states[2].keys()):
                    for number, client in ((1, old), (2, new)):
                        index, state = await client.state("farm")
                        states[number][index] = state
        for index in both:
            assert states[1][index] == states[2][index]


def _json_of(token: str) -> bytes:
    text = token.strip()
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def _note(client: AdminClient, number: int) -> int:
    note = {
        "cluster": "farm",
        "date": 1_795_345_500_000,
        "id": 0,
        "config": {"by": "the-poster", "n": number},
    }
    return (await client.post("farm", json.dumps(note).encode()))[0]
