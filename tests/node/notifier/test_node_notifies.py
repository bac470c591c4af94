"""Nodes of one farm with one receiver: each change is told once, not once by each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from garlicfarm.errors import StorageDamaged
from garlicfarm.node.notifier import notifier
from tests.node.notifier.web_receiver import WebReceiver, silence, web_receiver
from tests.node.support.cluster import STEADY, Cluster, cluster, simulated_member
from tests.running import wait_until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "STEADY_S", 0.0)  # beside two elections
    monkeypatch.setattr(notifier, "LOOK_S", 0.1)


def notify(nodes: Cluster, web: WebReceiver, more: str = "") -> None:
    for directory in nodes.directories.values():
        with (directory / "garlicfarm.toml").open("a") as file:
            file.write(f'\n[[notify]]\nkind = "webhook"\nurl = "{web.url}"\n{more}\n')


def texts(web: WebReceiver, kind: str) -> list[str]:
    return [notice["text"] for notice in web.notices() if notice["kind"] == kind]


@pytest.mark.slow
async def test_farm_tells_once_of_a_publisher_and_of_a_member_that_is_lost_and_back(tmp_path: Path) -> None:
    members = {node_id: simulated_member(node_id) for node_id in (1, 2, 3)}
    plan: dict[str, Any] = {"application": "publisher", "raft": STEADY, "interval_ms": 1000}
    async with web_receiver() as web, cluster(tmp_path, members=members, start=False, **plan) as nodes:
        notify(nodes, web)
        await nodes.start()
        leader = await nodes.leader()
        await wait_until(lambda: texts(web, "publisher"))
        absent = next(one for one in (1, 2, 3) if one != leader)
        await nodes.stop(absent)

        def degraded() -> list[dict[str, Any]]:
            return [
                each for each in web.notices() if each["text"].startswith("degraded") and not each["over"]
            ]

        await wait_until(degraded)
        await wait_until(lambda: any(f"member {absent} lost" in each["text"] for each in web.notices()))
        await nodes.start(absent)
        await wait_until(lambda: any(f"member {absent} is back" in each["text"] for each in web.notices()))
        await wait_until(lambda: any(each["text"].startswith("over: degraded") for each in web.notices()))
        ids = [each["id"] for each in web.notices()]
        assert len(ids) == len(set(ids)), web.notices()
        assert len(degraded()) == 1
        assert str(absent) in degraded()[0]["text"].partition("absent: ")[2]


async def test_each_member_that_is_left_without_a_quorum_tells_so(tmp_path: Path) -> None:
    async with web_receiver() as web, cluster(tmp_path, 3, start=False, raft=STEADY) as nodes:
        notify(nodes, web, 'events = ["health"]')
        await nodes.start()
        leader = await nodes.leader()
        others = [one for one in (1, 2, 3) if one != leader]
        await nodes.stop(leader, others[0])
        wanted = f"no quorum, as node {others[1]} sees it: "
        await wait_until(lambda: any(text.startswith(wanted) for text in texts(web, "health")))
        assert {each["node"] for each in web.notices() if "no quorum" in each["text"]} == {others[1]}


async def test_receiver_that_never_answers_disturbs_neither_the_farm_nor_other_receivers(
    tmp_path: Path,
) -> None:
    async with web_receiver() as web, web_receiver() as hangs, cluster(tmp_path, start=False) as nodes:
        hangs.answers = [silence] * 100
        notify(nodes, hangs)
        notify(nodes, web)
        file, missing = nodes.directories[1] / "garlicfarm.toml", tmp_path / "missing"
        table = f'[farm.backup]\nevery = "1s"\ndirectory = "{missing}"\n[[notify]]'
        file.write_text(file.read_text().replace("[[notify]]", table, 1))

        def of_backups() -> list[str]:
            return [text for text in texts(web, "health") if "node 1 makes no backups" in text]

        await nodes.start()
        await wait_until(of_backups)
        await wait_until(lambda: hangs.received)
        async with nodes.client() as client:
            await client.post([b"the farm goes on"])
        missing.mkdir()
        await wait_until(lambda: len(of_backups()) == 2)
        assert of_backups()[1] == f"over: {of_backups()[0]}"


async def test_node_whose_last_store_fails_tells_so_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with web_receiver() as web, cluster(tmp_path, start=False) as nodes:
        notify(nodes, web, 'events = ["damage", "disk"]')
        await nodes.start()
        running, writer = nodes.running[1], nodes.replica().writer

        def fail(*arguments: object) -> None:
            raise StorageDamaged("the log is damaged")

        monkeypatch.setattr(type(writer), "submit", fail)
        async with nodes.client() as client:
            with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever becomes of it
                await client.post([b"x"])
        await running.ended.wait()
        assert [each["kind"] for each in web.notices()] == ["damage"]
        assert web.notices()[0]["text"] == "node 1 serves the farm farm no longer: the log is damaged"
