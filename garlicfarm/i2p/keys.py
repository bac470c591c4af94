"""The keys of a destination, as a node has them: the long-term key, or a bundle that signs for a while.

A private key file of I2P, which SAM takes too, holds ::

    destination 391 | private encryption key 256 (unused) | long-term private key 32                       679
    destination 391 | private encryption key 256 (unused) | zeros 32 | offline signature 102
                    | transient seed 32                                                                    813

The long-term key is of signing type 1, 7 or 11. With one of type 11 only a router signs (SAM).

A *bundle* has what the second form has, and I2CP configurations that the long-term key signed in advance. It
belongs to one node. Its transient key is of type 7.

Source: I2P common structures, "Destination", "PrivateKeyFile"; i2pd and Java I2P private key files;
docs/reference/protocol.md, D21.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from garlicfarm.errors import ConfigError
from garlicfarm.i2p.destination import signing_key, split_destination
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.i2p.offline_signature import OFFLINE_BYTES, OfflineSignature, sign_offline, signer
from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.i2p.session_configuration import (
    decode_session_configuration,
    encode_session_configuration,
    offline_options,
    verify_session_configuration,
)
from garlicfarm.i2p.session_options import PURPOSES, Purpose, has_options_of, session_options
from garlicfarm.i2p.signing import ED25519, NAMES, PRIVATE_BYTES, REDDSA, SIGNATURE_BYTES, public_key, sign

_ENCRYPTION_BYTES = 256
_LONG_TERM_BYTES = _ENCRYPTION_BYTES + PRIVATE_BYTES
_OFFLINE_BYTES = _LONG_TERM_BYTES + OFFLINE_BYTES + PRIVATE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationKeys:
    """The keys of one destination. Its ``repr`` shows no secret.

    ``destination``: binary. ``seed``: the private key that signs now, 32 bytes. ``offline``: the permission
    of the transient key; None: the long-term key is here. ``configurations``: I2CP configurations signed in
    advance. ``node``: the id of the node whose bundle it is. ``encryption``: the unused private encryption
    key.

    Raises `ValueError`, when it is made: the parts do not belong together. The expiry is not checked.
    """

    destination: bytes
    seed: bytes
    offline: OfflineSignature | None = None
    configurations: Mapping[Purpose, bytes] = field(default_factory=dict)
    node: int | None = None
    encryption: bytes = bytes(_ENCRYPTION_BYTES)

    def __post_init__(self) -> None:
        key = signer(self.destination, self.offline)
        if key.signature_bytes != SIGNATURE_BYTES or len(self.seed) != PRIVATE_BYTES:
            raise ValueError("the private key has the wrong length")
        if key.type != REDDSA and public_key(key.type, self.seed) != key.public:
            raise ValueError("the private key is not that of its destination")
        for purpose, data in self.configurations.items():
            configuration = verify_session_configuration(data)
            if configuration.destination != self.destination:
                raise ValueError("a configuration is that of another destination")
            if not has_options_of(purpose, configuration.options):
                raise ValueError(f"the configuration for {purpose} has the options of another")

    def __repr__(self) -> str:
        transient = f" transient={self.transient}" if self.transient else ""
        node = f" node={self.node}" if self.node is not None else ""
        return f"<DestinationKeys {b32_address(self.destination)}{transient}{node}>"

    @property
    def type(self) -> int:
        """The signing type of the key that signs now."""
        return signing_key(self.destination).type if self.offline is None else ED25519

    @property
    def signs_here(self) -> bool:
        """Whether `sign` can. Else only a router signs with them, through SAM."""
        return self.type != REDDSA

    @property
    def expires_ms(self) -> int | None:
        """Until when they sign, ms since 1970; None: long-term."""
        return None if self.offline is None else self.offline.expires_s * 1000

    @property
    def transient(self) -> str | None:
        """The first 8 bytes of the SHA-256 of the transient public key, in hexadecimal; None: long-term."""
        return None if self.offline is None else sha256(self.offline.transient).hexdigest()[:16]

    def sign(self, data: bytes) -> bytes:
        """The 64-byte signature of the transient key, or else of the long-term key. Raises `ValueError`:
        not `signs_here`."""
        return sign(self.type, self.seed, data)

    def session_configuration(
        self,
        options: Mapping[str, str],
        now_ms: int,
        purpose: Purpose = "meta",
        kind: RouterKind = "i2pd",
    ) -> bytes:
        """A signed I2CP SessionConfig for a router of this ``kind``. The long-term key signs ``options`` and
        ``now_ms`` (ms since 1970) now; a bundle has one for each ``purpose``, with its own options and date.
        For Java I2P its transient key signs the same options now.

        :raises ConfigError: the long-term key is not here, and signed none for this purpose, or does not sign
            here (the operator's fault).
        """
        if not self.signs_here:
            raise ConfigError(
                [
                    f"the key of {b32_address(self.destination)} is of type {self.type} "
                    f"({NAMES[self.type]}), with which only routers sign: publish it with the plugin sam"
                ]
            )
        if self.offline is None:
            return encode_session_configuration(self.destination, options, now_ms, self.sign)
        if purpose not in self.configurations:
            raise ConfigError(
                [
                    f"the keys of {b32_address(self.destination)} were made offline without an I2CP "
                    f"configuration for {purpose}: make a bundle with `garlicfarm keys offline`"
                ]
            )
        signed = self.configurations[purpose]
        if kind == "i2pd":
            return signed
        options = {**decode_session_configuration(signed).options, **offline_options(self.offline)}
        return encode_session_configuration(self.destination, options, now_ms, self.sign)

    def sam_private_key(self) -> str:
        """The private key as SAM's ``DESTINATION=`` takes it, in I2P base64: a secret."""
        if self.offline is None:
            return encode(self.destination + self.encryption + self.seed)
        block = bytes(PRIVATE_BYTES) + self.offline.encode()
        return encode(self.destination + self.encryption + block + self.seed)


def decode_private_key(data: bytes) -> DestinationKeys:
    """Read the bytes of a private key file. Raises `ValueError`: the wrong length, a key of another type, or
    parts that do not belong together."""
    destination, rest = split_destination(data)
    encryption, seed = rest[:_ENCRYPTION_BYTES], rest[_ENCRYPTION_BYTES:_LONG_TERM_BYTES]
    if len(rest) == _LONG_TERM_BYTES:
        return DestinationKeys(destination=destination, seed=seed, encryption=encryption)
    if len(rest) != _OFFLINE_BYTES or seed != bytes(PRIVATE_BYTES):
        raise ValueError("the private key has the wrong length")
    return DestinationKeys(
        destination=destination,
        seed=rest[-PRIVATE_BYTES:],
        offline=OfflineSignature.decode(rest[_LONG_TERM_BYTES:-PRIVATE_BYTES]),
        encryption=encryption,
    )


def make_bundle(
    long_term: DestinationKeys,
    transient_seed: bytes,
    *,
    node: int,
    expires_s: int,
    now_ms: int,
    hops: int,
    quantity: int,
) -> DestinationKeys:
    """A bundle for ``node``, signed by the long-term key.

    :param transient_seed: 32 random bytes, used for this bundle only
    :param expires_s: until when it signs, s since 1970
    :param now_ms: the date of the configurations, ms since 1970
    :param hops: the length of the sessions' tunnels
    :param quantity: how many tunnels they have in each direction
    :raises ValueError: ``long_term`` is a bundle itself, or an argument is outside its range
    """
    if long_term.offline is not None:
        raise ValueError("only the long-term key can sign a bundle")
    if not long_term.signs_here:
        raise ValueError("keys of type 11 (RedDSA_SHA512_Ed25519) sign no bundle here: only routers can")
    return DestinationKeys(
        destination=long_term.destination,
        seed=transient_seed,
        offline=sign_offline(long_term.sign, public_key(ED25519, transient_seed), expires_s),
        configurations={
            purpose: long_term.session_configuration(
                session_options(purpose, hops, quantity), now_ms, purpose
            )
            for purpose in PURPOSES
        },
        node=node,
    )
