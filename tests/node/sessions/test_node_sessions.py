"""What one connection may say and how long it may take, on streams in memory and on a farm of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from garlicfarm.errors import EntryRefused, OutcomeUnknown, RemoteProtocolError, first_error
from garlicfarm.node.session import MAX_UNANSWERED, MAX_UNANSWERED_BYTES, PendingResponse, Principal, Session
from garlicfarm.raft import Role
from garlicfarm.refusals import Refusal
from garlicfarm.wire import Limits, ResponseDecoder, encode_request, encode_response
from garlicfarm.wire.messages import MessageType, Request, Response
from tests.node.support.cluster import ALONE, client_request, cluster
from tests.node.support.link_in_memory import SendsNow
from tests.running import background

ALICE = Principal("user alice", 0, may_post=True)
BOB = Principal("user bob", 0, may_post=False)
MEMBER = Principal("member 2", 2, may_post=True)
TIMEOUT_S = 4.0
MAX_ENTRY_BYTES = Limits().max_entry_bytes
T_ANSWER = MessageType.APPEND_ENTRIES_RESPONSE


class FakeFarm:
    """Answers when told to."""

    limits = Limits()
    client_limits = Limits((1 << 20) + 58)
    metrics = SimpleNamespace(count_refused=lambda reason: None)
    node_id = 1

    def __init__(self) -> None:
        self.pending: list[PendingResponse] = []
        self.requests: list[Request] = []
        self.steps: list[int] = []  # how many requests came together

    def on_request(self, request: Request) -> None:
        pass

    def step(self, requests: Sequence[tuple[Request, PendingResponse]]) -> None:
        self.steps.append(len(requests))
        for request, pending in requests:
            self.requests.append(request)
            self.pending.append(pending)

    def forget(self, pending: Iterable[PendingResponse]) -> None:
        pass

    def answer(self, position: int) -> None:
        kind = MessageType.APPEND_ENTRIES_RESPONSE
        self.pending[position].resolve(Response(kind, 1, 1, 1, position, True))


def session(
    farm: FakeFarm, stream: trio.abc.Stream, principal: Principal = ALICE, leftover: bytes = b""
) -> Session:
    return Session(farm, stream, principal, leftover, TIMEOUT_S)  # type: ignore[arg-type]


async def next_indexes(stream: trio.abc.Stream, count: int) -> list[int]:
    decoder, found = ResponseDecoder(), list[int]()
    while len(found) < count:
        decoder.receive_data(await stream.receive_some(65536))
        while (response := decoder.next_message()) is not None:
            found.append(response.next_index)
    return found


async def running(served: Session, errors: list[BaseException]) -> None:
    try:
        await served.run()
    except* Exception as group:  # noqa: BLE001 - shown to the test
        errors.append(first_error(group))


@asynccontextmanager
async def served(
    principal: Principal = ALICE, *, leftover: bytes = b"", ends: type[BaseException] | None = None
) -> AsyncIterator[tuple[FakeFarm, trio.abc.Stream]]:
    """A farm and the client's end of a connection to it; the client closes it, or it ``ends`` by an error."""
    ours, theirs = trio.testing.memory_stream_pair()
    farm, errors = FakeFarm(), list[BaseException]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running, session(farm, theirs, principal, leftover), errors)
        yield farm, ours
        if ends is None:
            await ours.aclose()
    assert [type(error) for error in errors] == ([] if ends is None else [ends])


async def test_answers_come_in_the_order_of_the_requests(autojump_clock: trio.testing.MockClock) -> None:
    request = encode_request(client_request())
    async with served(leftover=request[:9]) as (farm, ours):
        await ours.send_all(request[9:] + request * 2)
        await trio.testing.wait_all_tasks_blocked()
        for position in (2, 0, 1):
            farm.answer(position)
        assert await next_indexes(ours, 3) == [0, 1, 2]


async def test_requests_of_one_receive_come_together_and_their_answers_leave_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    request = encode_request(client_request(b"x"))
    async with served() as (farm, ours):
        for number in (5, 1):
            await ours.send_all(request * number + request[:20])
            await trio.testing.wait_all_tasks_blocked()
            await ours.send_all(request[20:])
            await trio.testing.wait_all_tasks_blocked()
        assert farm.steps == [5, 1, 1, 1]
        for position in range(8):
            farm.answer(position)
        received = await ours.receive_some(65536)
        assert len(received) == 8 * len(
            encode_response(Response(MessageType.APPEND_ENTRIES_RESPONSE, 1, 1, 1, 0, True))
        )


@pytest.mark.parametrize("room", [1 << 30, 30])
async def test_answers_are_flushed_at_once_where_the_stream_can(
    room: int, autojump_clock: trio.testing.MockClock
) -> None:
    ours, plain = trio.testing.memory_stream_pair()
    theirs = SendsNow(plain, ours)
    theirs.room = room
    farm, errors = FakeFarm(), list[BaseException]()
    async with trio.open_nursery() as nursery:
        served = session(farm, theirs)
        nursery.start_soon(running, served, errors)
        await ours.send_all(encode_request(client_request(b"x")) * 6)
        await trio.testing.wait_all_tasks_blocked()
        for position in (1, 0, 2, 3):
            farm.pending[position].is_done = True
            farm.pending[position].response = Response(T_ANSWER, 1, 1, 1, position, True)
        with trio.testing.assert_no_checkpoints():
            served.flush()
        assert [(way, len(data)) for way, data in theirs.sends] == [("now", 4 * 26)]
        farm.answer(4)
        assert await next_indexes(ours, 5) == [0, 1, 2, 3, 4]
        farm.pending[5].is_done = True  # without an outcome
        served.flush()
    assert [type(error) for error in errors] == [OutcomeUnknown]


async def test_answers_that_were_flushed_do_not_shorten_the_time_of_later_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, plain = trio.testing.memory_stream_pair()
    farm, errors = FakeFarm(), list[BaseException]()
    async with trio.open_nursery() as nursery:
        served = session(farm, SendsNow(plain, ours))
        nursery.start_soon(running, served, errors)
        for position in range(2):
            await ours.send_all(encode_request(client_request(b"x")))
            await trio.sleep(TIMEOUT_S / 2)
            if position == 0:
                farm.pending[0].is_done = True
                farm.pending[0].response = Response(T_ANSWER, 1, 1, 1, 0, True)
                served.flush()
                begun = trio.current_time()
    assert trio.current_time() == begun + TIMEOUT_S
    assert [type(error) for error in errors] == [OutcomeUnknown]


async def test_requests_before_a_fault_are_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with served(ends=RemoteProtocolError) as (farm, ours):
        forged = client_request(b"forged", source=2)
        await ours.send_all(encode_request(client_request(b"x")) * 3 + encode_request(forged))
    assert farm.steps == [3]


@pytest.mark.parametrize("later_one_answered", [False, True])
async def test_request_without_an_outcome_closes_the_connection_in_time(
    later_one_answered: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with served(ends=OutcomeUnknown) as (farm, ours):
        await trio.sleep(100)  # a silent connection stays
        begun = trio.current_time()
        await ours.send_all(encode_request(client_request(b"a")))
        await trio.sleep(TIMEOUT_S / 2)
        await ours.send_all(encode_request(client_request(b"b")))
        await trio.testing.wait_all_tasks_blocked()
        if later_one_answered:
            farm.answer(1)  # it has to wait for the first one
    assert trio.current_time() - begun == TIMEOUT_S


async def test_lost_leadership_answers_what_came_before_then_closes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served(ends=OutcomeUnknown) as (farm, ours):
        await ours.send_all(encode_request(client_request(b"a")) * 3)
        await trio.testing.wait_all_tasks_blocked()
        farm.pending[1].resolve(None)
        farm.answer(2)
        farm.answer(0)
        assert await next_indexes(ours, 1) == [0]


async def test_client_that_never_reads_is_cut_in_time(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    farm, errors = FakeFarm(), list[BaseException]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running, session(farm, theirs), errors)
        await ours.send_all(encode_request(client_request()))
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        farm.answer(0)
    assert trio.current_time() - begun == TIMEOUT_S
    assert [type(error) for error in errors] == [trio.TooSlowError]


@pytest.mark.parametrize(
    ("value", "most"), [(b"", MAX_UNANSWERED), (b"x" * (1 << 20), MAX_UNANSWERED_BYTES >> 20)]
)
async def test_unanswered_requests_are_bounded_and_go_on_after_answers(
    value: bytes, most: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with served() as (farm, ours):
        await ours.send_all(encode_request(client_request(value)) * (most + 5))
        await trio.testing.wait_all_tasks_blocked()
        assert len(farm.requests) == most
        for position in range(most):
            farm.answer(position)
        await trio.testing.wait_all_tasks_blocked()
        assert len(farm.requests) == most + 5
        assert await next_indexes(ours, most) == list(range(most))


async def test_requests_that_came_together_are_all_taken_where_answers_make_room_at_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more data is awaited before all that came is taken: the client may send nothing before an answer."""

    class Quick(FakeFarm):
        def step(self, requests: Sequence[tuple[Request, PendingResponse]]) -> None:
            first = len(self.requests)
            super().step(requests)
            for position in range(first, len(self.requests)):
                pending = self.pending[position]
                pending.response, pending.is_done = Response(T_ANSWER, 1, 1, 1, position, True), True
            requests[0][1].session.flush()

    monkeypatch.setattr("garlicfarm.node.session.MAX_UNANSWERED", 10)
    ours, plain = trio.testing.memory_stream_pair()
    farm, errors = Quick(), list[BaseException]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running, session(farm, SendsNow(plain, ours)), errors)
        await ours.send_all(encode_request(client_request()) * 25)
        with trio.fail_after(240):
            assert await next_indexes(ours, 25) == list(range(25))
        assert farm.steps == [10, 10, 5]
        await ours.aclose()
    assert not errors


@pytest.mark.parametrize(
    ("principal", "read"),
    [
        (ALICE, False),
        (Principal("member 2", 2, may_post=True), True),
        (Principal("a JRaft peer", 0, may_post=True, is_jraft=True), True),
    ],
    ids=["user", "member", "jraft"],
)
async def test_request_that_only_a_member_may_send_ends_a_users_connection(
    principal: Principal, read: bool, autojump_clock: trio.testing.MockClock
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    farm, errors = FakeFarm(), list[BaseException]()
    request = client_request(bytes(600_000), bytes(600_000), source=principal.member_id, destination=1)
    async with background(lambda: running(session(farm, theirs, principal), errors)):
        await ours.send_all(encode_request(request))
        await trio.testing.wait_all_tasks_blocked()
        assert len(farm.requests) == read
        assert [isinstance(error, RemoteProtocolError) for error in errors] == [True] * (not read)


async def test_largest_entry_fits_into_a_clients_message_whatever_that_is(tmp_path: Path) -> None:
    raft = {**ALONE, "max_client_message_bytes": 65536}
    async with cluster(tmp_path, raft=raft) as nodes:
        await nodes.leader()
        wire = await nodes.login()
        largest = await wire.ask(client_request(bytes(1 << 20)))
        assert largest.accepted
        with suppress(trio.BrokenResourceError):
            await wire.send(client_request(bytes(1 << 20), b"x"))
        assert await wire.receive() is None


@pytest.mark.parametrize(
    ("principal", "held_s"), [(ALICE, 3600.0), (Principal("member 2", 2, may_post=True), None)]
)
async def test_idle_client_is_cut_after_an_hour_and_an_idle_member_never(
    principal: Principal, held_s: float | None, autojump_clock: trio.testing.MockClock
) -> None:
    _ours, theirs = trio.testing.memory_stream_pair()
    errors: list[BaseException] = []
    with trio.move_on_after(1e5):
        await running(session(FakeFarm(), theirs, principal), errors)
    assert trio.current_time() == (held_s or 1e5)
    assert len(errors) == (held_s is not None)


async def test_fault_found_by_the_core_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    farm, errors = FakeFarm(), list[BaseException]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running, session(farm, theirs), errors)
        await ours.send_all(encode_request(client_request()))
        await trio.testing.wait_all_tasks_blocked()
        farm.pending[0].session.fail(RemoteProtocolError("what", "where"))
    assert [str(error) for error in errors] == ["what (where)"]


def refuses(entry: bytes, author: int) -> None:
    if entry == b"bad":
        raise EntryRefused("", "bad")


@pytest.mark.parametrize(
    ("principal", "entries", "reason"),
    [
        (BOB, [b"good"], Refusal.ROLE_MISSING.number),
        (ALICE, [b"good", b"bad"], Refusal.ENTRY_REFUSED.number),
        (MEMBER, [b"good", bytes(MAX_ENTRY_BYTES + 1)], Refusal.ENTRY_TOO_LARGE.number),
        (MEMBER, [b"bad"], Refusal.ENTRY_REFUSED.number),
    ],
)
async def test_refused_request_is_not_appended_although_the_farm_has_not_noticed_yet_that_it_leads(
    principal: Principal, entries: list[bytes], reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core may have become leader earlier in the same turn."""
    async with cluster(tmp_path) as nodes, trio.open_nursery() as nursery:
        await nodes.leader()
        farm = nodes.replica()
        monkeypatch.setattr(farm.application, "check", refuses)
        ours, theirs = trio.testing.memory_stream_pair()
        received = encode_request(client_request(*entries, source=principal.member_id, destination=1))
        served = Session(farm.requests, theirs, principal, received, TIMEOUT_S)
        last = farm.raw.status().last_index
        farm.core.role = Role.FOLLOWER
        nursery.start_soon(served.run)
        decoder, response = ResponseDecoder(), None
        with trio.fail_after(240):
            while response is None:
                decoder.receive_data(await ours.receive_some(100))
                response = decoder.next_message()
        assert (response.accepted, response.next_index, response.destination) == (False, reason, 1)
        assert farm.raw.status().last_index == last
        nursery.cancel_scope.cancel()


async def test_reader_may_ask_for_the_leader_and_not_post(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        await nodes.leader()
        wire = await nodes.login("bob")
        probe, post = await wire.ask(client_request()), await wire.ask(client_request(b"x"))
        assert (probe.accepted, probe.destination) == (True, 1)
        assert (post.accepted, post.destination, post.next_index) == (False, 1, Refusal.ROLE_MISSING.number)
        largest = await wire.ask(client_request(bytes(1 << 20)))
        assert largest.next_index == Refusal.ROLE_MISSING.number
        with suppress(trio.BrokenResourceError):
            await wire.send(client_request(bytes(1 << 20), b"x"))
        assert await wire.receive() is None  # closed: nobody holds that for a reader


async def test_entry_over_the_limit_is_refused_with_its_reason_and_the_connection_goes_on(
    tmp_path: Path,
) -> None:
    raft = {**ALONE, "max_entry_bytes": 1000, "max_message_bytes": 65536}
    async with cluster(tmp_path, raft=raft) as nodes:
        await nodes.leader()
        last = nodes.replica().raw.status().last_index
        for user, source in (("alice", 0), ("2", 2)):
            wire = await nodes.login(user)
            refused = await wire.ask(client_request(b"x", bytes(1001), source=source))
            assert (refused.accepted, refused.destination) == (False, 1)
            assert refused.next_index == Refusal.ENTRY_TOO_LARGE.number
            assert nodes.replica().raw.status().last_index == last
            answer = await wire.ask(client_request(bytes(1000), source=source))
            assert answer.accepted
            last += 1


async def test_seventeenth_connection_of_a_user_closes_the_first_and_nobody_elses(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        await nodes.leader()
        other = await nodes.login("bob")
        wires = [await nodes.login() for _ in range(17)]
        with trio.fail_after(240):
            assert await wires[0].receive() is None
        for wire in (*wires[1:], other):
            assert await wire.ask(client_request()) is not None
