"""Which kind of router it is: found out before there is a session, and anew in each connection."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from garlicfarm.errors import PublisherError
from garlicfarm_plugin_i2cp.connection import parse_address
from tests.publishers.i2cp_router import CREATE_SESSION, GET_BANDWIDTH_LIMITS
from tests.publishers.service_keeper.keeper_bench import Bench

JAVA_2_7 = (65070, 10922, 97605, 97655, 16384, 97655, 1)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ((), "i2pd"),  # 2.45.1
        ((4096, 4096), "i2pd"),  # 2.59.0
        ((65070, 10922, 97605, 97655, 16384, 97655), "i2pd"),  # no router that is known
        (None, "i2pd"),
        (JAVA_2_7, "java"),
    ],
)
async def test_kind_is_known_before_the_session_is_made(
    bench: Bench, autojump_clock: MockClock, limits: tuple[int, ...] | None, kind: str
) -> None:
    bench.router.limits = limits
    await bench.keeper.standby()
    assert bench.keeper.router_kind == kind
    asked = [type_ for _, type_, _ in bench.router.received]
    assert asked.index(GET_BANDWIDTH_LIMITS) < asked.index(CREATE_SESSION)
    assert trio.current_time() == 0  # nothing waits for an answer that does not come


async def test_kind_is_found_out_anew_in_each_connection(bench: Bench, autojump_clock: MockClock) -> None:
    for limits, kind in ((JAVA_2_7, "java"), ((4096, 4096), "i2pd"), (JAVA_2_7, "java")):
        bench.router.limits = limits
        await bench.keeper.standby()
        assert bench.keeper.router_kind == kind
        await bench.router.kill()
        await trio.sleep(0.5)
        assert bench.keeper.router_kind is None


async def test_old_java_shows_itself_by_saying_why_it_refuses(bench, autojump_clock):
    bench.router.reason, bench.router.version = b"Create session message client clock skew?", b"0.9.61"
    with pytest.raises(PublisherError, match="clock skew"):
        await bench.keeper.standby()
    bench.router.reason = b""
    await bench.keeper.standby()
    assert bench.keeper.router_kind == "java"
    bench.router.version = b"0.9.68"  # another router at the same address
    await bench.router.kill()
    await trio.sleep(0.5)
    await bench.keeper.standby()
    assert bench.keeper.router_kind == "i2pd"


@pytest.mark.parametrize("kind", ["i2pd", "java"])
def test_configured_kind_stands(kind):
    memory = parse_address("127.0.0.1:7654", kind=kind).kind
    memory.on_disconnect("0.9.61")
    assert memory.kind(None, "0.9.61") == kind
