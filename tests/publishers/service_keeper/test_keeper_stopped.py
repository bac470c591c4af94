"""A process that was stopped, as by SIGSTOP, while its router went on: all its timers are over at once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm_plugin_i2cp.service_keeper import LATE_S
from tests.publishers.service_keeper.keeper_bench import Bench, publishing

STOPPED_S = 100.0


@pytest.mark.parametrize("is_asked", [False, True])
async def test_stopped_process_publishes_nothing_before_its_node_has_looked_at_the_role(
    bench: Bench, autojump_clock: MockClock, is_asked: bool
) -> None:
    """Another member may publish since long: what is published here would be the newest."""
    await publishing(bench)
    autojump_clock.jump(STOPPED_S)
    if is_asked:
        await bench.router.ask()
    await wait_all_tasks_blocked()
    bench.running.cancel()  # what a node does whose lease is over
    await wait_all_tasks_blocked()
    assert len(bench.given) == len(bench.published) + 1  # on standby
    assert len(bench.published) == 1


async def test_stopped_process_that_has_kept_the_role_publishes_a_second_later(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    autojump_clock.jump(STOPPED_S)
    await bench.router.ask()
    await trio.sleep(LATE_S + 0.5)
    assert [each.at_s for each in bench.published[:2]] == [0, STOPPED_S + LATE_S]
    assert bench.published[-1].private_key == first.private_key  # the session goes on
    assert bench.keeper.is_ready
