"""Finds out whether a router takes messages that are encrypted with ML-KEM.

I2CP tells the version of I2P that a router has, and not whether its i2pd was built with an OpenSSL that has
ML-KEM. One without takes a LeaseSet that offers ML-KEM as any other, and cannot read what comes. So a router
is shown to have it by what it carries: a message between two destinations that are made for that, through its
tunnels, and its answer.

The *callee* publishes a LeaseSet that offers type 6 and nothing else, for two minutes at most. The *caller*
looks it up, sends a word, and again while none has come. The callee sends it back. Type 6 was used in both
directions then, with the exchange of keys in which each side has its part.

Java I2P delivers between its own clients without encryption, so there it shows nothing; there the version
does.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from garlicfarm.credentials.destination_keys import make_keys
from garlicfarm.errors import PublisherError
from garlicfarm.i2p.i2cp import (
    LEASE_SET_2,
    MessagePayload,
    RequestLeaseSet,
    TunnelLease,
    encode_create_lease_set2,
    encode_send_message,
)
from garlicfarm.i2p.lease_set import (
    MAX_LEASES,
    ML_KEM_768,
    X25519,
    EncryptionKey,
    Lease,
    LeaseSet,
    encode_lease_set,
)
from garlicfarm.i2p.session_options import tunnel_options
from garlicfarm_plugin_i2cp.connection import RouterAddress, open_connection
from garlicfarm_plugin_i2cp.session import create_session, destroy_session

PROBE_S = 120
"""How long the tunnels may take, and the floodfills, and a message each way."""
FIRST_CALL_S, CALL_AGAIN_S = 1.0, 5.0
WORD_BYTES = 32


async def carries_ml_kem(router: RouterAddress, hops: int, now_ms: Callable[[], int]) -> bool:
    """Whether a message with ML-KEM, and its answer, came through the router. False: not within two minutes,
    or the router has refused or ended a session.

    ``hops``: the length of the tunnels. ``now_ms``: reads this node's wall clock, ms since 1970. Cancelled,
    it ends its sessions.
    """
    word = secrets.token_bytes(WORD_BYTES)
    caller, callee = _End((ML_KEM_768, X25519), word), _End((ML_KEM_768,), word)
    with trio.move_on_after(PROBE_S):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(callee.run, router, hops, now_ms, echoes_to=caller.destination))
                nursery.start_soon(partial(caller.run, router, hops, now_ms, calls=callee.destination))
                await caller.has_heard.wait()
                nursery.cancel_scope.cancel()
        except* PublisherError:
            pass  # which says nothing of ML-KEM
    return caller.has_heard.is_set()


class _End:
    """A destination and its session. ``types``: of encryption, which its LeaseSet offers. ``has_heard``: that
    ``word`` came."""

    def __init__(self, types: Sequence[int], word: bytes) -> None:
        self.has_heard = trio.Event()
        self._word = word
        self._keys = make_keys()
        self._encryption = {type_: X25519PrivateKey.generate() for type_ in types}

    @property
    def destination(self) -> bytes:
        """Binary."""
        return self._keys.destination

    async def run(
        self,
        router: RouterAddress,
        hops: int,
        now_ms: Callable[[], int],
        *,
        calls: bytes = b"",
        echoes_to: bytes = b"",
    ) -> NoReturn:
        """Hold the session, until cancelled; send ``calls`` the word, again and again, or ``echoes_to`` what
        came. Raises `PublisherError`."""
        options = tunnel_options(hops, 1) | {
            "i2cp.leaseSetEncType": ",".join(map(str, self._encryption)),
            "i2cp.leaseSetType": str(LEASE_SET_2),
            "i2cp.messageReliability": "none",
        }
        async with open_connection(router, now_ms) as connection:
            ahead_ms = await connection.greet() - now_ms()
            id_ = await create_session(connection, self._keys.session_configuration(options, now_ms()))
            call_s = math.inf
            try:
                while True:
                    message = None
                    with trio.move_on_at(call_s):
                        message = await connection.receive()
                    if trio.current_time() >= call_s:
                        await connection.send(encode_send_message(id_, calls, self._word))
                        call_s = trio.current_time() + CALL_AGAIN_S
                    match message:
                        case RequestLeaseSet(leases=tunnels):
                            await connection.send(self._answer(id_, tunnels, now_ms() + ahead_ms))
                            if calls:
                                call_s = min(call_s, trio.current_time() + FIRST_CALL_S)
                        case MessagePayload(payload=self._word):
                            self.has_heard.set()
                            if echoes_to:
                                await connection.send(encode_send_message(id_, echoes_to, self._word))
            finally:
                await destroy_session(connection, id_)

    def _answer(self, session: int, tunnels: Sequence[TunnelLease], date_ms: int) -> bytes:
        """CreateLeaseSet2, where the router has asked for one at ``date_ms``."""
        until_ms = date_ms + PROBE_S * 1000
        lease_set = LeaseSet(
            destination=self.destination,
            published_s=date_ms // 1000,
            expires_s=PROBE_S,
            encryption_keys=tuple(
                EncryptionKey(type_, key.public_key().public_bytes_raw())
                for type_, key in self._encryption.items()
            ),
            leases=tuple(
                Lease(each.gateway, each.tunnel, min(each.end_ms, until_ms) // 1000)
                for each in tunnels[:MAX_LEASES]
            ),
        )
        private = [EncryptionKey(type_, key.private_bytes_raw()) for type_, key in self._encryption.items()]
        data = encode_lease_set(lease_set, self._keys.sign)
        return encode_create_lease_set2(session, LEASE_SET_2, data, private)
