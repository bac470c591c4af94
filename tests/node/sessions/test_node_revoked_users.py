"""A user who is removed, demoted or has a new password does not go on over a connection that is open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import AuthError
from garlicfarm.node.session import Principal
from garlicfarm.refusals import Refusal
from tests.node.sessions.test_node_sessions import FakeFarm, running, session
from tests.node.support.cluster import Cluster, client_request, cluster, password_of


def remove(users: Path) -> None:
    UserStore(users).remove("alice")


def change_password(users: Path) -> None:
    UserStore(users).add("alice", "writer", "another word")


def break_file(users: Path) -> None:
    users.write_text("damaged\n")


@pytest.mark.parametrize("revoke", [remove, change_password, break_file])
async def test_idle_connection_ends_within_a_second_of_its_users_end(
    revoke: Callable[[Path], None], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    users = UserStore(tmp_path / "users")
    users.add("alice", "writer", "one word")
    login = users.login("alice")
    assert login is not None
    _ours, theirs = trio.testing.memory_stream_pair()
    errors: list[BaseException] = []
    served = session(FakeFarm(), theirs, Principal("user alice", 0, may_post=False, login=login))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running, served, errors)
        await trio.sleep(100.5)
        assert not errors
        revoke(tmp_path / "users")
    assert trio.current_time() == 101.0
    assert [type(error) for error in errors] == [AuthError]


def users_of(farm: Cluster) -> UserStore:
    """The file as a command of the node's machine writes it."""
    return UserStore(farm.data(1) / "users")


async def test_role_is_the_one_that_the_user_has_at_each_request(tmp_path: Path) -> None:
    async with cluster(tmp_path) as farm:
        await farm.leader()
        wire = await farm.login("alice")
        outcomes = []
        for role in ("writer", "reader", "admin", "reader"):
            users_of(farm).add("alice", role, password_of("alice"))  # type: ignore[arg-type]
            answer = await wire.ask(client_request(b"x"))
            outcomes.append(answer.accepted or answer.next_index)
        assert outcomes == [True, Refusal.ROLE_MISSING.number, True, Refusal.ROLE_MISSING.number]


async def test_connection_of_a_removed_user_is_closed_and_nobody_elses(tmp_path: Path) -> None:
    async with cluster(tmp_path) as farm:
        await farm.leader()
        wires = [await farm.login("alice") for _ in range(3)]
        other = await farm.login("bob")
        users_of(farm).remove("alice")
        before = farm.replica().raw.status().last_index
        assert await wires[0].ask(client_request(b"x")) is None
        for wire in wires[1:]:
            assert await wire.receive() is None
        assert await other.ask(client_request()) is not None
        assert farm.replica().raw.status().last_index == before
