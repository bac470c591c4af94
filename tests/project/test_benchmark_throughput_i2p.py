"""What the benchmark of throughput inside I2P makes of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pytest
import trio

from benchmarks.throughput_i2p import Run, Transfer, Usage, carry, missed, pattern, ratios, table


def runs(seconds: Mapping[str, Sequence[float]], transfer: str = "down", *, wrong: int = 0) -> list[Run]:
    """100 MB by each way, in so many seconds each."""
    return [
        Run(
            way=way,
            transfer=transfer,
            megabytes=100.0,
            seconds=each,
            wrong=wrong,
            usage={"plugin": Usage(2.0, 60.0)},
            load=0.0,
        )
        for way, every in seconds.items()
        for each in every
    ]


@pytest.mark.parametrize(
    ("plugin_s", "found"),
    [
        ([9.0, 20.0, 90.0], []),
        ([9.0, 25.0, 90.0], ["down: 0.40 of the tunnel's throughput, at least 0.5"]),
    ],
)
def test_plugin_must_carry_half_of_what_the_tunnel_does(plugin_s: list[float], found: list[str]) -> None:
    told = runs({"tunnel": [5.0, 10.0, 11.0], "plugin": plugin_s})
    assert missed(told) == found


def test_transfers_are_compared_each_with_its_own() -> None:
    told = runs({"tunnel": [10.0], "plugin": [10.0]}) + runs({"tunnel": [10.0], "plugin": [40.0]}, "up")
    assert ratios(told) == {"down": 1.0, "up": 0.25}


def test_wrong_byte_of_the_plugin_is_a_missed_bound() -> None:
    told = runs({"tunnel": [10.0], "plugin": [10.0]}, wrong=3)
    assert missed(told) == ["down: 3 streams of the plugin were cut short or wrong"]


def test_tunnel_that_hangs_leaves_no_ratio() -> None:
    told = runs({"tunnel": [120.0]}, wrong=49) + runs({"plugin": [10.0]})
    assert missed(told) == []
    assert table(told).row_count == 2
    told += runs({"tunnel": [10.0], "plugin": [20.0]})
    assert ratios(told) == {"down": 0.5}


def test_ratio_is_of_the_runs_that_followed_each_other() -> None:
    told = runs({"tunnel": [10.0, 100.0, 10.0], "plugin": [5.0, 50.0, 5.0]})
    assert ratios(told) == {"down": 2.0}


@pytest.mark.parametrize("fault", ["none", "another byte", "another stream's", "cut short", "reset"])
async def test_what_arrives_is_compared_with_what_was_sent(fault: str) -> None:
    size = 100_000

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            if fault == "reset":
                return
            begin = int((await stream.receive_some()).split()[2])
            if fault == "another stream's":
                begin += 1
            body = bytearray(pattern(size)[begin : begin + size])
            if fault == "another byte":
                body[size // 2] ^= 1
            if fault == "cut short":
                del body[-1]
            await stream.send_all(body)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        _, wrong = await carry(port, Transfer("down", size, 3), 10.0)
        nursery.cancel_scope.cancel()
    assert wrong == (0 if fault == "none" else 3)
