"""`node join` and the rotation of the farm's secret, on real processes: who gets in, who does not, and what
is left of a join that was cut off."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from garlicfarm.cli.exits import Exit
from garlicfarm.config import load
from garlicfarm.credentials.join_token import JoinToken, decode_token, encode_token
from garlicfarm.credentials.member_credentials import read_secret_file
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import GarlicFarmError, NoQuorum, OutcomeUnknown, ProposalDropped
from garlicfarm.lab.processes import FAST, NodeProcess, ProcessFarm, free_ports, process_farm
from garlicfarm.setup.provision import FarmPlan
from tests.process_farms import leader_of, status_when

COMMAND = (sys.executable, "-m", "garlicfarm")
TIMEOUT_S = 240


class Done:
    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.out = done.stdout.decode()
        self.err = done.stderr.decode()


async def cli(*arguments: object, stdin: bytes = b"") -> Done:
    with trio.fail_after(TIMEOUT_S):
        return Done(
            await trio.run_process(
                [*COMMAND, *map(str, arguments)],
                stdin=stdin,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        )


def config(node: NodeProcess) -> Path:
    return node.directory / "garlicfarm.toml"


@asynccontextmanager
async def running(directory: Path, count: int = 3, **plan: object) -> AsyncIterator[ProcessFarm]:
    farm_plan = FarmPlan(**{"application": "log", "raft": FAST, **plan})  # type: ignore[arg-type]
    async with process_farm(directory / "farm", count, farm_plan) as farm:
        await leader_of(farm)
        yield farm


async def fill(farm: ProcessFarm, entries: int, size: int) -> int:
    """Post so many entries; the index of the last one."""
    async with farm.nodes[await leader_of(farm)].client() as client:
        for _ in range(0, entries, 100):
            async with trio.open_nursery() as nursery:
                for _ in range(min(100, entries)):
                    nursery.start_soon(client.post, farm.name, bytes(size))
        return int((await client.status(farm.name))["last_index"])


class Joiner:
    """A node that is to join: its token in a file, its directory, and the command."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory / "new"
        self.token = decode_token(text)
        self.file = directory / "token"
        self.write(self.token)
        self.port = free_ports(1)[0]
        self.said = ""  # by the last one that was cut off

    def write(self, token: JoinToken) -> None:
        self.file.unlink(missing_ok=True)
        write_private_file(self.file, f"{encode_token(token)}\n".encode())

    def command(self, *more: object) -> list[object]:
        endpoint = f"ssl://127.0.0.1:{self.port}"
        token = ["--token-file", self.file, "--endpoint", endpoint, "--admin-url", "https://127.0.0.1:0"]
        return ["node", "join", self.directory, *token, *more]

    async def join(self, *more: object) -> Done:
        return await cli(*self.command(*more))

    async def join_until(self, word: str, then: Callable[[trio.Process], object]) -> int:
        """Start to join, and do ``then`` when the command has said ``word``; its exit code."""
        command = [*COMMAND, *map(str, self.command())]
        said = bytearray()
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(trio.run_process, command, stderr=subprocess.PIPE, check=False)
            )
            with trio.fail_after(TIMEOUT_S):
                async for data in process.stderr:
                    said += data
                    if word.encode() in said:
                        break
                assert word.encode() in said, said
                then(process)
                async for data in process.stderr:
                    said += data
                self.said = said.decode()
                return int(await process.wait())
        raise AssertionError("unreachable: the block returns")

    def files(self) -> dict[str, bytes]:
        """What an interrupted join must not make anew."""
        names = ("garlicfarm.toml", "data/node.json", "data/tls/node.crt", "data/tls/node.key", "data/users")
        return {name: (self.directory / name).read_bytes() for name in names}


async def invite(farm: ProcessFarm, directory: Path, *more: object) -> Joiner:
    done = await cli("member", "token", "--config", config(farm.nodes[1]), "--out", "-", *more)
    assert done.code == 0, done.err
    assert "this token is a secret" in done.err
    return Joiner(directory, done.out)


async def seen(farm: ProcessFarm, by: int, member: int, *, reachable: bool) -> None:
    """Wait until ``by`` says of ``member`` that it is reachable, or that it is not."""
    with trio.fail_after(TIMEOUT_S):
        async with farm.nodes[by].client() as client:
            while True:
                rows = (await client.members(farm.name))["members"]
                (role,) = [row["role"] for row in rows if row["id"] == member]
                if (role not in ("unreachable", "unknown")) == reachable:
                    return
                await trio.sleep(0.05)


async def members(farm: ProcessFarm) -> list[int]:
    async with farm.nodes[await leader_of(farm)].client() as client:
        return sorted(row["id"] for row in (await client.members(farm.name))["members"])


async def take_in(farm: ProcessFarm, joiner: Joiner) -> NodeProcess:
    """Start what has joined, and wait until it has applied all."""
    node = farm.nodes[joiner.token.id] = NodeProcess(joiner.token.id, joiner.directory)
    await farm.start(node.id)
    index = await post_to_leader(farm)
    await status_when(farm, node.id, lambda status: status["applied"] >= index)
    return node


async def post_to_leader(farm: ProcessFarm) -> int:
    """The index of what is committed: one of two members that heard nothing of the other while that was not
    running leads no longer."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            with suppress(NoQuorum, OutcomeUnknown, ProposalDropped):
                async with farm.nodes[await leader_of(farm)].client() as client:
                    return (await client.post(farm.name, b"with the new one"))[0]


async def state(farm: ProcessFarm, node_id: int) -> tuple[int, bytes]:
    async with farm.nodes[node_id].client() as client:
        return await client.state(farm.name)


async def check_same_state(farm: ProcessFarm, one: int, other: int) -> None:
    """At the same index: a leader elected between the two questions commits an entry."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            first, second = await state(farm, one), await state(farm, other)
            if first[0] == second[0]:
                break
            await trio.sleep(0.05)
    assert first == second


async def test_node_joins_a_farm_that_takes_one_digest_algorithm_alone(tmp_path: Path) -> None:
    async with running(tmp_path, 1, algorithms=("SHA-256",)) as farm:
        assert load(config(farm.nodes[1]), {}).farm[0].algorithms == ("SHA-256",)
        joiner = await invite(farm, tmp_path)
        done = await joiner.join()
        assert done.code == Exit.OK, done.err
        assert load(joiner.directory / "garlicfarm.toml", {}).farm[0].algorithms == ("SHA-256",)


@pytest.mark.slow
async def test_node_joins_serves_and_leaves(tmp_path: Path) -> None:
    async with running(tmp_path) as farm:
        await fill(farm, 150, 100)
        file = tmp_path / "written"
        done = await cli(
            "member", "token", "--config", config(farm.nodes[1]), "--out", file, "--expires", "2m"
        )
        assert (done.code, done.out) == (0, "")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text().strip() not in done.err
        again = await cli("member", "token", "--config", config(farm.nodes[1]), "--out", file)
        assert (again.code, "never overwritten" in again.err) == (Exit.USAGE, True)
        joiner = Joiner(tmp_path, file.read_text())
        assert joiner.token.id == 4
        assert set(joiner.token.endpoints) == {1, 2, 3}
        assert joiner.token.raft == FAST

        done = await joiner.join()
        assert done.code == 0, done.err
        assert done.out == ""
        assert "invited" in done.err
        assert "catching up, entries" in done.err
        assert f"garlicfarm node start --config {joiner.directory}/garlicfarm.toml" in done.err
        assert await members(farm) == [1, 2, 3, 4]
        done = await joiner.join()
        assert (done.code, "is a member" in done.err) == (0, True), "to join twice changes nothing"

        node = await take_in(farm, joiner)
        await check_same_state(farm, 4, await leader_of(farm))
        at = config(farm.nodes[await leader_of(farm)])
        await farm.stop(4)
        file, port = config(node), free_ports(1)[0]
        file.write_text(file.read_text().replace(f":{joiner.port}", f":{port}"))
        await farm.start(4)
        (moved,) = [section.endpoint for section in load(file, {}).farm]
        assert f":{port}?pin=" in moved
        wrong = await cli("member", "set", 4, moved.replace(str(port), str(joiner.port)), "--config", at)
        assert (wrong.code, "cannot be dialled" in wrong.err) == (Exit.ERROR, True), wrong.err
        done = await cli("member", "set", 4, moved, "--config", at)
        assert done.code == 0, done.err
        done = await cli("member", "list", "--config", at, "-o", "json")
        assert [row["endpoint"] for row in msgspec.json.decode(done.out)["members"] if row["id"] == 4] == [
            moved
        ]
        index, _ = await state(farm, 4)
        async with node.client() as client:
            assert (await client.post(farm.name, b"through the moved one"))[0] > index
        done = await cli("member", "remove", 4, "--config", at, "-o", "json")
        assert done.code == 0, done.err
        body = msgspec.json.decode(done.out)
        assert (body["before"]["members"], body["after"]["members"], body["after"]["can_lose"]) == (4, 3, 1)
        assert node.process is not None
        with trio.fail_after(TIMEOUT_S):
            assert await node.process.wait() == Exit.REMOVED
        node.process = None
        assert await members(farm) == [1, 2, 3]


@pytest.mark.slow
async def test_node_joins_a_farm_of_one_whose_log_was_shortened_and_both_agree(tmp_path: Path) -> None:
    kept = {"snapshot_every_entries": 50, "keep_entries": 20}
    async with running(tmp_path, 1, retention=kept) as farm:
        await fill(farm, 300, 100)
        await status_when(farm, 1, lambda status: status["first_index"] > 100)
        joiner = await invite(farm, tmp_path)
        done = await joiner.join()
        assert done.code == 0, done.err
        node = await take_in(farm, joiner)
        async with node.client() as client:
            status = await client.status(farm.name)
        assert status["first_index"] > 100
        await check_same_state(farm, 2, 1)


@pytest.mark.slow
async def test_join_cut_off_goes_on_with_the_same_files(tmp_path: Path) -> None:
    async with running(tmp_path) as farm:
        last = await fill(farm, 100, 300_000)
        joiner = await invite(farm, tmp_path)
        code = await joiner.join_until("invited", lambda process: process.kill())
        assert code == -signal.SIGKILL
        before = joiner.files()
        code = await joiner.join_until("catching up", lambda process: process.send_signal(signal.SIGINT))
        assert (code, "it continues where it stopped" in joiner.said) == (Exit.INTERRUPTED, True), joiner.said
        done = await joiner.join()
        assert done.code == 0, done.err
        assert joiner.files() == before
        shown = re.findall(r"catching up, entries \d+ of (\d+)", done.err)
        assert shown, done.err
        assert min(map(int, shown)) >= last, "how much there is, though the leader was asked before"
        assert await members(farm) == [1, 2, 3, 4]
        node = await take_in(farm, joiner)
        async with node.client() as client:
            assert (await client.status(farm.name))["last_index"] > last


@pytest.mark.slow
async def test_join_goes_on_under_the_next_leader(tmp_path: Path) -> None:
    async with running(tmp_path) as farm:
        await fill(farm, 100, 300_000)
        joiner = await invite(farm, tmp_path)
        first = await leader_of(farm)
        process = farm.nodes[first].process
        assert process is not None
        code = await joiner.join_until("invited", lambda _: process.send_signal(signal.SIGKILL))
        farm.nodes[first].process = None
        assert code == 0
        await take_in(farm, joiner)  # two of four are no quorum
        assert await leader_of(farm) != first
        assert await members(farm) == [1, 2, 3, 4]


OTHERS: list[tuple[dict[str, object], Exit, str]] = [
    ({"id": 2}, Exit.ERROR, "ids are used once"),
    ({"farm_id": bytes(16)}, Exit.AUTH, "member token"),
    ({"farm_secret": bytes(32)}, Exit.AUTH, "member token"),
    ({"farm": "barn"}, Exit.ERROR, "check its name"),
    ({"expires_s": 1000}, Exit.AUTH, "expired at 1970-01-01"),
]


@pytest.mark.slow
async def test_join_that_is_refused_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    quick = {**FAST, "election_timeout_min_s": 0.6, "election_timeout_max_s": 1.2, "rpc_timeout_s": 1.0}
    async with running(tmp_path, raft=quick) as farm:
        joiner = await invite(farm, tmp_path)
        told = await cli("member", "token", "--id", 2, "--config", config(farm.nodes[1]), "--out", "-")
        assert (told.code, told.out) == (Exit.USAGE, "")
        assert "ids are used once" in told.err
        for change, code, words in OTHERS:
            joiner.write(msgspec.structs.replace(joiner.token, **change))
            done = await joiner.join()
            assert (done.code, words in done.err) == (code, True), (change, done.err)
            assert done.err.count("error:") == 1
            assert not joiner.directory.exists(), change
        joiner.write(joiner.token)
        joiner.file.chmod(0o644)
        done = await joiner.join()
        assert (done.code, "chmod 600" in done.err) == (Exit.USAGE, True)
        done = await cli(*joiner.command()[:4], "-", *joiner.command()[5:], stdin=b"nonsense")
        assert (done.code, "not a join token" in done.err) == (Exit.USAGE, True)
        joiner.file.chmod(0o600)

        done = await joiner.join("--listen", "ssl://127.0.0.1:0")
        assert (done.code, "cannot connect to" in done.err) == (Exit.UNREACHABLE, True), done.err
        assert not (joiner.directory / "data").exists()

        followers = sorted(set(farm.nodes) - {await leader_of(farm)})
        for node_id in followers:
            await farm.kill(node_id)
        done = await joiner.join("--timeout", 2)
        assert (done.code, "it continues where it stopped" in done.err) == (Exit.DEADLINE, True), done.err
        done = await joiner.join()
        assert done.code == Exit.NO_QUORUM, done.err
        for node_id in set(farm.nodes) - set(followers):
            await farm.kill(node_id)
        joiner.directory = tmp_path / "another"
        done = await joiner.join()
        assert (done.code, "does a member run" in done.err) == (Exit.UNREACHABLE, True), done.err


@pytest.mark.slow
async def test_join_into_the_directory_of_another_node_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as farm:
        joiner = await invite(farm, tmp_path)
        joiner.directory = tmp_path / "other"
        assert (await cli("node", "init", joiner.directory, "--host", "a.example", "--id", 4)).code == 0
        before = joiner.files()
        done = await joiner.join()
        assert (done.code, "nothing was overwritten" in done.err) == (Exit.USAGE, True)
        assert joiner.files() == before


def rewrite(farm: ProcessFarm, *lines: str) -> None:
    for node in farm.nodes.values():
        (node.directory / "data" / "secrets" / f"{farm.name}.secret").write_text(
            "".join(f"{x}\n" for x in lines)
        )


async def restart_in_turn(farm: ProcessFarm, posted: list[int]) -> None:
    """As the guide says: one after another, each well before the next; the farm takes posts all the while."""
    for node_id in farm.nodes:
        assert await farm.stop(node_id) == 0
        await farm.start(node_id)
        with trio.fail_after(TIMEOUT_S):
            while True:
                try:
                    async with farm.nodes[node_id].client() as client:
                        posted.append((await client.post(farm.name, b"during the rotation"))[0])
                        if (await client.status(farm.name))["fault_tolerance"] == 1:
                            break
                except GarlicFarmError:
                    pass
                await trio.sleep(0.1)


@pytest.mark.slow
async def test_farm_secret_is_rotated_while_the_farm_serves(tmp_path: Path) -> None:
    async with running(tmp_path) as farm:
        early = await invite(farm, tmp_path)
        file = farm.nodes[1].directory / "data" / "secrets" / "farm.secret"
        old = file.read_text().strip()
        new = (await cli("member", "token", "--config", config(farm.nodes[1]), "--out", "-")).out[:43]
        posted: list[int] = []
        for lines in ((old, new), (new, old), (new,)):
            rewrite(farm, *lines)
            await restart_in_turn(farm, posted)
            if len(lines) == 2:
                done = await cli("member", "token", "--config", config(farm.nodes[1]), "--out", "-")
                assert (done.code, "finish the rotation" in done.err) == (Exit.USAGE, True)
        assert len(set(posted)) == len(posted) >= 9
        assert old not in file.read_text()
        done = await early.join()
        assert (done.code, "member token" in done.err) == (Exit.AUTH, True), done.err
        late = await invite(farm, tmp_path)
        assert late.token.farm_secret == read_secret_file(file)[0] != early.token.farm_secret
        done = await late.join()
        assert done.code == 0, done.err


@pytest.mark.slow
async def test_quorum_is_kept_and_a_leader_that_is_removed_hands_over_first(tmp_path: Path) -> None:
    """Asked with an admin that all nodes know, the command finds the new leader by itself."""
    async with running(tmp_path) as farm:
        password = tmp_path / "password"
        write_private_file(password, b"the word of alice")
        for node in farm.nodes.values():
            UserStore(node.directory / "data" / "users").add("alice", "admin", "the word of alice")

        def who() -> list[object]:
            pins = {i: endpoint.partition("?pin=")[2] for i, endpoint in farm.endpoints.items()}
            urls = [f"--node={node.url}?pin={pins[i]}" for i, node in farm.nodes.items()]
            return [*urls, "--user", "alice", "--password-file", password]

        first = await leader_of(farm)
        second, third = sorted({1, 2, 3} - {first})
        await farm.kill(third)
        await seen(farm, first, third, reachable=False)
        done = await cli("member", "remove", second, *who())
        assert (done.code, "use --force" in done.err) == (Exit.ERROR, True), done.err
        assert "2 of 3 members reachable, 2 needed; after the change 1 of 2" in done.err
        async with farm.nodes[first].client() as client:
            await trio.sleep(FAST["election_timeout_max_s"])  # the leader itself is not that quick
            with pytest.raises(ProposalDropped, match="too few members heard"):
                await client.remove_member(farm.name, second)
        await farm.start(third)
        await seen(farm, first, third, reachable=True)

        done = await cli("member", "remove", first, *who())
        assert done.code == 0, done.err
        process = farm.nodes[first].process
        assert process is not None
        with trio.fail_after(TIMEOUT_S):
            assert await process.wait() == Exit.REMOVED
        farm.nodes[first].process = None
        assert await members(farm) == [second, third]
        leads = await leader_of(farm)
        (other,) = {second, third} - {leads}
        done = await cli("leader", "stepdown", "--to", other, *who(), "-o", "json")
        assert (done.code, msgspec.json.decode(done.out)["leader"]) == (0, other), done.err
        assert await leader_of(farm) == other
        done = await cli("leader", "stepdown", "--to", first, *who())
        assert (done.code, "no such member" in done.err) == (Exit.ERROR, True), done.err
