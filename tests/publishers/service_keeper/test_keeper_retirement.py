"""The session of a service once its node is no longer named."""

from __future__ import annotations

import struct

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm_plugin_i2cp.service_keeper import LAST_WORDS_S
from garlicfarm_plugin_i2cp.service_session import PASS_ON_S
from tests.publishers.i2cp_keys import bundle, long_term_keys
from tests.publishers.i2cp_router import (
    CREATE_LEASE_SET_2,
    CREATE_SESSION,
    DESTROY_SESSION,
    SEND_MESSAGE,
    send,
)
from tests.publishers.service_keeper.keeper_bench import SESSION, START_MS, Bench, publishing


async def test_retired_session_publishes_nothing_more_and_composes_nothing(bench, autojump_clock):
    first = await publishing(bench)
    await bench.keeper.retire(None)
    assert bench.configurations() == ["standby", "standby", "active", "standby"]
    await trio.sleep(50)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert [each.data for each in bench.given[-2:]] == [first.data, first.data]
    assert len(bench.published) == 1
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_retired_session_serves_until_its_last_lease_is_forgotten_and_another_one_begins(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    await trio.sleep(30)  # published again at 25 s
    await bench.keeper.retire(None)
    await bench.keeper.standby()
    assert trio.current_time() == pytest.approx(30)
    await trio.sleep(25 + 90 + 60 - 30 - 1)
    assert bench.router.bodies(DESTROY_SESSION) == []
    await send(bench.router.streams[0], 31, SESSION + struct.pack(">II", 1, 3) + b"GET")
    await trio.sleep(2 + LAST_WORDS_S)
    assert bench.payloads == [b"GET"]
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]
    assert len(bench.router.bodies(CREATE_SESSION)) == 2
    assert bench.keeper.is_ready
    keys = {each.private_key for each in bench.given}
    assert len(keys) == 2
    assert not bench.given[-1].is_published


async def test_streams_end_before_the_session_that_served_them(bench, autojump_clock):
    """Another session must send nothing to these clients, nor would they find it."""
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(149)
    assert bench.router.bodies(SEND_MESSAGE) == []
    await trio.sleep(2 + LAST_WORDS_S)
    at_s = {type_: each_s for each_s, type_, _ in bench.router.received}
    assert at_s[DESTROY_SESSION] - at_s[SEND_MESSAGE] == pytest.approx(LAST_WORDS_S)
    assert len(bench.router.bodies(SEND_MESSAGE)) == 1


async def test_session_that_is_named_in_its_last_seconds_goes_on(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(151)
    assert bench.abandoned_at == pytest.approx([150])
    await bench.keeper.publish(bench.order(published_ms=bench.now_ms()))
    await trio.sleep(LAST_WORDS_S + 20)
    assert bench.router.bodies(DESTROY_SESSION) == []
    assert [each.at_s for each in bench.published] == pytest.approx([0, 151])


@pytest.mark.parametrize("is_dead", [False, True])
async def test_session_after_a_retired_one_may_take_a_while_to_have_tunnels(bench, autojump_clock, is_dead):
    """That is no reason to tell the farm that this member cannot publish."""
    await publishing(bench)
    bench.router.asks_after_s = None
    await bench.keeper.retire(None)
    await trio.sleep(152 + LAST_WORDS_S)
    assert len(bench.router.bodies(CREATE_SESSION)) == 2
    assert bench.keeper.is_ready
    if is_dead:
        await bench.router.kill()
        await wait_all_tasks_blocked()
    else:
        await trio.sleep(25)
    assert not bench.keeper.is_ready


async def test_successors_lease_set_is_passed_on_with_the_own_private_key_and_no_other_is(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    await bench.keeper.retire(None)
    await bench.keeper.standby()
    await trio.sleep(5)
    successor, another = bench.successor(), bench.successor(later_s=2)
    await bench.keeper.retire(successor)
    await bench.keeper.retire(another)
    await wait_all_tasks_blocked()
    assert [each.data for each in bench.given[2:]] == [successor]
    pushed = bench.given[-1]
    assert (pushed.private_key, pushed.is_published) == (first.private_key, False)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert [each.data for each in bench.given[2:]] == [successor, successor]


async def test_successors_lease_set_is_passed_on_again_until_it_has_expired(bench, autojump_clock):
    """i2pd gives it to no client that comes later, nor to one whose acknowledgement of an earlier LeaseSet
    arrives after it."""
    await publishing(bench)
    await trio.sleep(3)
    await bench.keeper.retire(successor := bench.successor(expires_s=60))
    await trio.sleep(7)
    await bench.keeper.standby()  # as nodes do twice a minute
    await trio.sleep(100)
    passed_on = [each for each in bench.given[2:] if each.data == successor]
    assert passed_on == bench.given[2:]
    assert [each.at_s for each in passed_on] == [3.0 + PASS_ON_S * i for i in range(13)]
    assert not any(each.is_published for each in passed_on)


async def test_successor_known_at_once_is_passed_on_after_the_retirement(bench, autojump_clock):
    await publishing(bench)
    await bench.keeper.retire(successor := bench.successor())
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == successor
    assert not bench.given[-1].is_published


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("another destination", "another destination"),
        ("older", "older than what was published here"),
        ("equal", "older than what was published here"),
        ("signature", "signature does not match"),
        ("expired", "it has expired"),
        ("transient", "transient key has expired"),
        ("garbage", "not a destination"),
    ],
)
async def test_what_no_successor_publishes_is_not_passed_on(bench, autojump_clock, case, sentence):
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(3)
    expired = bundle(START_MS, expires_s=START_MS // 1000 + 2)
    successor = {
        "another destination": lambda: bench.successor(keys=long_term_keys(2)),
        "older": lambda: bench.successor(later_s=-60),
        "equal": lambda: bench.successor(later_s=-3),
        "signature": lambda: bench.successor()[:-1] + b"\x55",
        "expired": lambda: bench.successor(later_s=-2, expires_s=1),
        "transient": lambda: bench.successor(keys=expired),
        "garbage": lambda: b"no LeaseSet",
    }[case]()
    before = len(bench.given)
    await bench.keeper.retire(successor)
    await wait_all_tasks_blocked()
    assert len(bench.router.bodies(CREATE_LEASE_SET_2)) == before
    assert bench.keeper.problem.startswith("the successor's LeaseSet is not passed on to clients: ")
    assert sentence in bench.keeper.problem
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert sentence in bench.keeper.problem
    await bench.keeper.retire(successor := bench.successor())
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == successor


async def test_successor_without_a_retired_session_changes_nothing(bench, autojump_clock):
    await bench.keeper.standby()
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()
    assert len(bench.given) == 1
    assert (bench.keeper.is_ready, bench.keeper.problem) == (True, "")


async def test_named_again_after_another_member_the_session_publishes_at_once(bench, autojump_clock):
    """Not 20 s after its last publication: clients wait for the LeaseSet, which the other one passes on."""
    first = await publishing(bench)
    await bench.keeper.retire(None)
    await bench.keeper.retire(successor := bench.successor(later_s=3))
    await bench.keeper.standby()
    bench.router.asks_after_s = 4.0
    await trio.sleep(10)
    published = await bench.keeper.publish(bench.order(8, START_MS + 10_000))
    assert trio.current_time() == pytest.approx(10)
    assert published.lease_set == bench.published[-1].data
    assert bench.published[-1].private_key == first.private_key
    assert bench.published[-1].lease_set.published_s == START_MS // 1000 + 10
    assert bench.keeper.session is not None
    assert bench.keeper.session.since_ms == START_MS + 10_000
    await trio.sleep(60)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 10, 35, 60])
    assert successor not in [each.data for each in bench.given if each.at_s > 10]
    assert bench.router.bodies(DESTROY_SESSION) == []
    assert bench.abandoned_at == []


async def test_retired_session_whose_tunnels_have_ended_is_not_ready(bench, autojump_clock):
    bench.router.tunnel_s = (60,)
    await publishing(bench)
    await bench.keeper.retire(None)
    assert bench.keeper.is_ready
    await trio.sleep(61)
    assert not bench.keeper.is_ready
    assert bench.keeper.problem == "the router at 127.0.0.1:7654 has no tunnels for the service"


async def test_named_again_before_any_other_was_the_session_goes_on(bench, autojump_clock):
    """As by a farm that had no leader for a while: clients notice nothing."""
    first = await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(30)
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order(published_ms=bench.now_ms()))
    assert trio.current_time() == pytest.approx(30)
    assert bench.configurations() == ["standby", "standby", "active", "standby", "active"]
    assert bench.published[-1].private_key == first.private_key
    await trio.sleep(60)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 30, 55, 80])
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    await trio.sleep(200)
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]


async def test_retired_again_before_it_was_active_again_it_composes_nothing(bench, autojump_clock):
    """Its clients know it: it goes on to serve them, and hands them over."""
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(5)
    with trio.move_on_after(5):  # the next LeaseSet is due 20 s after the last
        await bench.keeper.publish(bench.order(published_ms=bench.now_ms()))
    await bench.keeper.retire(None)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert len({each.data for each in bench.given}) == 1
    successor = bench.successor()
    await bench.keeper.retire(successor)
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == successor
    await trio.sleep(200)
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]


async def test_clients_are_sent_something_after_each_time_that_the_successor_is_passed_on(
    bench: Bench, autojump_clock: MockClock
) -> None:
    """A router sends a LeaseSet along with the next message. Beside a SYN answer it would come too early."""
    await publishing(bench)
    await bench.keeper.retire(None)
    bench.router.received.clear()
    await bench.keeper.retire(bench.successor())
    await trio.sleep(PASS_ON_S + 1)
    types = [type_ for _, type_, _ in bench.router.received if type_ in (CREATE_LEASE_SET_2, SEND_MESSAGE)]
    assert types == [CREATE_LEASE_SET_2, SEND_MESSAGE] * 2


async def test_successor_of_the_second_term_is_passed_on_like_that_of_the_first(bench, autojump_clock):
    await publishing(bench)
    await bench.keeper.retire(bench.successor())
    await bench.keeper.publish(bench.order(8, START_MS + 2000))
    await bench.keeper.retire(second := bench.successor(later_s=4))
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == second
    assert not bench.given[-1].is_published
    assert bench.keeper.problem == ""


async def test_clients_are_handed_over_once_and_taken_back_by_the_next_order(bench, autojump_clock):
    await publishing(bench)
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor(later_s=-60))
    assert bench.handed_over_at == []
    await trio.sleep(3)
    await bench.keeper.retire(bench.successor())
    await trio.sleep(4 * PASS_ON_S)
    await bench.keeper.standby()
    await bench.keeper.retire(bench.successor())
    assert bench.handed_over_at == [3.0]
    await bench.keeper.publish(bench.order(8, bench.now_ms()))
    assert bench.handed_over_at == []


async def test_retired_before_it_was_active_the_session_stays_on_standby(bench, autojump_clock):
    bench.router.asks_after_s = 13.0
    with trio.move_on_after(5):
        await bench.keeper.publish(bench.order())
    await bench.keeper.retire(None)
    await trio.sleep(300)
    assert bench.published == []
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_router_that_does_not_read_the_retirement_loses_its_connection(bench, autojump_clock):
    await publishing(bench)
    bench.router.is_silent = True
    await bench.keeper.retire(None)
    assert trio.current_time() == pytest.approx(2)
    assert bench.keeper.session is None
    assert not bench.keeper.is_ready


async def test_retired_at_a_router_that_has_died_is_retired_at_once(bench, autojump_clock):
    await publishing(bench)
    bench.is_up = False
    await bench.router.kill()
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    assert trio.current_time() == pytest.approx(0)
