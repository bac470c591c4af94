"""What an I2P router and peers behind it send: LeaseSets, I2CP, streams; files of keys."""

from __future__ import annotations

import gzip
import tempfile
from functools import cache
from pathlib import Path
from random import Random

from garlicfarm.credentials.destination_keys import read_keys, write_bundle
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.destination import FILLER_BYTES, make_destination
from garlicfarm.i2p.encoding import decode
from garlicfarm.i2p.i2cp import MessageDecoder
from garlicfarm.i2p.keys import DestinationKeys, decode_private_key, make_bundle
from garlicfarm.i2p.lease_set import (
    MetaLease,
    MetaLeaseSet,
    decode_lease_set,
    decode_meta_lease_set,
    encode_lease_set,
    encode_meta_lease_set,
    verify_lease_set,
    verify_meta_lease_set,
)
from garlicfarm.i2p.session_configuration import (
    decode_session_configuration,
    encode_session_configuration,
    verify_session_configuration,
)
from garlicfarm_plugin_i2cp.streaming import packet as packet_of_streams
from garlicfarm_plugin_i2cp.streaming.packet import Packet, encode_packet
from garlicfarm_plugin_i2cp.streaming.payload import encode_payload
from garlicfarm_plugin_i2cp.streaming.streams import Streams
from tests.fuzz.targets.base import KEY, MEMORY, Target, choice, decoded, pieces, public_key


def i2p(data: bytes) -> None:
    """LeaseSets, I2CP configurations and files of keys. What is read is written as it was."""
    kind, rest = choice(data, 4)
    try:
        if kind == 0:
            assert encode_meta_lease_set(decode_meta_lease_set(rest), lambda _: rest[-64:]) == rest
            verify_meta_lease_set(rest, 0)
        elif kind == 1:
            assert encode_lease_set(decode_lease_set(rest), lambda _: rest[-64:]) == rest
            verify_lease_set(rest, 0)
        elif kind == 2:
            read = decode_session_configuration(rest)
            written = encode_session_configuration(
                read.destination, read.options, read.date_ms, lambda _: rest[-64:]
            )
            assert written == rest
            verify_session_configuration(rest)
        else:
            with tempfile.NamedTemporaryFile(dir=MEMORY) as file:
                file.write(rest)
                file.flush()
                keys = read_keys(Path(file.name))
            assert decode_private_key(decode(keys.sam_private_key())).seed == keys.seed
    except (ValueError, ConfigError):
        pass


def _i2p_seeds() -> list[bytes]:
    long_term = DestinationKeys(destination=make_destination(public_key(KEY), bytes(FILLER_BYTES)), seed=KEY)
    bundle = make_bundle(long_term, bytes(32), node=1, expires_s=2**32 - 1, now_ms=5, hops=3, quantity=2)
    seeds = []
    for keys in (long_term, bundle):
        meta = MetaLeaseSet(
            destination=keys.destination,
            published_s=1000,
            expires_s=600,
            leases=(MetaLease(bytes(32), 0, 1500), MetaLease(b"\1" * 32, 15, 1600)),
            offline=keys.offline,
        )
        seeds.append(b"\0" + encode_meta_lease_set(meta, keys.sign))
        offline = keys.offline.encode() if keys.offline else b""
        ordinary = keys.destination + bytes(7) + (b"\1" if offline else b"\0") + offline
        ordinary += bytes.fromhex("0000 01 0004 0020") + bytes(32) + b"\1" + bytes(40)
        seeds.append(b"\1" + ordinary + keys.sign(b"\3" + ordinary))
        seeds.append(b"\2" + keys.session_configuration({"a": "b", "c": ""}, 5))
        seeds.append(b"\3" + keys.sam_private_key().encode())
        seeds.append(b"\3" + decode(keys.sam_private_key()))
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        write_bundle(Path(directory, "bundle"), bundle)
        seeds.append(b"\3" + Path(directory, "bundle").read_bytes())
    return seeds


def i2cp(data: bytes) -> None:
    """What a router sends over I2CP, whole and in pieces."""
    size, data = data[0] if data else 0, data[1:]
    whole, cut = (decoded(MessageDecoder(), pieces(data, at)) for at in (0, size))
    assert cut == whole


def _i2cp_seeds() -> list[bytes]:
    lease = bytes(range(32)) + bytes(4)
    bodies = {
        20: bytes.fromhex("a1b201"),
        21: b"\xa1\xb2\x01" + lease + bytes(8),
        30: b"\x04gone",
        33: bytes.fromhex("0000019aa5b6c7d8") + b"\x062.45.1",
        37: b"\xa1\xb2\x02" + 2 * (lease + bytes(8)),
        39: bytes.fromhex("ffff0000000100") + bytes(391),
        31: b"\xa1\xb2payload",
    }
    messages = [len(body).to_bytes(4, "big") + bytes([type_]) + body for type_, body in bodies.items()]
    return [bytes([size]) + stream for size in (0, 3) for stream in (*messages, b"".join(messages))]


class _Counted(Random):
    """Gives streams the ids 1, 2, 3 …"""

    last = 0

    def getrandbits(self, bits: int, /) -> int:
        self.last += 1
        return self.last


def streams(data: bytes) -> None:
    """What peers send to the streams of a destination: ``length u16 | wait u8 (s) | packet``, again and
    again, after a SYN that has opened one. With the highest bit of the length: a payload, not a packet."""
    peer = _stream_keys(1)
    incoming = Streams(_stream_keys(2), random=_Counted(1))
    incoming.receive_payload(_payload(encode_packet(_syn(), peer.sign)), 0.0, 0)
    now_s = 0.0
    while len(data) > 3:
        length = int.from_bytes(data[:2], "big")
        now_s += data[2]
        given, data = data[3:][: length & 0x7FFF], data[3:][length & 0x7FFF :]
        incoming.receive_payload(given if length & 0x8000 else _payload(given), now_s, 0)
        incoming.take_payloads(now_s)
        for event in incoming.take_events():
            event.stream.write(event.stream.read(1000))
    incoming.reset_all()
    assert incoming.buffered == 0


@cache
def _stream_keys(number: int) -> DestinationKeys:
    seed = bytes([number]) * 32
    return DestinationKeys(destination=make_destination(public_key(seed), bytes(FILLER_BYTES)), seed=seed)


def _payload(packet: bytes) -> bytes:
    return encode_payload(packet, 0, 0) if len(packet) < 1 << 16 else packet


def _syn(stream: int = 1) -> Packet:
    flags = packet_of_streams.SYNCHRONIZE | packet_of_streams.FROM_INCLUDED
    return Packet(0, stream, 0, 0, flags=flags, destination=_stream_keys(1).destination)


def _streams_seeds() -> list[bytes]:
    sign = _stream_keys(1).sign
    ping = Packet(7, 0, 0, 0, flags=packet_of_streams.ECHO | packet_of_streams.FROM_INCLUDED)
    ping.destination = _stream_keys(1).destination
    packets = [
        encode_packet(Packet(1, 1, 1, 0, data=b"data")),
        encode_packet(Packet(1, 1, 3, 0, [1, 2], packet_of_streams.DELAY_REQUESTED, delay_ms=60_000)),
        encode_packet(Packet(1, 1, 2, 1, flags=packet_of_streams.CLOSE), sign),
        encode_packet(Packet(1, 1, 2, 1, flags=packet_of_streams.RESET), sign),
        encode_packet(Packet(0, 2, 1, 0, data=b"early")),
        encode_packet(_syn(2), sign),
        encode_packet(ping, sign),
    ]
    steps = [len(packet).to_bytes(2, "big") + b"\1" + packet for packet in packets]
    squeezed = gzip.compress(packets[0])
    return [*steps, b"".join(steps), (0x8000 | len(squeezed)).to_bytes(2, "big") + b"\0" + squeezed]


TARGETS = {
    "i2p": Target(i2p, _i2p_seeds),
    "i2cp": Target(i2cp, _i2cp_seeds),
    "streams": Target(streams, _streams_seeds),
}
