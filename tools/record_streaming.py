"""Record the streaming packets that a real i2pd sends, as tests/data/streaming/README.md describes them.

    python -m tools.record_streaming DIRECTORY

Runs four i2pd routers in a private network, opens an I2CP session at one of them, and answers the streams of
another, well or badly on purpose; each scenario is a file in DIRECTORY. Needs i2pd and user namespaces.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from garlicfarm.errors import RemoteProtocolError, UnreachableError
from garlicfarm.i2p.destination import FILLER_BYTES, make_destination
from garlicfarm.i2p.encoding import b32_address, decode
from garlicfarm.i2p.i2cp import (
    LEASE_SET_2,
    MessagePayload,
    RequestLeaseSet,
    SessionStatus,
    TunnelLease,
    encode_create_lease_set2,
    encode_create_session,
    encode_send_message,
)
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.i2p.lease_set import X25519, EncryptionKey, Lease, LeaseSet, encode_lease_set
from garlicfarm.i2p.session_options import session_options
from garlicfarm.lab.i2pd import I2pdNetwork, i2pd_network, reexec_in_private_network
from garlicfarm.lab.i2pd_files import ClientTunnel, RouterPlan
from garlicfarm.lab.processes import free_ports
from garlicfarm.lab.site import fetch
from garlicfarm_plugin_i2cp.connection import Connection, open_connection, parse_address
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    DELAY_REQUESTED,
    ECHO,
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    OFFLINE_SIGNATURE,
    RESET,
    SIGNATURE_INCLUDED,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload

NAMES = {
    SYNCHRONIZE: "SYN",
    CLOSE: "CLOSE",
    RESET: "RESET",
    SIGNATURE_INCLUDED: "SIGNED",
    FROM_INCLUDED: "FROM",
    DELAY_REQUESTED: "DELAY",
    MAX_PACKET_SIZE: "MAX_SIZE",
    ECHO: "ECHO",
    NO_ACK: "NO_ACK",
    OFFLINE_SIGNATURE: "OFFLINE",
}
LIFETIME_S = 600
MTU = 1730
PING_EACH_S = 4
OFFLINE_KEYS = "offline.dat"


def described(payload: bytes) -> str:
    """The header of the packet in a payload, for readers."""
    raw = decode_payload(payload).data
    packet = decode_packet(raw)
    flags = " ".join(name for flag, name in NAMES.items() if packet.flags & flag) or "-"
    nacks = f" nacks {list(packet.nacks)}" if packet.nacks else ""
    options = len(raw) - len(packet.data) - len(encode_packet(Packet(0, 0, 0, 0, packet.nacks)))
    return (
        f"to {packet.to_stream:08x} from {packet.from_stream:08x} seq {packet.sequence} "
        f"ack {packet.ack_through}{nacks} delay {packet.resend_delay_s} {flags} options {options} "
        f"data {len(packet.data)}"
    )


class Recorder:
    """Writes the packets of the scenario that is on. ``name``: of its file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lines: list[dict[str, Any]] = []
        self._begun_s = 0.0

    def begin(self) -> None:
        self._lines, self._begun_s = [], trio.current_time()

    def record(self, sender: str, payload: bytes) -> None:
        ms = round(1000 * (trio.current_time() - self._begun_s))
        what = described(payload)
        self._lines.append({"ms": ms, "from": sender, "what": what, "payload": payload.hex()})

    def end(self, name: str, *, pings: bool = False) -> None:
        lines = [line for line in self._lines if pings or "ECHO" not in line["what"]]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self._directory / f"{name}.jsonl").write_text(text)
        print(f"{name}: {len(lines)} packets", flush=True)
        self.begin()


Answer = Callable[[Packet], None]


class Session:
    """An I2CP session that publishes its own LeaseSet. ``answer`` is called with each packet, and calls
    `send`."""

    def __init__(self, connection: Connection, keys: DestinationKeys, recorder: Recorder) -> None:
        self.keys = keys
        self._connection = connection
        self._recorder = recorder
        self._id = 0
        self._private = X25519PrivateKey.generate()
        self._to_send: list[bytes] = []
        self._wake = trio.Event()
        self.peer = b""
        self._answer: Answer = lambda _: None
        self._streams: set[int] = set()
        self._past: set[int] = set()
        self.published = trio.Event()

    def answer_by(self, answer: Answer) -> None:
        """Let ``answer`` have the packets of new streams; nobody has those of earlier ones."""
        self._past |= self._streams
        self._answer = answer

    def pause(self) -> None:
        """Read the packets of this stream, and answer none."""
        self._answer = lambda _: None

    def resume(self, answer: Answer) -> None:
        self._answer = answer

    async def run(self) -> None:
        await self._connection.greet()
        options = session_options("active", 0, 2)
        configuration = self.keys.session_configuration(options, time.time_ns() // 1_000_000, "active")
        await self._connection.send(encode_create_session(configuration))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send)
            while True:
                match await self._connection.receive():
                    case SessionStatus(session, status):
                        assert status == 1, status
                        self._id = session
                    case RequestLeaseSet(leases=leases):
                        private = self._private.private_bytes_raw()
                        lease_set = self._lease_set(leases)
                        keys = [EncryptionKey(X25519, private)]
                        self._queue(encode_create_lease_set2(self._id, LEASE_SET_2, lease_set, keys))
                        self.published.set()
                    case MessagePayload(payload=payload):
                        self._on_payload(payload)

    def send(self, packet: Packet) -> None:
        """Give the router a packet, signed where the protocol asks for it."""
        sign = self.keys.sign if packet.flags & (SYNCHRONIZE | CLOSE | RESET) else None
        payload = encode_payload(encode_packet(packet, sign), 0, 0)
        self._recorder.record("us", payload)
        self._queue(encode_send_message(self._id, self.peer, payload))

    def _on_payload(self, payload: bytes) -> None:
        packet = decode_packet(decode_payload(payload).data)
        if packet.from_stream in self._past:
            return
        self._recorder.record("i2pd", payload)
        if packet.flags & SYNCHRONIZE:
            assert packet.destination is not None
            self._streams.add(packet.from_stream)
            self.peer = packet.destination
        self._answer(packet)

    def _lease_set(self, tunnels: tuple[TunnelLease, ...]) -> bytes:
        lease_set = LeaseSet(
            destination=self.keys.destination,
            published_s=int(time.time()),
            expires_s=LIFETIME_S,
            encryption_keys=(EncryptionKey(X25519, self._private.public_key().public_bytes_raw()),),
            leases=tuple(Lease(each.gateway, each.tunnel, each.end_ms // 1000) for each in tunnels),
            offline=self.keys.offline,
        )
        return encode_lease_set(lease_set, self.keys.sign)

    def _queue(self, message: bytes) -> None:
        self._to_send.append(message)
        self._wake.set()

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            messages, self._to_send = self._to_send, []
            await self._connection.send(*messages)


class Server:
    """Answers one stream, in order and without resending."""

    def __init__(self, session: Session, response: bytes = b"") -> None:
        self._session = session
        self._response = response
        self._id = int.from_bytes(secrets.token_bytes(4), "big") or 1
        self.peer_id = 0
        self.received = b""
        self.seen = -1
        self._next = 0
        self.acked = -1
        self.is_closed = False

    def __call__(self, packet: Packet) -> None:
        if not packet.flags & NO_ACK:
            self.acked = max(self.acked, packet.ack_through)
        if packet.flags & SYNCHRONIZE and not self.peer_id:
            self.peer_id = packet.from_stream
            self.seen = 0
            self.received += packet.data
            self.send(SYNCHRONIZE)
        elif packet.sequence == self.seen + 1:
            self.seen += 1
            self.received += packet.data
            if packet.flags & CLOSE:
                self.is_closed = True
            self.ack()
        elif packet.sequence:
            self.ack()
        if self._response and b"\r\n\r\n" in self.received:
            response, self._response = self._response, b""
            self.send(data=response)
            self.send(CLOSE)

    def ack(self, *nacks: int, through: int | None = None) -> None:
        ack = self.seen if through is None else through
        self._session.send(Packet(self.peer_id, self._id, 0, ack, nacks))

    def send(self, flags: int = 0, data: bytes = b"", seq: int | None = None) -> None:
        """The next packet of the stream, or that of number ``seq``."""
        if seq is None:
            seq, self._next = self._next, self._next + 1
        packet = Packet(self.peer_id, self._id, seq, max(self.seen, 0), flags=flags, data=data)
        if flags & SYNCHRONIZE:
            packet.flags |= FROM_INCLUDED | MAX_PACKET_SIZE
            packet.destination, packet.max_data = self._session.keys.destination, MTU
        self._session.send(packet)


async def until(is_true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    with trio.fail_after(timeout_s):
        while not is_true():  # noqa: ASYNC110
            await trio.sleep(0.02)


async def connect(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


async def record(network: I2pdNetwork, session: Session, recorder: Recorder, tunnels: list[int]) -> None:
    raw, pinged, offline = tunnels

    @asynccontextmanager
    async def scenario(
        name: str, port: int = raw, *, is_closed: bool = True
    ) -> AsyncIterator[tuple[Server, trio.SocketStream]]:
        """A stream and who answers it. ``is_closed``: the client's router closes it at the end."""
        server = Server(session)
        session.answer_by(server)
        async with await connect(port) as stream:
            yield server, stream
        if is_closed:
            await until(lambda: server.is_closed)
        await trio.sleep(2)
        recorder.end(name)

    client = network[3]
    host = b32_address(session.keys.destination)

    # The first look-ups may come before the LeaseSet has been stored.
    body = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    while True:
        session.answer_by(Server(session, body))
        try:
            with trio.fail_after(10):
                await fetch(client.proxy, host)
            break
        except (UnreachableError, RemoteProtocolError, trio.TooSlowError):
            await trio.sleep(1)
    await trio.sleep(3)

    recorder.begin()
    session.answer_by(Server(session, body))
    assert await fetch(client.proxy, host) == "hello"
    await trio.sleep(3)
    recorder.end("get")

    async with scenario("upload-closed-by-client") as (server, stream):
        await stream.send_all(bytes(range(256)) * 80)
        await until(lambda: len(server.received) == 256 * 80)
        server.send(data=b"have it")
        assert await stream.receive_some() == b"have it"

    async with scenario("out-of-order-nacked", is_closed=False) as (server, stream):
        await stream.send_all(b"send")
        await until(lambda: server.received == b"send")
        for number in (1, 4, 2, 6, 3, 5):
            server.send(data=b"%d" % number, seq=number)
            await trio.sleep(0.2)
        server.send(data=b"1", seq=1)
        await trio.sleep(0.5)
        server.send(CLOSE, seq=7)
        data = b""
        while piece := await stream.receive_some():
            data += piece
        assert data == b"123456", data

    async with scenario("client-signs-offline", offline) as (server, stream):
        await stream.send_all(b"signed offline")
        await until(lambda: server.received == b"signed offline")
        server.send(data=b"read")
        assert await stream.receive_some() == b"read"

    session.answer_by(lambda _: None)
    async with await connect(raw) as stream:
        await stream.send_all(b"lost")
        await trio.sleep(40)
    recorder.end("syn-resent")

    async with scenario("data-resent") as (server, stream):
        await stream.send_all(b"first")
        await until(lambda: server.received == b"first")
        for _ in range(3):
            before = len(server.received)
            await stream.send_all(b"more")
            await until(lambda: len(server.received) > before)  # noqa: B023
        session.pause()
        await stream.send_all(bytes(8000))
        await trio.sleep(10)
        session.resume(server)
        server.ack()
        await until(lambda: len(server.received) == 5 + 12 + 8000)

    async with scenario("reset-by-server", is_closed=False) as (server, stream):
        await stream.send_all(b"reset me")
        await until(lambda: server.received == b"reset me")
        server.send(RESET)
        assert await stream.receive_some() == b""

    session.answer_by(lambda _: None)
    await trio.sleep(2.5 * PING_EACH_S)
    async with await connect(pinged):
        await trio.sleep(2.5 * PING_EACH_S)
    recorder.end("ping", pings=True)


def client_keys() -> DestinationKeys:
    """Keys of a client that signs offline."""
    seed = secrets.token_bytes(32)
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    long_term = DestinationKeys(
        destination=make_destination(public, secrets.token_bytes(FILLER_BYTES)), seed=seed
    )
    now_s = int(time.time())
    return make_bundle(
        long_term,
        secrets.token_bytes(32),
        node=1,
        expires_s=now_s + 20 * 365 * 86_400,
        now_ms=now_s * 1000,
        hops=0,
        quantity=2,
    )


def service_keys() -> DestinationKeys:
    """Fixed, so that a test can sign what the service would."""
    seed = bytes(range(32))
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return DestinationKeys(destination=make_destination(public, bytes(FILLER_BYTES)), seed=seed)


@asynccontextmanager
async def opened_session(
    network: I2pdNetwork, keys: DestinationKeys, recorder: Recorder
) -> AsyncIterator[Session]:
    async with (
        open_connection(parse_address(network[2].i2cp), lambda: time.time_ns() // 1_000_000) as connection,
        trio.open_nursery() as nursery,
    ):
        session = Session(connection, keys, recorder)
        nursery.start_soon(session.run)
        await session.published.wait()
        yield session
        nursery.cancel_scope.cancel()


async def main(directory: Path) -> None:
    keys = service_keys()
    ports = free_ports(3)
    host = b32_address(keys.destination)
    tunnels = (
        ClientTunnel(host, ports[0], "raw.dat"),
        ClientTunnel(host, ports[1], "pinged.dat", keep_alive_s=PING_EACH_S),
        ClientTunnel(host, ports[2], OFFLINE_KEYS),
    )
    plans = [
        *[RouterPlan(has_leaf=False)] * 2,
        RouterPlan(is_floodfill=False, has_leaf=False, has_i2cp=True),
        RouterPlan(
            is_floodfill=False,
            has_leaf=False,
            has_proxy=True,
            tunnels=tunnels,
            files={OFFLINE_KEYS: decode(client_keys().sam_private_key())},
        ),
    ]
    recorder = Recorder(directory)
    with tempfile.TemporaryDirectory() as routers:
        async with (
            i2pd_network(Path(routers), plans) as network,
            opened_session(network, keys, recorder) as session,
        ):
            await trio.sleep(5)
            with trio.fail_after(600):
                await record(network, session, recorder, ports)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["inside", directory]:
            trio.run(main, Path(directory))
        case [directory]:
            os.makedirs(directory, exist_ok=True)
            reexec_in_private_network([sys.executable, "-m", "tools.record_streaming", "inside", directory])
        case _:
            sys.exit(__doc__)
