"""Several farms in one process: apart in everything but their listeners."""

from __future__ import annotations

import errno
import logging
import threading
from functools import partial
from pathlib import Path
from shutil import copy2, copytree
from typing import Any

import pytest
import trio

from garlicfarm.credentials.member_credentials import member_password, read_secret_file
from garlicfarm.errors import (
    AuthError,
    ConfigError,
    EntryRefused,
    OutcomeUnknown,
    RemoteProtocolError,
    StorageError,
)
from garlicfarm.log_application import LogApplication
from garlicfarm.node.replica import Replica
from garlicfarm.raft import Persist
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm
from garlicfarm.storage import Writer
from garlicfarm.storage.appender import Appender
from tests.node.support.cluster import ALONE, ALONE_AND_QUICK, Cluster, client_request, cluster
from tests.running import told, wait_until


def add_farm(nodes: Cluster, directory: Path, name: str, **farm: Any) -> bytes:
    """A second farm of node 1 alone; its id."""
    plan = FarmPlan(**{"name": name, "application": "log", "raft": ALONE, **farm})
    made = create_farm(directory / name, {1: MemberPlan(endpoint="ssl://127.0.0.1:1")}, plan)
    source = made.directories[1]
    copytree(source / "data" / "farms" / name, nodes.data(1) / "farms" / name)
    copy2(source / "data" / "secrets" / f"{name}.secret", nodes.data(1) / "secrets")
    table = (source / "garlicfarm.toml").read_text().partition("[[farm]]")
    with (nodes.directories[1] / "garlicfarm.toml").open("a") as file:
        file.write("\n" + "".join(table[1:]))
    return made.farm_id


async def committing(nodes: Cluster, *farms: str) -> None:
    for name in farms:
        with trio.fail_after(240):
            farm = nodes.replica(name=name)
            while not farm.is_leader:
                await farm.core.wait_leader_change()
            await farm.post(name.encode())


async def test_two_farms_share_a_listener_and_nothing_else(tmp_path: Path) -> None:
    async with cluster(tmp_path, start=False) as nodes:
        farm_id = add_farm(nodes, tmp_path, "second")
        await nodes.start()
        await committing(nodes, "farm", "second")
        one, two = await nodes.login("9"), await nodes.login(farm="second")
        for wire, value in ((one, b"to the first"), (two, b"to the second")):
            source = 9 if wire is one else 0
            answer = await wire.ask(client_request(value, source=source, destination=1))
            assert answer.accepted
        logs = [
            [entry.value for entry in nodes.replica(name=name).store.entries(2, 4, 1000)]
            for name in ("farm", "second")
        ]
        assert logs == [[b"farm", b"to the first"], [b"second", b"to the second"]]
        secret = read_secret_file(nodes.data(1) / "secrets" / "second.secret")[0]
        await nodes.login("9", member_password(secret, farm_id, 9), farm="second")
        with pytest.raises(AuthError):
            await nodes.login("9", nodes.password(9), farm="second")
        with pytest.raises(AuthError):
            await nodes.login("9", member_password(secret, farm_id, 9))


async def test_listener_that_names_one_farm_does_not_know_the_other(tmp_path: Path) -> None:
    async with cluster(tmp_path, start=False) as nodes:
        add_farm(nodes, tmp_path, "second")
        file = nodes.directories[1] / "garlicfarm.toml"
        file.write_text(file.read_text().replace("[[listener]]", '[[listener]]\nfarms = ["farm"]'))
        await nodes.start()
        await committing(nodes, "farm", "second")
        await nodes.login()
        with pytest.raises(RemoteProtocolError, match="no farm at"):
            await nodes.login(farm="second")


def break_disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Farms whose names are put into the result cannot write any more."""
    broken: set[str] = set()
    write = Appender.write

    def broken_write(self: Appender, *arguments: Any) -> Any:
        if self._directory.parent.name in broken:
            raise OSError(errno.EIO, "disk I/O error")
        return write(self, *arguments)

    monkeypatch.setattr(Appender, "write", broken_write)
    return broken


async def test_failed_store_in_the_turn_of_a_connection_ends_its_farm_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The task of a connection belongs to the node, not to the farm whose turn it runs."""
    async with cluster(tmp_path, start=False, raft=ALONE_AND_QUICK) as nodes:
        add_farm(nodes, tmp_path, "second", raft=ALONE_AND_QUICK)
        await nodes.start()
        await committing(nodes, "farm", "second")
        one, two = await nodes.login(), await nodes.login(farm="second")
        failed_in: list[str] = []

        def submit_or_fail(writer: Writer, persist: Persist) -> None:
            task = trio.lowlevel.current_task().name
            is_of_a_connection = not task.endswith("Turns.run")  # which it is but on a busy machine
            if is_of_a_connection and any(entry.value == b"to the second" for entry in persist.entries):
                failed_in.append(task)
                raise StorageError("the disk hangs")
            submit(writer, persist)

        submit = Writer.submit
        monkeypatch.setattr("garlicfarm.node.turns.STALL_S", 240.0)  # however busy the machine is
        monkeypatch.setattr(Writer, "submit", submit_or_fail)
        for _ in range(1000):
            if await two.ask(client_request(b"to the second")) is None:
                break
        answer = await one.ask(client_request(b"the first goes on"))
        assert answer.accepted
        assert nodes.running[1].error is None
        assert len(failed_in) == 1
        failed = [(each["event"], each["farm"]) for each in told(caplog, "farm-failed", "connection-defect")]
        assert failed == [("farm-failed", "second")]


async def test_failed_store_ends_its_farm_and_the_last_one_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = break_disk(monkeypatch)
    async with cluster(tmp_path, start=False, raft=ALONE_AND_QUICK) as nodes:
        add_farm(nodes, tmp_path, "second", raft=ALONE_AND_QUICK)
        await nodes.start()
        running = nodes.running[1]
        await committing(nodes, "farm", "second")
        one, two = await nodes.login(), await nodes.login(farm="second")
        failing, before = nodes.replica(name="second"), nodes.replica(name="second").applied_index
        role = partial(
            nodes.node().metrics.registry.get_sample_value,
            "garlicfarm_raft_role",
            {"farm": "second", "role": "leader"},
        )
        nodes.node().collect()
        assert role() == 1
        assert nodes.node().ready()
        broken.add("second")
        with pytest.raises(OutcomeUnknown):
            await failing.post(b"not acknowledged")
        with trio.fail_after(240):
            assert await two.ask(client_request(b"neither")) is None
        assert failing.applied_index == before
        assert [each.levelname for each in caplog.records].count("ERROR") == 1
        (failed,) = told(caplog, "farm-failed")
        assert failed["farm"] == "second"
        assert "disk I/O error" in failed["cause"]
        assert list(nodes.node().farms) == ["farm"]
        assert role() == 0
        assert not nodes.node().ready()
        answer = await one.ask(client_request(b"the first goes on"))
        assert answer.accepted
        late = await nodes.login(farm="second")
        assert await late.ask(client_request()) is None
        assert running.error is None
        broken.add("farm")
        await one.send(client_request(b"the end"))
        with trio.fail_after(240):
            assert await one.receive() is None
            await running.ended.wait()
        ended: object = running.error
        assert isinstance(ended, BaseExceptionGroup)
        assert ended.subgroup(StorageError)
        assert ended.split(StorageError)[1] is None
        broken.clear()
        await nodes.start()  # what was acknowledged is there
        await committing(nodes, "farm", "second")
        entries = nodes.replica().store.entries(1, nodes.replica().applied_index + 1, 10_000)
        assert [entry.value for entry in entries if entry.value_type == 1][:2] == [
            b"farm",
            b"the first goes on",
        ]


async def test_farm_that_fails_while_the_next_one_starts_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = break_disk(monkeypatch)
    run = Replica.run

    async def slow_run(self: Replica, *, task_status: trio.TaskStatus[None]) -> None:
        if self.farm == "second":
            await wait_until(lambda: told(caplog, "farm-failed"))
        await run(self, task_status=task_status)

    monkeypatch.setattr(Replica, "run", slow_run)
    async with cluster(tmp_path, start=False) as nodes:
        add_farm(nodes, tmp_path, "second")
        add_farm(nodes, tmp_path, "third")
        broken.add("farm")
        await nodes.start()
        assert list(nodes.node().farms) == ["second", "third"]
        await committing(nodes, "second", "third")


@pytest.mark.parametrize("is_committed", [False, True])
async def test_leader_whose_store_fails_is_replaced_and_nothing_acknowledged_is_lost(
    is_committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's other farm keeps the process up; its members must still see the leader gone. The others
    write an entry, and so commit it, before the leader's store fails, or only after that."""
    write = Appender.write
    failing: list[str] = []
    may_fail, may_write = threading.Event(), threading.Event()

    def broken_write(self: Appender, *arguments: Any) -> Any:
        if failing and failing[0] in str(self._directory):
            assert may_fail.wait(240)
            raise OSError(errno.ENOSPC, "No space left on device")
        if failing and f"/data/farms/{nodes.plan.name}/" in str(self._directory):
            assert may_write.wait(240)
        return write(self, *arguments)

    monkeypatch.setattr(Appender, "write", broken_write)
    async with cluster(tmp_path, 3, start=False) as nodes:
        add_farm(nodes, tmp_path, "second")
        nodes.favour(1)
        await nodes.start()
        assert await nodes.leader() == 1
        index, _ = await nodes.replica(2).post(b"acknowledged")
        failing.append(f"node-1/data/farms/{nodes.plan.name}/")
        acknowledged = {index: b"acknowledged"}
        if is_committed:
            may_write.set()
            index, _ = await nodes.replica(1).post(b"not written here")
            acknowledged[index] = b"not written here"
        else:
            may_fail.set()
            with pytest.raises(OutcomeUnknown):
                await nodes.replica(1).post(b"not written here")
        may_fail.set()
        may_write.set()
        with trio.fail_after(240):
            while nodes.replica(2).leader_id in (0, 1):
                await nodes.replica(2).core.wait_leader_change()
        later, _ = await nodes.replica(3).post(b"goes on")
        assert later > index
        await committing(nodes, "second")
        for index, value in acknowledged.items():
            assert nodes.replica(2).store.entries(index, index + 1, 1000)[0].value == value


async def test_application_that_differs_from_the_stores_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path, start=False) as nodes:
        file = nodes.directories[1] / "garlicfarm.toml"
        file.write_text(file.read_text().replace('application = "log"', 'application = "publisher"'))
        with pytest.raises(ExceptionGroup) as caught:
            async with trio.open_nursery():
                await nodes.start()
        assert caught.group_contains(ConfigError, match="is of application 'log'", depth=None)


async def test_own_application_is_folded_alike_on_three_nodes_and_after_a_restart(tmp_path: Path) -> None:
    made: list[LogApplication] = []

    def factory(farm: str) -> LogApplication:
        made.append(LogApplication())
        return made[-1]

    async with cluster(tmp_path, 3, applications={"log": factory}) as nodes:
        await nodes.leader()
        for number in range(30):
            index, _ = await nodes.replica(1 + number % 3).post(b"%d" % number)
        await nodes.applied(index)
        assert len({application.snapshot() for application in made}) == 1
        chain = made[0].snapshot()
        await nodes.stop()
        await nodes.start()
        await nodes.leader()
        await nodes.applied(index)
        assert [application.snapshot() for application in made[3:]] == [chain] * 3


async def test_farm_of_another_application_has_nothing_to_administer(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as nodes:
        view = nodes.node(1).farms["farm"]
        with pytest.raises(EntryRefused, match="the application log has nothing to administer"):
            await view.administer("override", {"member": 1, "mode": "off"}, "local")


async def test_old_nonce_after_a_restart_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, 2) as nodes:
        leader = await nodes.leader()  # it has logged in to the other one, and remembers the nonce
        await nodes.stop(3 - leader)
        caplog.clear()  # of handshakes that the stop has ended
        with caplog.at_level(logging.INFO):
            await nodes.start(3 - leader)
            await nodes.leader()
            await wait_until(lambda: told(caplog, "rejected"))
        assert {each["reason"] for each in told(caplog, "rejected")} == {"stale"}
        assert {each.levelno for each in caplog.records if each.message == "rejected"} == {logging.INFO}
