"""Records what a Java I2P answers over I2CP and SAM: python -m tools.record_java_i2p I2CP SAM DIRECTORY

I2CP and SAM: HOST:PORT on loopback, of one router. Its clock has to be this machine's. Writes a file for each
conversation, as tests/data/java/README.md describes it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from garlicfarm.i2p import i2cp
from garlicfarm.i2p.destination import FILLER_BYTES, make_destination
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import EncryptionKey, Lease, LeaseSet, encode_lease_set
from garlicfarm.i2p.session_options import session_options, tunnel_options
from garlicfarm.i2p.signing import ED25519, public_key
from garlicfarm_plugin_i2cp.connection import GET_DATE
from garlicfarm_plugin_i2cp.streaming.payload import encode_payload
from tests.publishers.i2cp_keys import meta_lease_set

QUIET_S = 3.0
READY_S = 120.0
KEYS = [b"\1" * 32, b"\2" * 32]
CREATING_S = 0.5
"""After which the router knows the id of a session that it is creating."""
CHUNK_BYTES = 65_536


def service_keys(number: int) -> DestinationKeys:
    """Java I2P 2.7.0 does not read the destination of `long_term_keys`, whose filler is zeros."""
    seed = number.to_bytes(2, "big") * 16
    filler = bytes(range(256)) * 2
    return DestinationKeys(
        destination=make_destination(public_key(ED25519, seed), filler[:FILLER_BYTES]), seed=seed
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Recorder:
    """One conversation, over any number of connections."""

    def __init__(self, addresses: dict[str, tuple[str, int]]) -> None:
        self._addresses = addresses
        self._begun_s = time.monotonic()
        self.lines: list[dict[str, Any]] = []
        self._streams: list[trio.SocketStream] = []

    async def open(self, to: str) -> int:
        """The number of a new connection."""
        self._streams.append(await trio.open_tcp_stream(*self._addresses[to]))
        return len(self._streams) - 1

    async def send(self, connection: int, what: str, data: bytes) -> None:
        self._note(connection, "us", data, what)
        with suppress(trio.BrokenResourceError):  # it has closed: `hear` notes that
            await self._streams[connection].send_all(data)

    async def hear(
        self, connection: int, until: Callable[[bytes], bool] = lambda heard: False, within_s: float = QUIET_S
    ) -> bytes:
        """What the router sends: until that is true of it, it closes, or it has said nothing for so long."""
        heard = b""
        while not until(heard):
            with trio.move_on_after(within_s) as scope:
                try:
                    data = bytes(await self._streams[connection].receive_some(CHUNK_BYTES))
                except trio.BrokenResourceError:
                    data = b""
            if scope.cancelled_caught:
                break
            self._note(connection, "java", data, "" if data else "it closes")
            if not data:
                break
            heard += data
        return heard

    async def close(self) -> None:
        for stream in self._streams:
            await trio.aclose_forcefully(stream)

    def _note(self, connection: int, from_: str, data: bytes, what: str) -> None:
        ms = round((time.monotonic() - self._begun_s) * 1000)
        line = {"ms": ms, "connection": connection, "from": from_, "what": what, "data": data.hex()}
        self.lines.append(line)


# ---------------------------------------------------------------------- I2CP


async def greet(recorder: Recorder) -> int:
    connection = await recorder.open("i2cp")
    await recorder.send(connection, "protocol byte, GetDate", i2cp.PROTOCOL_BYTE + GET_DATE)
    await recorder.hear(connection, until=has_date, within_s=READY_S)
    return connection


async def create(
    recorder: Recorder, connection: int, keys: DestinationKeys, date_ms: int
) -> list[i2cp.Message]:
    """What the router has said by the time that it has asked for a LeaseSet."""
    configuration = keys.session_configuration(session_options("standby", 0, 1), date_ms, "standby")
    await recorder.send(connection, "CreateSession", i2cp.encode_create_session(configuration))
    return messages(await recorder.hear(connection, until=has_asked, within_s=READY_S))


def messages(heard: bytes) -> list[i2cp.Message]:
    decoder = i2cp.MessageDecoder()
    decoder.receive_data(heard)
    found = []
    while (message := decoder.next_message()) is not None:
        found.append(message)
    return found


def has_asked(heard: bytes) -> bool:
    return any(isinstance(each, i2cp.RequestLeaseSet) for each in messages(heard))


def has_date(heard: bytes) -> bool:
    return any(isinstance(each, i2cp.SetDate) for each in messages(heard))


def has_line(heard: bytes) -> bool:
    return heard.endswith(b"\n")


def lease_set(keys: DestinationKeys, asked: i2cp.RequestLeaseSet, key: bytes) -> bytes:
    public = X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
    return encode_lease_set(
        LeaseSet(
            destination=keys.destination,
            published_s=now_ms() // 1000,
            expires_s=90,
            encryption_keys=(EncryptionKey(4, public),),
            leases=tuple(Lease(each.gateway, each.tunnel, each.end_ms // 1000) for each in asked.leases),
        ),
        keys.sign,
    )


async def session(recorder: Recorder, keys: DestinationKeys) -> tuple[int, int, bytes]:
    """A session with a LeaseSet: the connection, its id, and what CreateLeaseSet2 was."""
    connection = await greet(recorder)
    said = await create(recorder, connection, keys, now_ms())
    asked = next(each for each in said if isinstance(each, i2cp.RequestLeaseSet))
    given = i2cp.encode_create_lease_set2(
        asked.session, i2cp.LEASE_SET_2, lease_set(keys, asked, KEYS[0]), [EncryptionKey(4, KEYS[0])]
    )
    await recorder.send(connection, "CreateLeaseSet2, GetDate", given + GET_DATE)
    await recorder.hear(connection, until=has_date, within_s=READY_S)
    return connection, asked.session, lease_set(keys, asked, KEYS[1])


async def session_that_lasts(recorder: Recorder) -> None:
    keys = service_keys(1)
    connection, id_, _ = await session(recorder, keys)
    await recorder.send(connection, "GetBandwidthLimits", i2cp.encode_get_bandwidth_limits())
    await recorder.hear(connection)
    configuration = keys.session_configuration(session_options("active", 0, 1), now_ms(), "active")
    reconfigure = i2cp.encode_reconfigure_session(id_, configuration)
    await recorder.send(connection, "ReconfigureSession, GetDate", reconfigure + GET_DATE)
    await recorder.hear(connection)
    await recorder.send(connection, "DestroySession", i2cp.encode_destroy_session(id_))
    await recorder.hear(connection)


async def key_mismatch(recorder: Recorder) -> None:
    connection, id_, of_another = await session(recorder, service_keys(2))
    given = i2cp.encode_create_lease_set2(id_, i2cp.LEASE_SET_2, of_another, [EncryptionKey(4, KEYS[0])])
    await recorder.send(
        connection, "CreateLeaseSet2 with a key that is not its own, GetDate", given + GET_DATE
    )
    await recorder.hear(connection, within_s=10)


async def old_date(recorder: Recorder) -> None:
    connection = await greet(recorder)
    await create(recorder, connection, service_keys(3), now_ms() - 190_000)


async def same_destination(recorder: Recorder) -> None:
    keys = service_keys(4)
    await session(recorder, keys)
    connection = await greet(recorder)
    await create(recorder, connection, keys, now_ms())


async def meta(recorder: Recorder, *, counts_keys: bool, number: int) -> None:
    keys = service_keys(number)
    connection = await greet(recorder)
    configuration = keys.session_configuration(session_options("meta", 0, 1), now_ms(), "meta")
    await recorder.send(connection, "CreateSession", i2cp.encode_create_session(configuration))
    heard = await recorder.hear(connection)
    id_ = int.from_bytes(heard[5:7], "big")
    data = meta_lease_set(keys, now_ms(), 600)
    given = i2cp.encode_create_lease_set2(id_, i2cp.META_LEASE_SET, data, counts_keys=counts_keys)
    await recorder.send(connection, "CreateLeaseSet2 with a Meta LeaseSet, GetDate", given + GET_DATE)
    await recorder.hear(connection, within_s=10)
    await recorder.send(connection, "GetDate", GET_DATE)
    await recorder.hear(connection)


async def local_delivery(recorder: Recorder) -> None:
    standby, client = service_keys(7), service_keys(8)
    serving, _, _ = await session(recorder, standby)
    connection, id_, _ = await session(recorder, client)
    payload = encode_payload(b"a packet of a client", 0, 0)
    await recorder.send(
        connection, "SendMessage", i2cp.encode_send_message(id_, standby.destination, payload)
    )
    await recorder.hear(serving)


# ----------------------------------------------------------------------- SAM


async def sam(
    recorder: Recorder, *commands: str, connection: int | None = None, waits_s: float = QUIET_S
) -> int:
    """Carry out these commands, on a connection of their own unless there is one."""
    if connection is None:
        connection = await recorder.open("sam")
        commands = ("HELLO VERSION MIN=3.0 MAX=3.1", *commands)
    for command in commands:
        await recorder.send(connection, "", f"{command}\n".encode())
        await recorder.hear(connection, until=has_line, within_s=waits_s)
    return connection


def create_sam(id_: str, destination: str) -> str:
    options = " ".join(f"{key}={value}" for key, value in tunnel_options(0, 1).items())
    return f"SESSION CREATE STYLE=STREAM ID={id_} DESTINATION={destination} {options} i2cp.leaseSetEncType=4"


async def sam_service(recorder: Recorder) -> None:
    keys = service_keys(9)
    private_key = keys.sam_private_key()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    forward = f"STREAM FORWARD ID=service PORT={listeners[0].socket.getsockname()[1]} SILENT=true"
    await sam(recorder, forward)
    service = await sam(recorder)
    await recorder.send(service, "", f"{create_sam('service', private_key)}\n".encode())
    await trio.sleep(CREATING_S)
    early = await sam(recorder, forward)
    await recorder.hear(early)
    await recorder.hear(service, until=has_line, within_s=READY_S)
    forwarding = await sam(recorder, forward)
    await sam(recorder, create_sam("service", "TRANSIENT SIGNATURE_TYPE=EdDSA_SHA512_Ed25519"))
    client = await sam(recorder)
    transient = create_sam("client", "TRANSIENT SIGNATURE_TYPE=EdDSA_SHA512_Ed25519")
    await sam(recorder, transient, connection=client, waits_s=READY_S)
    for name in (b32_address(service_keys(99).destination), b32_address(keys.destination)):
        asking = await sam(recorder)
        connect = f"STREAM CONNECT ID=client DESTINATION={name} SILENT=false"
        await sam(recorder, connect, connection=asking, waits_s=READY_S)
        await recorder.hear(asking)
        await sam(recorder, f"NAMING LOOKUP NAME={name}", waits_s=READY_S)
    await sam(recorder, "NAMING LOOKUP NAME=ME", connection=service)
    await sam(recorder, create_sam("again", private_key), waits_s=READY_S)
    await recorder.hear(forwarding)


CONVERSATIONS: dict[str, Callable[[Recorder], Awaitable[None]]] = {
    "i2cp-session": session_that_lasts,
    "i2cp-key-mismatch": key_mismatch,
    "i2cp-old-date": old_date,
    "i2cp-same-destination": same_destination,
    "i2cp-meta": lambda recorder: meta(recorder, counts_keys=False, number=5),
    "i2cp-meta-with-count": lambda recorder: meta(recorder, counts_keys=True, number=6),
    "i2cp-local-delivery": local_delivery,
    "sam-service": sam_service,
}


async def main(i2cp_address: str, sam_address: str, directory: Path) -> None:
    addresses = {}
    for name, address in (("i2cp", i2cp_address), ("sam", sam_address)):
        host, _, port = address.rpartition(":")
        addresses[name] = (host, int(port))
    for name, hold in CONVERSATIONS.items():
        recorder = Recorder(addresses)
        try:
            await hold(recorder)
        finally:
            await recorder.close()
            lines = [json.dumps(line) + "\n" for line in recorder.lines]
            (directory / f"{name}.jsonl").write_text("".join(lines))
        print(f"{name}: {len(lines)} lines", flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
