"""The I2CP of Java I2P 2.7.0, as far as it refuses what i2pd takes."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from garlicfarm.i2p.encoding import decode
from garlicfarm.i2p.lease_set import decode_lease_set
from garlicfarm.i2p.offline_signature import OfflineSignature, signer
from garlicfarm.i2p.session_configuration import decode_session_configuration
from garlicfarm.i2p.signing import SIGNATURE_BYTES
from tests.publishers.i2cp_router import CREATE_LEASE_SET_2, CREATE_SESSION, FakeRouter

LIMITS = (65070, 10922, 97605, 97655, 16384, 97655, 1)
"""As it answered, of a router with the bandwidth that it has by default."""
_SKEW_MS = 180_000
_FUDGE_S = 60
_KEY_BYTES = 32


@dataclass
class JavaRouter(FakeRouter):
    """It says why it refuses a session (SessionConfig.verifySignature) or a LeaseSet (CreateLeaseSet2Message,
    ClientMessageEventListener.handleCreateLeaseSet, KademliaNetworkDatabaseFacade.validate), and closes the
    connection."""

    limits: tuple[int, ...] | None = LIMITS
    version: bytes = b"0.9.64"

    def objection(self, type_: int, body: bytes) -> bytes:
        if type_ == CREATE_SESSION:
            return self._of_session(body)
        return self._of_lease_set(body) if type_ == CREATE_LEASE_SET_2 else b""

    def _of_session(self, body: bytes) -> bytes:
        configuration = decode_session_configuration(body)
        if abs(configuration.date_ms - self.now_ms()) > _SKEW_MS:
            return b"Create session message client clock skew?"
        options = configuration.options
        offline = None
        if transient := options.get("i2cp.leaseSetTransientPublicKey"):
            kind, _, key = transient.partition(":")
            assert kind == "7"
            offline = OfflineSignature(
                int(options["i2cp.leaseSetOfflineExpiration"]),
                decode(key),
                decode(options["i2cp.leaseSetOfflineSignature"]),
            )
        try:
            signer(configuration.destination, offline).check(body[-SIGNATURE_BYTES:], body[:-SIGNATURE_BYTES])
        except ValueError:
            return b"Invalid signature on CreateSessionMessage"
        return b""

    def _of_lease_set(self, body: bytes) -> bytes:
        keys = body[-_KEY_BYTES:]
        lease_set = decode_lease_set(body[3 : -_KEY_BYTES - 5])
        (key,) = lease_set.encryption_keys
        if X25519PrivateKey.from_private_bytes(keys).public_key().public_bytes_raw() != key.key:
            return b"Private/public crypto key mismatch in LS for key: 0"
        ends = [lease.end_s for lease in lease_set.leases]
        if max(ends, default=0) <= self.now_ms() // 1000 - _FUDGE_S:
            return b"Invalid leaseset: Expired leaseSet"
        return b""
