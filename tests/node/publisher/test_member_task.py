"""A member's core is carried out: orders are signed, what is published is kept, and it lets go in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from garlicfarm.credentials.destination_keys import create_keys, write_bundle
from garlicfarm.credentials.watched_keys import WatchedKeys
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.lease_set import decode_meta_lease_set, verify_meta_lease_set
from garlicfarm.levels import OUTSIDE
from garlicfarm.node.publisher.published_record import PublishedRecord
from garlicfarm.publisher import ClientRules, Published
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher
from tests.node.publisher.member import FakeContext, plugin, task_of
from tests.publishers.i2cp_keys import bundle
from tests.publishers.renewed_keys import renew
from tests.publishing.scripted_log import T0
from tests.running import background, wait_until

Clock = trio.testing.MockClock
pytestmark = pytest.mark.usefixtures("moved")


async def test_publishes_what_the_node_has_signed_and_a_restarted_node_reports_it(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "master.key")
    farm, made = FakeContext(1), plugin(tmp_path)
    task = task_of(farm, tmp_path, made, master=WatchedKeys(tmp_path / "master.key", node_id=1))
    async with background(task.run):
        order = await wait_until(lambda: made.order)
        assert order.lease_set is not None
        verify_meta_lease_set(order.lease_set, order.published_ms // 1000)
        meta = decode_meta_lease_set(order.lease_set)
        assert meta.destination == keys.destination
        assert meta.published_s == order.published_ms // 1000
        assert meta.published_s + meta.expires_s == order.expires_ms // 1000
        assert order.published_ms >= T0
        await wait_until(lambda: task.describe()[0]["until_ms"])
        (row,) = task.describe()
        assert (row["plugin"], row["required"], row["state"]) == ("simulated", True, "publishing")
        assert (row["until_ms"], row["problems"]) == (order.expires_ms, [])
        await wait_until((tmp_path / "publisher" / "published.json").exists)
    assert made.order is None
    again = task_of(farm, tmp_path, plugin(tmp_path))
    assert again.core.last_published == Published(published_ms=order.published_ms, lease_set=order.lease_set)


async def test_new_bundle_of_the_master_destination_signs_what_is_published_next(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    path, made = tmp_path / "master.bundle", plugin(tmp_path)
    write_bundle(path, bundle(T0))
    task = task_of(FakeContext(1), tmp_path, made, master=WatchedKeys(path, node_id=1))

    def problems() -> str:
        return "; ".join(task.describe()[0]["problems"])

    async with background(task.run):
        await wait_until(lambda: made.order)
        path.write_text("{")
        await wait_until(lambda: "the keys that were read before stay in use" in problems())
        new = renew(path, T0)
        await wait_until(
            lambda: decode_meta_lease_set(cast(Any, made.order).lease_set).offline == new.offline
        )
        assert problems() == ""
        assert [key.transient for key in task.core.keys()] == [new.transient]  # noqa: SIM118


async def test_disk_that_hangs_does_not_keep_it_from_stopping(
    tmp_path: Path, unwritten: list[Published], autojump_clock: Clock
) -> None:
    farm, made = FakeContext(1), plugin(tmp_path)
    async with background(task_of(farm, tmp_path, made).run):
        await trio.sleep(1)
        assert made.order is not None
        assert len(unwritten) == 1
        farm.order("override", member=1, mode="off")
        await trio.sleep(1)
        assert made.order is None


async def test_record_that_cannot_be_written_is_logged(tmp_path: Path) -> None:
    (tmp_path / "publisher").write_bytes(b"")
    farm = FakeContext(1)
    async with background(task_of(farm, tmp_path, plugin(tmp_path)).run):
        await wait_until(lambda: "publication-not-recorded" in farm.notes)


async def test_node_whose_clock_is_wrong_does_not_publish_and_says_so(
    tmp_path: Path,
    unwritten: list[Published],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: Clock,
) -> None:
    farm, made = FakeContext(1), plugin(tmp_path)
    task = task_of(farm, tmp_path, made)
    async with background(task.run):
        await trio.sleep(1)
        assert task.core.publishing is True
        monkeypatch.setattr(farm.fold, "clock_problem", lambda date_ms: "is 9 days behind the farm's")
        await trio.sleep(2)
        assert (task.core.publishing, made.order) == (None, None)
        (row,) = task.describe()
        assert row["problems"] == ["this node's clock is 9 days behind the farm's"]


async def test_member_that_has_withdrawn_says_when_it_offers_itself_again(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    farm, made = FakeContext(1, 2), plugin(tmp_path)
    task = task_of(farm, tmp_path, made)
    farm.hear(2)
    async with background(task.run):
        await trio.sleep(1)
        made.kill_router()
        await trio.sleep(3)
        made.start_router()
        await trio.sleep(5)
        farm.hear(2, sequence=T0 + 1)
        await trio.sleep(1)
        (problem,) = task.describe()[0]["problems"]
        assert problem.startswith("it could not publish recently, so this node offers itself again in 8")


@pytest.mark.parametrize("is_drained", [True, False])
async def test_stop_returns_once_it_has_let_go(
    tmp_path: Path, unwritten: list[Published], is_drained: bool, autojump_clock: Clock
) -> None:
    farm, made = FakeContext(1), plugin(tmp_path)
    task = task_of(farm, tmp_path, made)
    async with background(task.run):
        await trio.sleep(1)
        if is_drained:
            task.drain(True)
        await trio.sleep(1)
        assert made.order is not None  # no other member can
        assert farm.said()[-1]["config"].get("draining") is (True if is_drained else None)
        await task.stop(60)
        assert trio.current_time() < 5
        assert made.order is None
        assert "publishing" not in farm.said()[-1]["meta"]


class Auxiliary(SimulatedPublisher):
    is_auxiliary = True


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((SimulatedPublisher, Auxiliary), [True, False]),
        ((Auxiliary, Auxiliary), [True, True]),
    ],
)
@pytest.mark.parametrize("required", [True, False, "auto"])
async def test_auxiliary_publisher_is_required_by_default_only_without_another_kind(
    tmp_path: Path, kinds: Any, expected: list[bool], required: Any
) -> None:
    plugins = [plugin(tmp_path, kind) for kind in kinds]
    task = task_of(FakeContext(1, required=required), tmp_path, *plugins)
    found = [row["required"] for row in task.describe()]
    assert found == (expected if required == "auto" else [required, required])


@pytest.mark.parametrize("damage", [b"", b"{", b'{"published_ms":"x"}', b'{"published_ms":-1}', None])
def test_record_that_is_damaged_or_cannot_be_read_is_none(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "published.json"
    path.mkdir() if damage is None else path.write_bytes(damage)
    assert PublishedRecord(path).read() is None


def test_record_is_private_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "publisher" / "published.json"
    published = Published(published_ms=2, lease_set=b"meta")
    PublishedRecord(path).write(published)
    assert PublishedRecord(path).read() == published
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


CLIENT, OTHER = (bytes([number]) * 32 for number in (1, 2))


class BlindPublisher(SimulatedPublisher):
    """It does not see its clients."""

    def restrict_clients(self, rules: ClientRules) -> bool:
        return False


class BrokenPublisher(SimulatedPublisher):
    def restrict_clients(self, rules: ClientRules) -> bool:
        if rules.banned:
            raise ArithmeticError("a defect of the plugin")
        return True


async def test_publishers_are_told_of_bans_at_once_and_of_their_end_by_the_clock(
    tmp_path: Path, unwritten: list[Published], autojump_clock: Clock
) -> None:
    farm, made = FakeContext(1, level=OUTSIDE), plugin(tmp_path)
    farm.order("ban", hash=encode(OTHER), until_ms=None)
    task = task_of(farm, tmp_path, made)
    async with background(task.run):
        await trio.testing.wait_all_tasks_blocked()
        assert made.rules.banned == {OTHER}
        farm.order("ban", hash=encode(CLIENT), until_ms=T0 + 20_500)
        await trio.testing.wait_all_tasks_blocked()
        assert made.rules.banned == {CLIENT, OTHER}
        farm.order("allow", hash=encode(CLIENT))
        await trio.sleep_until(20.4)
        assert made.rules == ClientRules(banned=frozenset([CLIENT, OTHER]), allowed=frozenset([CLIENT]))
        applied = farm.applied_index
        await trio.sleep_until(20.6)
        assert made.rules.banned == {OTHER}
        assert farm.applied_index == applied, "no entry was needed"
        assert len(farm.fold.clients.banned) == 2
        farm.order("unban", hash=encode(OTHER))
        farm.order("disallow", hash=encode(CLIENT))
        await trio.sleep(1)
        assert made.rules == ClientRules()


async def test_ban_that_is_over_when_the_node_starts_is_none(
    tmp_path: Path, unwritten: list[Published], autojump_clock: Clock
) -> None:
    farm, made = FakeContext(1, level=OUTSIDE), plugin(tmp_path)
    farm.order("ban", hash=encode(CLIENT), until_ms=1)
    async with background(task_of(farm, tmp_path, made).run):
        await trio.sleep(1)
        assert made.rules == ClientRules()


@pytest.mark.parametrize("required", ["auto", False])
async def test_publisher_that_does_not_see_clients_says_so_while_there_are_bans(
    tmp_path: Path, unwritten: list[Published], autojump_clock: Clock, required: Any
) -> None:
    farm = FakeContext(1, level=OUTSIDE, required=required)
    task = task_of(farm, tmp_path, plugin(tmp_path, BlindPublisher))
    async with background(task.run):
        await trio.sleep(1)
        assert task.describe()[0]["problems"] == []
        farm.order("ban", hash=encode(CLIENT), until_ms=T0 + 10_000)
        await trio.sleep(1)
        sentence = 'bans are not enforced by simulated: `i2cp` with mode = "service" does that'
        assert task.describe()[0]["problems"] == [sentence] * (required == "auto")
        await trio.sleep_until(11)
        assert task.describe()[0]["problems"] == []


async def test_publisher_that_fails_to_take_the_rules_is_left_and_the_others_get_them(
    tmp_path: Path, unwritten: list[Published], autojump_clock: Clock
) -> None:
    farm, broken, made = FakeContext(1, level=OUTSIDE), plugin(tmp_path, BrokenPublisher), plugin(tmp_path)
    task = task_of(farm, tmp_path, broken, made)
    async with background(task.run):
        await trio.sleep(1)
        farm.order("ban", hash=encode(CLIENT), until_ms=None)
        await trio.sleep(1)
        assert made.rules.banned == {CLIENT}
        assert "publisher-failed" in farm.notes
        first, second = task.describe()
        assert "bans are not enforced by simulated" in first["problems"][-1]
        assert second["problems"] == []
