"""What the benchmark of look-ups inside I2P makes of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import trio

from benchmarks.look_ups_i2p import Load, Run, ask, figures, interface_bytes, missed, others_per_minute
from garlicfarm.lab.service import Leases

DEVICES = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo: 9999999     100    0    0    0     0          0         0  9999999     100    0    0    0     0
 link0:    1500       3    0    0    0     0          0         0      700       2    0    0    0     0
"""


def run(
    leases: Leases, first_byte_ms: Sequence[float], *, load: str = "seldom", failed: int = 0, other: int = 0
) -> Run:
    """A load of half a minute."""
    return Run(
        leases=leases,
        load=load,
        streams=len(first_byte_ms) + failed,
        failed=failed,
        seconds=30.0,
        first_byte_ms=list(first_byte_ms),
        look_ups=40,
        other_look_ups=other,
        floodfills_kb=100.0,
        client_cpu_s=1.0,
        machine_load=0.0,
    )


@pytest.mark.parametrize(
    ("load", "fast_ms", "found"),
    [
        ("seldom", [100.0, 125.0, 900.0], []),
        ("seldom", [100.0, 126.0, 900.0], ["seldom: first byte after 1.26 times as long with fast"]),
        ("download", [900.0], []),
    ],
)
def test_first_byte_takes_a_quarter_longer_with_fast_at_most(
    load: str, fast_ms: list[float], found: list[str]
) -> None:
    told = [run("default", [100.0], load=load), run("fast", fast_ms, load=load)]
    assert missed(told, 0) == found
    assert missed(told, 1) == []


def test_stream_that_was_not_served_is_a_missed_bound() -> None:
    assert missed([run("fast", [1.0], failed=2)], 1) == ["seldom, fast: 2 of 3 streams were not served"]


def test_figures_are_those_of_all_runs_of_a_load() -> None:
    told = [run("fast", [1.0, 2.0]), run("fast", [3.0, 4.0]), run("default", [9.0])]
    found = figures(told, "seldom", "fast")
    assert found is not None
    assert (found.streams, found.per_stream, found.per_minute) == (4, 20.0, 80.0)
    assert (found.p50_ms, found.p99_ms, found.kb_per_minute, found.cpu_s) == (2.0, 4.0, 200.0, 2.0)
    assert figures(told, "often", "fast") is None


def test_look_ups_of_a_publisher_are_counted_while_the_other_service_has_the_load() -> None:
    told = [run("default", [1.0], other=1), run("default", [1.0], other=2), run("fast", [1.0], other=7)]
    assert others_per_minute(told, "fast") == 3.0


def test_bytes_are_those_of_all_interfaces_but_the_loopback() -> None:
    assert interface_bytes(DEVICES) == 2200


@pytest.mark.parametrize("fault", ["none", "cut short", "reset"])
async def test_only_streams_that_are_served_to_their_end_have_a_time(fault: str) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            if fault != "reset":
                assert await stream.receive_some() == b"down 1000 0\n"
                await stream.send_all(bytes(1000 if fault == "none" else 999))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        asked = await ask(listener.socket.getsockname()[1], 1, Load(3, 0.0, 1000))
        nursery.cancel_scope.cancel()
    assert len(asked.first_byte_ms) == (3 if fault == "none" else 0)
