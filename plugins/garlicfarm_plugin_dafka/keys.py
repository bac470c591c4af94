"""CURVE keys: a secret one of one's own, and the known ones of others with their roles.

A secret key is the only line of a private file, 40 characters of Z85 (ZeroMQ RFC 32). The known peers are a
TOML file that says the same on every node and tower; it holds no secret::

    [store-1]
    key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    roles = ["store"]

The roles of a key are what its holder may be: CURVE proves who is at the other end of a connection, and
`MAY_SEND` and `MAY_SUBSCRIBE` say what that one may do there.
"""

from __future__ import annotations

import struct
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
import zmq
from zmq.utils import z85

from garlicfarm.credentials.private_files import read_private_file, write_private_file
from garlicfarm.errors import ConfigError
from garlicfarm.regular_files import reading
from garlicfarm_plugin_dafka.codec import (
    Ack,
    Command,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectTail,
    Fetch,
    GetHeads,
    Head,
    Record,
    StoreHello,
)

KEY_CHARACTERS: Final = 40
MAX_PEERS_FILE_BYTES: Final = 1 << 20


class PeerRole(StrEnum):
    """What the holder of a key may be."""

    TOWER = "tower"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    STORE = "store"


MAY_SEND: Final[Mapping[PeerRole, frozenset[type[Command]]]] = {
    PeerRole.TOWER: frozenset(),
    PeerRole.PRODUCER: frozenset({Record, Head, DirectRecord, DirectHead, DirectTail}),
    PeerRole.CONSUMER: frozenset({Fetch, GetHeads, ConsumerHello}),
    PeerRole.STORE: frozenset({Ack, Fetch, GetHeads, StoreHello, DirectRecord, DirectHead, DirectTail}),
}
"""The commands that others take from the holder of a role."""
MAY_SUBSCRIBE: Final[Mapping[PeerRole, frozenset[type[Command]]]] = {
    PeerRole.TOWER: frozenset(),
    PeerRole.PRODUCER: frozenset({Ack, Fetch, GetHeads}),
    PeerRole.CONSUMER: frozenset({Record, Head, DirectRecord, DirectHead, DirectTail, StoreHello}),
    PeerRole.STORE: frozenset(
        {Record, Head, DirectRecord, DirectHead, DirectTail, Fetch, GetHeads, ConsumerHello}
    ),
}
"""The commands that others send to the holder of a role."""


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair in Z85. Its text shows the public key only."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


class KnownPeer(msgspec.Struct, frozen=True):
    """A tower or a node that may connect: the name is that of its table."""

    name: str
    key: str
    roles: frozenset[PeerRole]

    @property
    def may_send(self) -> frozenset[type[Command]]:
        """The commands that others take from it."""
        return frozenset[type[Command]]().union(*(MAY_SEND[role] for role in self.roles))

    @property
    def may_subscribe(self) -> frozenset[type[Command]]:
        """The commands that others send to it."""
        return frozenset[type[Command]]().union(*(MAY_SUBSCRIBE[role] for role in self.roles))


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    roles: frozenset[PeerRole]


def create_key(path: Path) -> KeyPair:
    """Make a key pair, and write its secret key to a new file, mode 0600.

    :raises ConfigError: the file exists, or cannot be made.
    """
    public, secret = zmq.curve_keypair()
    write_private_file(path, secret + b"\n")
    return KeyPair(public.decode(), secret.decode())


def read_key(path: Path) -> KeyPair:
    """The key pair whose secret key is in a file.

    :raises ConfigError: missing, not readable, readable to others, or no key.
    """
    secret = read_private_file(path).strip()
    if not _is_key(secret):
        raise ConfigError([f"{path} holds no CURVE key; make one: garlicfarm dafka keys create FILE"])
    return KeyPair(zmq.curve_public(secret.encode()).decode(), secret)


def read_known_peers(path: Path) -> dict[str, KnownPeer]:
    """The known peers in a file, by their public keys.

    :raises ConfigError: it cannot be read, or is not such a file; with every problem found.
    """
    try:
        with reading(path) as file:
            data = file.read(MAX_PEERS_FILE_BYTES + 1)
        if len(data) > MAX_PEERS_FILE_BYTES:
            raise ConfigError([f"{path} is larger than {MAX_PEERS_FILE_BYTES} bytes"])
        tables = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path} is not TOML: {error}"]) from error
    peers: dict[str, KnownPeer] = {}
    problems = []
    for name, table in tables.items():
        try:
            read = msgspec.convert(table, _Table)
        except msgspec.ValidationError as error:
            problems.append(f"{path}: [{name}]: {error}")
            continue
        if not _is_key(read.key):
            problems.append(f"{path}: [{name}]: key is not a public CURVE key, 40 characters of Z85")
        elif not read.roles:
            problems.append(f"{path}: [{name}]: roles is empty; name at least one of {', '.join(PeerRole)}")
        elif read.key in peers:
            problems.append(f"{path}: [{name}]: {peers[read.key].name} has the same key")
        else:
            peers[read.key] = KnownPeer(name, read.key, read.roles)
    if problems:
        raise ConfigError(problems)
    return peers


def _is_key(text: str) -> bool:
    if len(text) != KEY_CHARACTERS:
        return False
    try:
        z85.decode(text)
    except (KeyError, ValueError, struct.error):  # foreign characters; five that say more than four bytes
        return False
    return True
