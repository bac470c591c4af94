"""The service's keys are replaced while streams are open."""

from __future__ import annotations

from garlicfarm.i2p.destination import signing_key
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm_plugin_i2cp.streaming.packet import decode_packet, encode_packet
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload
from garlicfarm_plugin_i2cp.streaming.signatures import verify_packet
from tests.publishers.i2cp_keys import DAY_S
from tests.publishers.streaming.network import NOW_MS, SERVICE
from tests.publishers.streaming.play import PEER, Play, syn


def transient_keys() -> DestinationKeys:
    return make_bundle(
        SERVICE,
        bytes(32),
        node=1,
        expires_s=NOW_MS // 1000 + DAY_S,
        now_ms=NOW_MS,
        hops=1,
        quantity=1,
    )


def test_stream_keeps_the_keys_that_its_answer_was_signed_with_and_the_next_one_has_the_new_ones() -> None:
    """i2pd checks a CLOSE with the key of the answer to its SYN."""
    play = Play()
    stream = play.open()
    new = transient_keys()
    play.streams.use_keys(new)
    stream.close()
    (close,) = play.take()  # which checks the signature of the keys of before
    assert close.from_stream == stream.id
    play.give_bytes(encode_payload(encode_packet(syn(id_=7), PEER.sign), 5, 80))
    ((_, payload),) = play.streams.take_payloads(play.now_s)
    data = decode_payload(payload).data
    answer = decode_packet(data)
    verify_packet(data, answer, signing_key(new.destination), None, NOW_MS)
    assert new.offline is not None
    assert answer.signed_options.startswith(new.offline.encode())
