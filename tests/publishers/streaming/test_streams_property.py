"""What goes in comes out, in order, once, or the stream fails on both sides. The bytes kept are bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm_plugin_i2cp.streaming.limits import Limits
from tests.publishers.streaming.network import PEERS, Network, NetworkFaults, Served

FAULTS = st.builds(
    NetworkFaults,
    loss=st.sampled_from([0.0, 0.02, 0.2, 0.4]),
    double=st.sampled_from([0.0, 0.2]),
    delay_s=st.sampled_from([0.001, 0.05, 0.5]),
    jitter_s=st.sampled_from([0.0, 0.02, 0.5]),
)
LIMITS = st.builds(
    Limits,
    receive_buffer_bytes=st.sampled_from([4000, 64_000]),
    send_buffer_bytes=st.sampled_from([1000, 64_000]),
    buffer_bytes=st.sampled_from([10_000, 1 << 20]),
    window=st.sampled_from([1, 8, 128]),
)
SIZES = st.sampled_from([0, 1, 1811, 1812, 1813, 30_000, 100_000])
FLOOR_BYTES = 16 * 1024


def content(size: int, step: int) -> bytes:
    return bytes(step * at % 251 for at in range(251)) * (size // 251 + 1)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    faults=FAULTS,
    limits=LIMITS,
    up=SIZES,
    down=SIZES,
    max_data=st.sampled_from([600, 1730, 1812]),
    window=st.sampled_from([1, 7, 100]),
    reads=st.sampled_from([1, 1000, 1 << 16]),
    closes_early=st.booleans(),
    peers=st.integers(1, 3),
    cut_after_s=st.none() | st.floats(0.0, 5.0),
    cut_s=st.sampled_from([1.0, 20.0, 10_000.0]),
)
def test_what_goes_in_comes_out_in_order_once_or_both_sides_fail(
    seed, faults, limits, up, down, max_data, window, reads, closes_early, peers, cut_after_s, cut_s
):
    to_service, to_peer = content(up, 3)[:up], content(down, 7)[:down]
    network = Network(
        seed,
        faults,
        limits=limits,
        serve=lambda stream: Served(stream, to_peer, reads=reads, closes_early=closes_early),
    )
    initiators = [
        network.add(PEERS[number], to_send=to_service, max_data=max_data, window=window)
        for number in range(peers)
    ]

    def is_over() -> bool:
        return not network.streams and all(each.is_done or each.failure for each in initiators)

    if cut_after_s is not None:
        network.run(cut_after_s, is_over)
        network.faults = NetworkFaults(loss=1.0)
        network.run(cut_s, is_over)
        network.faults = faults
    network.run(20_000.0, is_over)
    assert is_over()
    assert network.streams.buffered == 0
    per_stream = limits.send_buffer_bytes + 2 * limits.receive_buffer_bytes + 2 * FLOOR_BYTES
    assert network.most_buffered <= peers * (per_stream + limits.window * max_data + 2 * max_data)
    for stream, served in network.by_stream.items():
        (initiator,) = (each for each in initiators if each.keys.destination == stream.peer)
        assert to_service.startswith(served.received)
        assert to_peer.startswith(initiator.received)
        if stream.ended == "closed" or initiator.is_done:
            assert served.received == to_service
            assert initiator.received == to_peer
        if not initiator.is_done:
            assert initiator.failure
        if initiator.failure == "reset":
            assert stream.ended in ("timed_out", "idle", "reset")
