"""A keeper of a service's session, and its router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import X25519, EncryptionKey, LeaseSet, encode_lease_set, verify_lease_set
from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.i2p.session_configuration import decode_session_configuration, verify_session_configuration
from garlicfarm.i2p.session_options import Purpose, session_options
from garlicfarm.publisher import PublishOrder
from garlicfarm.service_keys import ServiceKeys
from garlicfarm_plugin_i2cp.service_keeper import ServiceKeeper
from garlicfarm_plugin_i2cp.service_session import LeasePlan
from garlicfarm_plugin_i2cp.streaming.stream import Keys
from tests.publishers.i2cp_router import (
    CREATE_LEASE_SET_2,
    CREATE_SESSION,
    RECONFIGURE_SESSION,
    START_MS,
    KeeperBench,
)

SESSION = b"\x12\x34"
BUNDLE_S = 3600


@dataclass
class Given:
    """A LeaseSet that the router was given, and when; with the private key in the same message."""

    at_s: float
    data: bytes
    lease_set: LeaseSet
    private_key: bytes
    is_published: bool


class Bench(KeeperBench):
    """A keeper that runs, and its router."""

    keeper: ServiceKeeper

    def __init__(
        self,
        nursery: trio.Nursery,
        keys: ServiceKeys,
        plan: LeasePlan,
        encryption: Sequence[int] = (X25519,),
    ) -> None:
        super().__init__(nursery)
        self.keys = keys
        self.streams_keys: list[Keys] = []
        self.payloads: list[bytes] = []
        self.rooms: list[int] = []
        """What the keeper had room for when it said that it had some."""
        self.abandoned_at: list[float] = []
        """When the keeper said that no session serves the clients any more."""
        self.handed_over_at: list[float] = []
        """When it said that the clients have a successor; emptied when it took them back."""
        self.keeper = ServiceKeeper(
            *(self.address, keys, plan, self),
            configuration=self.configuration,
            now_ms=self.now_ms,
            encryption=encryption,
        )

    def use_keys(self, keys: Keys) -> None:
        self.streams_keys.append(keys)

    def on_payload(self, payload: bytes) -> None:
        self.payloads.append(payload)

    def reset_all(self) -> None:
        self.abandoned_at.append(trio.current_time())
        self.keeper.send(b"peer", b"RESET")

    def hand_over(self) -> None:
        self.handed_over_at.append(trio.current_time())

    def take_back(self) -> None:
        self.handed_over_at.clear()

    def address_peers(self) -> None:
        self.keeper.send(b"peer", b"ACK")

    def on_room(self) -> None:
        self.rooms.append(self.keeper.room)

    def configuration(self, purpose: Purpose, now_ms: int, kind: RouterKind) -> bytes:
        return self.keys.keys.session_configuration(session_options(purpose, 1, 2), now_ms, purpose, kind)

    def order(self, due_index: int = 7, published_ms: int = START_MS) -> PublishOrder:
        return PublishOrder(due_index=due_index, published_ms=published_ms, expires_ms=START_MS + 10**9)

    @property
    def given(self) -> list[Given]:
        """What the router was given, verified as a floodfill does."""
        found = []
        is_published = False
        for at_s, type_, body in self.router.received:
            if type_ in (CREATE_SESSION, RECONFIGURE_SESSION):
                configuration = decode_session_configuration(body[2 if type_ == RECONFIGURE_SESSION else 0 :])
                is_published = configuration.options["i2cp.dontPublishLeaseSet"] == "false"
            if type_ == CREATE_LEASE_SET_2:
                assert body[:3] == SESSION + b"\3"
                assert body[-37:-32] == bytes.fromhex("01 0004 0020")
                data, private = body[3:-37], body[-32:]
                lease_set = verify_lease_set(data, (START_MS + round(at_s * 1000)) // 1000)
                found.append(Given(at_s, data, lease_set, private, is_published))
        return found

    @property
    def published(self) -> list[Given]:
        return [each for each in self.given if each.is_published]

    def successor(self, later_s: int = 1, keys: DestinationKeys | None = None, expires_s: int = 90) -> bytes:
        """The LeaseSet of the member that publishes next."""
        keys = keys or self.keys.keys
        lease_set = LeaseSet(
            destination=keys.destination,
            published_s=self.router_ms() // 1000 + later_s,
            expires_s=expires_s,
            encryption_keys=(EncryptionKey(6, b"\x66" * 32), EncryptionKey(X25519, b"\x77" * 32)),
            options=b"\1a=\1b;",  # as another program's
            leases=(),
            offline=keys.offline,
        )
        return encode_lease_set(lease_set, keys.sign)

    def configurations(self) -> list[str]:
        """``standby`` or ``active``, as the router was told in turn."""
        bodies = [
            *self.router.bodies(CREATE_SESSION)[:1],
            *(body[2:] for body in self.router.bodies(RECONFIGURE_SESSION)),
        ]
        options = [verify_session_configuration(body).options for body in bodies]
        return ["standby" if each["i2cp.dontPublishLeaseSet"] == "true" else "active" for each in options]


async def publishing(bench: Bench) -> Given:
    """The first LeaseSet that is published."""
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order())
    (first,) = bench.published
    return first
