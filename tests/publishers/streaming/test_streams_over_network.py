"""Streams over a network that loses packets, doubles them and changes their order: what goes in comes out."""

from __future__ import annotations

import pytest

from garlicfarm_plugin_i2cp.streaming.limits import Limits
from tests.publishers.streaming.network import PEERS, Network, NetworkFaults, Served

UP = bytes(range(256)) * 400
DOWN = bytes(range(255, -1, -1)) * 500


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "faults",
    [
        NetworkFaults(),
        NetworkFaults(jitter_s=0.05),
        NetworkFaults(loss=0.02, jitter_s=0.02),
        NetworkFaults(loss=0.15, double=0.15, jitter_s=0.3),
    ],
    ids=["calm", "reordered", "lossy", "storm"],
)
def test_streams_deliver_both_directions_in_order_once(faults: NetworkFaults, seed: int) -> None:
    network = Network(seed, faults, serve=lambda stream: Served(stream, DOWN))
    initiators = [network.add(PEERS[number % 2], to_send=UP) for number in range(3)]
    network.run(600.0, lambda: all(each.is_done for each in initiators) and not network.streams)
    for initiator in initiators:
        assert initiator.received == DOWN
        assert network.stream_of(initiator).received == UP
    assert set(network.ends.values()) == {"closed"}
    assert network.streams.buffered == 0


def test_stream_whose_peer_vanishes_times_out_and_frees_its_bytes() -> None:
    network = Network(1, serve=lambda stream: Served(stream, DOWN))
    initiator = network.add(to_send=b"request")
    network.run(1.0, lambda: len(initiator.received) > 0)
    network.faults = NetworkFaults(loss=1.0)
    network.run(600.0, lambda: not network.streams, step_s=0.1)
    assert list(network.ends.values()) == ["timed_out"]
    assert network.streams.buffered == 0


def test_bytes_buffered_stay_below_the_limit_where_no_one_reads() -> None:
    limits = Limits(receive_buffer_bytes=64 * 1024)
    network = Network(1, limits=limits, serve=lambda stream: Served(stream, b"", reads=0))
    initiator = network.add(to_send=UP, window=100)
    network.run(5.0)
    assert 32 * 1024 < network.most_buffered <= 2 * limits.receive_buffer_bytes
    assert initiator.was_choked
    served = network.stream_of(initiator)
    served.reads = 4096
    served.run()
    network.run(60.0, lambda: initiator.is_done)
    assert served.received == UP
