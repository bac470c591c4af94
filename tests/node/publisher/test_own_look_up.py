"""A publisher looks what it publishes up as a stranger would, and says what it finds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.node.publisher.member_task import MemberTask
from garlicfarm.node.publisher.own_look_up import BAD_IN_A_ROW, GRACE_S, PERIOD_S
from garlicfarm.publishing.clients import Clients, Listed
from garlicfarm.publishing.documents import ConnectTest, RemoteStatus, RouterStatus
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.router import MEASUREMENT_TIMEOUT_S, OwnLookUp, Router
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher
from tests.node.publisher.member import FakeContext, plugin, task_of
from tests.publishing.scripted_log import destination
from tests.running import background

Clock = trio.testing.MockClock
pytestmark = pytest.mark.usefixtures("moved", "unwritten")
LEAF = destination_hash(destination(12))
STRANGER = bytes(range(32))
BAD_S = GRACE_S + (BAD_IN_A_ROW + 1) * PERIOD_S


class LookingRouter(Router):
    """``answers``: within 812 ms, or nothing. ``trouble``: raised by the next look-ups, None: they hang."""

    def __init__(self) -> None:
        self.is_found = self.answers = True
        self.trouble: list[RouterError | None] = []
        self.asked: list[float] = []

    async def get_local_router_status(self) -> RouterStatus:
        await trio.lowlevel.checkpoint()
        return RouterStatus()

    async def get_local_leaf_status(self, leaf: bytes) -> Any:
        raise NotSupported("no")

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> Any:
        raise NotSupported("no")

    async def look_up_own(self, leaf: bytes) -> OwnLookUp:
        assert leaf == LEAF
        self.asked.append(trio.current_time())
        await trio.sleep(1)
        if self.trouble:
            error = self.trouble.pop(0)
            if error is None:
                await trio.sleep_forever()
            raise error
        test = ConnectTest(ms=812, ok=self.is_found and self.answers)
        status = RemoteStatus(
            hash=encode(leaf), fetch_time_ms=5 if self.is_found else None, connect_test=test
        )
        return OwnLookUp(client=STRANGER, status=status)


class Service(SimulatedPublisher):
    """``met``: whether it says that the stranger has come; an error: raised."""

    met: bool | Exception | None = None

    @property
    def destination(self) -> bytes:
        return decode(destination(12))

    def has_met(self, client: bytes) -> bool | None:
        assert client == STRANGER
        if isinstance(self.met, Exception):
            raise self.met
        return self.met


class Looking:
    """A farm of one member, which publishes leaf 12."""

    def __init__(self, directory: Path) -> None:
        self.farm, self.router = FakeContext(1), LookingRouter()
        self.farm.router = self.router
        self.service = cast(Service, plugin(directory, Service))
        self.task: MemberTask = task_of(self.farm, directory, self.service)

    @property
    def seen(self) -> str:
        return str(self.task.describe()[0]["seen"])


@pytest.fixture
async def looking(tmp_path: Path) -> Looking:
    return Looking(tmp_path)


async def test_service_with_an_access_list_is_not_looked_up(
    looking: Looking, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    looking.router.answers = looking.service.met = False
    async with background(looking.task.run):
        await trio.sleep(BAD_S)
        assert looking.task.problems() != []
        listed = Clients(allowed={encode(STRANGER): Listed("alice", 1, 1)})
        monkeypatch.setattr(PublisherFold, "clients", listed)
        assert (looking.seen, looking.task.problems()) == ("", [])
        await trio.sleep(PERIOD_S)
        looking.router.asked.clear()
        await trio.sleep(3 * PERIOD_S)
    assert looking.router.asked == []


@pytest.mark.parametrize("met", [True, None])
async def test_service_that_answers_is_seen_once_a_minute(
    looking: Looking, met: bool | None, autojump_clock: Clock
) -> None:
    looking.service.met = met
    async with background(looking.task.run):
        await trio.sleep(4 * PERIOD_S)
        assert looking.seen == "a stranger at this router reached it in 812 ms"
        assert looking.task.problems() == []
        asked = looking.router.asked
        assert {later - earlier for earlier, later in itertools.pairwise(asked)} == {PERIOD_S}


@pytest.mark.parametrize(
    ("is_found", "answers", "met", "text"),
    [
        (False, False, None, "finds no LeaseSet of it"),
        (False, False, False, "finds no LeaseSet of it"),
        (True, False, False, "finds its LeaseSet, and gets no answer"),
        (True, True, False, "reaches another server of this destination"),
    ],
)
async def test_what_is_bad_twice_in_a_row_is_a_problem_until_it_is_well(
    looking: Looking, is_found: bool, answers: bool, met: bool | None, text: str, autojump_clock: Clock
) -> None:
    router, service = looking.router, looking.service
    router.is_found, router.answers, service.met = is_found, answers, met
    async with background(looking.task.run):
        await trio.sleep(BAD_S - PERIOD_S)  # its predecessor's LeaseSet may still be there at first
        assert text in looking.seen
        assert looking.task.problems() == []
        await trio.sleep(PERIOD_S)
        (problem,) = looking.task.problems()
        assert problem == f"member 1, publisher simulated: {looking.seen}"
        assert text in problem
        assert looking.service.order is not None  # it keeps the role
        router.is_found = router.answers = service.met = True
        await trio.sleep(PERIOD_S)
        assert looking.task.problems() == []


async def test_stranger_that_came_to_a_service_that_says_nothing_is_no_problem(
    looking: Looking, autojump_clock: Clock
) -> None:
    looking.router.answers, looking.service.met = False, True
    async with background(looking.task.run):
        await trio.sleep(BAD_S)
        assert looking.seen.endswith("its service answered nothing")
        assert looking.task.problems() == []


async def test_service_that_never_answered_may_be_one_that_answers_no_http(
    looking: Looking, autojump_clock: Clock
) -> None:
    """Where the plugin cannot say who has come."""
    looking.router.answers = False
    async with background(looking.task.run):
        await trio.sleep(BAD_S)
        assert "gets no answer" in looking.seen
        assert looking.task.problems() == []
        looking.router.answers = True
        await trio.sleep(PERIOD_S)
        looking.router.answers = False
        await trio.sleep(BAD_S)
        assert looking.task.problems()


async def test_router_that_could_not_look_says_nothing(looking: Looking, autojump_clock: Clock) -> None:
    looking.router.is_found = False
    async with background(looking.task.run):
        await trio.sleep(BAD_S)
        looking.router.trouble = [RouterError("no tunnels"), None]
        await trio.sleep(PERIOD_S)
        assert (looking.seen, looking.task.problems()) == ("", [])
        await trio.sleep(PERIOD_S + MEASUREMENT_TIMEOUT_S - 30)
        assert (looking.seen, looking.task.problems()) == ("", [])
        assert looking.farm.notes.count("not-looked-up") == 2


async def test_router_that_never_can_is_asked_once(looking: Looking, autojump_clock: Clock) -> None:
    looking.router.trouble = [NotSupported("no")]
    async with background(looking.task.run):
        await trio.sleep(4 * PERIOD_S)
    assert len(looking.router.asked) == 1
    assert looking.seen == ""


async def test_member_looks_only_while_it_publishes_and_anew_in_each_turn(
    looking: Looking, autojump_clock: Clock
) -> None:
    looking.router.is_found = False
    async with background(looking.task.run):
        await trio.sleep(BAD_S)
        assert looking.task.problems()
        looking.farm.order("override", member=1, mode="off")
        await trio.sleep(5)
        assert (looking.seen, looking.task.problems()) == ("", [])
        count = len(looking.router.asked)
        await trio.sleep(3 * PERIOD_S)
        assert len(looking.router.asked) == count
        looking.farm.order("override", member=1, mode="on")
        await trio.sleep(GRACE_S)
        assert "no LeaseSet" in looking.seen
        assert looking.task.problems() == []


async def test_what_is_lost_is_not_said_to_be_seen(looking: Looking, autojump_clock: Clock) -> None:
    async with background(looking.task.run):
        await trio.sleep(2 * PERIOD_S)
        assert looking.seen
        looking.service.kill_router()
        await trio.sleep(5)
        assert looking.seen == ""


async def test_plugin_that_fails_when_it_is_asked_is_left_and_cannot_say(
    looking: Looking, autojump_clock: Clock
) -> None:
    looking.service.met = ZeroDivisionError("a defect")
    async with background(looking.task.run):
        await trio.sleep(PERIOD_S + 5)
    assert "publisher-failed" in looking.farm.notes
