"""Commands and beacons to frames and back: `encode`, `decode`, and the same for beacons.

This is Dafka 1.0 as its C implementation speaks it; RFC 46 describes another layout, which nothing speaks.
A message is one frame, and a second one with the content for RECORD and DIRECT-RECORD::

    first frame   id u8 | routing | 0x00 | version u8 = 1 | fields
    string        length u8 | bytes
    strings       count u32 * (length u32 | bytes)

The routing comes first so that ZeroMQ's subscriptions can match it: a subscription is the id and the routing
*without* the zero byte, a mere prefix. Hence a subscriber to ``hello`` also receives ``hello2``, and compares
the names in what it has decoded. Integers are unsigned and big-endian. A name is UTF-8, 1 to 255 bytes, none
of them zero::

    command         id  routing    fields
    RECORD          M   topic      string partition | string topic | sequence u64; content in frame 2
    DIRECT-RECORD   D   recipient  string partition | string topic | sequence u64; content in frame 2
    HEAD            H   topic      string partition | string topic | sequence u64
    DIRECT-HEAD     E   recipient  string partition | string topic | sequence u64
    ACK             K   partition  string topic | sequence u64
    FETCH           F   partition  string sender | string topic | sequence u64 | count u32
    GET-HEADS       G   topic      string sender
    CONSUMER-HELLO  W   recipient  string sender | strings topics
    STORE-HELLO     L   recipient  string sender
    DIRECT-TAIL     T   recipient  string partition | string topic | sequence u64

The last one is an addition. Nodes that do not know it never subscribe to it, and so never receive it.

Beacons are text frames, between a node and a tower. The key is our addition; C nodes ignore it. A node whose
host is "" has that of its connection::

    of a node       "B" | address | host | port in decimal        [ | "curve=" key in Z85 ]
    of a tower      "B" | address | "tcp://" host ":" port        [ | "curve=" key in Z85 ]

A decoder takes a message whole, or raises and takes none of it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import ClassVar, Self

import msgspec

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError

WELCOME = b"W"
"""What a tower sends to each new subscriber: a node that has received it is connected."""
BEACON = b"B"

MAX_NAME_BYTES = 255
MAX_SEQUENCE = 2**64 - 1
MAX_COUNT = 2**32 - 1

_VERSION = 1
_NAMES_CACHED = 4096
_SEQUENCE = struct.Struct(">Q")
_SEQUENCE_AND_COUNT = struct.Struct(">QI")
_U32 = struct.Struct(">I")


class _Published(msgspec.Struct, frozen=True, gc=False):
    id: ClassVar[bytes]
    topic: str
    partition: str
    sequence: int

    def encode(self) -> bytes:
        """The first frame."""
        head = _encode_names(self.id, self.topic, self.partition, self.topic)
        return head + _SEQUENCE.pack(self.sequence)

    @classmethod
    def decode(cls, routing: str, data: bytes, start: int, *content: bytes) -> tuple[Self, int]:
        """From the first frame, whose fields begin at ``start``; returns where they end, too."""
        partition, topic, start = _decode_names(data, start)
        if routing != topic:
            raise RemoteProtocolError("two topics")
        sequence = _SEQUENCE.unpack_from(data, start)[0]
        return cls(topic, partition, sequence, *content), start + _SEQUENCE.size


class _Direct(msgspec.Struct, frozen=True, gc=False):
    id: ClassVar[bytes]
    recipient: str
    topic: str
    partition: str
    sequence: int

    def encode(self) -> bytes:
        head = _encode_names(self.id, self.recipient, self.partition, self.topic)
        return head + _SEQUENCE.pack(self.sequence)

    @classmethod
    def decode(cls, routing: str, data: bytes, start: int, *content: bytes) -> tuple[Self, int]:
        partition, topic, start = _decode_names(data, start)
        sequence = _SEQUENCE.unpack_from(data, start)[0]
        return cls(routing, topic, partition, sequence, *content), start + _SEQUENCE.size


class Record(_Published, frozen=True, gc=False):
    """RECORD: a producer publishes a record of its partition."""

    id: ClassVar[bytes] = b"M"
    content: bytes


class DirectRecord(_Direct, frozen=True, gc=False):
    """DIRECT-RECORD: the same, to the ``recipient`` that fetched it."""

    id: ClassVar[bytes] = b"D"
    content: bytes


class Head(_Published, frozen=True, gc=False):
    """HEAD: a producer says which record is the last one of its partition."""

    id: ClassVar[bytes] = b"H"


class DirectHead(_Direct, frozen=True, gc=False):
    """DIRECT-HEAD: the same, to the ``recipient`` that asked for heads."""

    id: ClassVar[bytes] = b"E"


class DirectTail(_Direct, frozen=True, gc=False):
    """DIRECT-TAIL: the records before ``sequence`` are deleted, for the ``recipient`` that fetched some of
    them."""

    id: ClassVar[bytes] = b"T"


class Ack(msgspec.Struct, frozen=True, gc=False):
    """ACK: a store has saved the records of a partition up to ``sequence``. It does not say which store."""

    id: ClassVar[bytes] = b"K"
    partition: str
    topic: str
    sequence: int

    def encode(self) -> bytes:
        head = _encode_routing(self.id, self.partition) + _encode_string(self.topic)
        return head + _SEQUENCE.pack(self.sequence)

    @classmethod
    def decode(cls, routing: str, data: bytes, start: int) -> tuple[Self, int]:
        topic, start = _decode_string(data, start)
        return cls(routing, topic, *_SEQUENCE.unpack_from(data, start)), start + _SEQUENCE.size


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """FETCH: ``sender`` asks for ``count`` records (1 to `MAX_COUNT`) of a partition, from ``sequence``."""

    id: ClassVar[bytes] = b"F"
    partition: str
    topic: str
    sender: str
    sequence: int
    count: int

    def encode(self) -> bytes:
        head = _encode_names(self.id, self.partition, self.sender, self.topic)
        if not self.count:
            raise LocalProtocolError("a FETCH asks for at least one record")
        return head + _SEQUENCE_AND_COUNT.pack(self.sequence, self.count)

    @classmethod
    def decode(cls, routing: str, data: bytes, start: int) -> tuple[Self, int]:
        sender, topic, start = _decode_names(data, start)
        sequence, count = _SEQUENCE_AND_COUNT.unpack_from(data, start)
        if not count:
            raise RemoteProtocolError("a count of zero")
        return cls(routing, topic, sender, sequence, count), start + _SEQUENCE_AND_COUNT.size


class GetHeads(msgspec.Struct, frozen=True, gc=False):
    """GET-HEADS: the consumer ``sender`` asks for the heads of all partitions of a topic."""

    id: ClassVar[bytes] = b"G"
    topic: str
    sender: str

    def encode(self) -> bytes:
        return _encode_routing(self.id, self.topic) + _encode_string(self.sender)

    @classmethod
    def decode(cls, routing: str, data: bytes, start: int) -> tuple[Self, int]:
        sender, end = _decode_string(data, start)
        return cls(routing, sender), end


class StoreHello(msgspec.Struct, frozen=True, gc=False):
    """STORE-HELLO: the store ``sender`` invites the consumer ``recipient`` to say hello.

    A C node sends ``recipient`` "" to a peer that subscribed to this command without one.
    """

    id: ClassVar[bytes] = b"L"
    recipient: str
    sender: str

    def encode(self) -> bytes:
        return _encode_routing(self.id, self.recipient, may_be_empty=True) + _encode_string(self.sender)

    @classmethod
    def decode(cls, routing: str, data: bytes, start: int) -> tuple[Self, int]:
        sender, end = _decode_string(data, start)
        return cls(routing, sender), end


class ConsumerHello(msgspec.Struct, frozen=True, gc=False):
    """CONSUMER-HELLO: a consumer asks the store ``recipient`` (or "", as above) for the heads of these
    topics."""

    id: ClassVar[bytes] = b"W"
    recipient: str
    sender: str
    topics: tuple[str, ...]

    def encode(self) -> bytes:
        topics = [_encode_name(topic) for topic in self.topics]
        return (
            _encode_routing(self.id, self.recipient, may_be_empty=True)
            + _encode_string(self.sender)
            + _U32.pack(len(topics))
            + b"".join([_U32.pack(len(topic)) + topic for topic in topics])
        )

    @classmethod
    def decode(cls, routing: str, data: bytes, start: int) -> tuple[Self, int]:
        sender, start = _decode_string(data, start)
        count = _U32.unpack_from(data, start)[0]
        start += _U32.size
        topics = []
        for _ in range(count):  # a count that is too high ends at the end of the frame
            size = _U32.unpack_from(data, start)[0]
            end = start + _U32.size + size
            if end > len(data):
                raise IndexError
            topics.append(_decode_name(data[start + _U32.size : end]))
            start = end
        return cls(routing, sender, tuple(topics)), start


Command = (
    Record
    | DirectRecord
    | Head
    | DirectHead
    | Ack
    | Fetch
    | GetHeads
    | ConsumerHello
    | StoreHello
    | DirectTail
)

_COMMANDS: dict[bytes, type[Command]] = {command.id: command for command in Command.__args__}
_DECODERS = {command: command.decode for command in _COMMANDS.values()}
_WITH_CONTENT = (Record, DirectRecord)


def subscription_prefix(command: type[Command], routing: str = "") -> bytes:
    """What to subscribe to for one command with this routing (the module tells which), or with any.

    ZeroMQ compares the beginning only: compare the names in what `decode` returns.
    """
    return command.id + (_encode_name(routing) if routing else b"")


def split_prefix(prefix: bytes) -> tuple[type[Command] | None, str]:
    """The command that a peer's subscription is for, and its routing; (None, ""): for several or for none.

    The routing of a peer may be the beginning of a name only.
    """
    command = _COMMANDS.get(prefix[:1])
    try:
        return command, _decode_name(prefix[1:]) if command and len(prefix) > 1 else ""
    except RemoteProtocolError:
        return None, ""


def encode(command: Command) -> list[bytes]:
    """The frames of a command. Raises `LocalProtocolError`: a name or a number is out of its range."""
    try:
        first = command.encode()
    except struct.error:
        raise LocalProtocolError(f"a number is out of its range in {command!r:.300}") from None
    return [first, command.content] if isinstance(command, _WITH_CONTENT) else [first]


def decode(frames: Sequence[bytes]) -> Command:
    """The command in the frames of one message.

    Raises `RemoteProtocolError`: the message is not one, exactly. ``what`` is one of a few fixed phrases, by
    which receivers count; ``where`` names the command.
    """
    first = frames[0] if frames else b""
    command = _COMMANDS.get(first[:1])
    if command is None:
        raise RemoteProtocolError("unknown command")
    try:
        if len(frames) != (2 if command in _WITH_CONTENT else 1):
            raise RemoteProtocolError("wrong number of frames")
        end = first.find(b"\0", 1, MAX_NAME_BYTES + 2)
        if end < 0:
            raise RemoteProtocolError("routing without an end")
        if first[end + 1 : end + 2] != b"\x01":
            raise RemoteProtocolError("unknown version")
        is_empty = end == 1 and (command is ConsumerHello or command is StoreHello)
        routing = "" if is_empty else _decode_name(first[1:end])
        decoded, end = _DECODERS[command](routing, first, end + 2, *frames[1:])
        if end != len(first):
            raise RemoteProtocolError("bytes after the end")
    except RemoteProtocolError as error:
        raise RemoteProtocolError(error.what, command.__name__) from None
    except (struct.error, IndexError):
        raise RemoteProtocolError("truncated", command.__name__) from None
    return decoded


@lru_cache(_NAMES_CACHED)
def _encode_name(name: str) -> bytes:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b""
    if not 1 <= len(encoded) <= MAX_NAME_BYTES or b"\0" in encoded:
        raise LocalProtocolError(
            f"a name has 1 to {MAX_NAME_BYTES} bytes of UTF-8, none of which is zero; got {name!r:.300}"
        )
    return encoded


@lru_cache(_NAMES_CACHED)
def _decode_name(encoded: bytes) -> str:
    if not 1 <= len(encoded) <= MAX_NAME_BYTES or b"\0" in encoded:
        raise RemoteProtocolError("invalid name")
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("invalid name") from None


def _encode_routing(first: bytes, name: str, *, may_be_empty: bool = False) -> bytes:
    return b"%b%b\0\x01" % (first, _encode_name(name) if name or not may_be_empty else b"")


@lru_cache(_NAMES_CACHED)
def _encode_string(name: str) -> bytes:
    encoded = _encode_name(name)
    return bytes((len(encoded),)) + encoded


def _decode_string(data: bytes, start: int) -> tuple[str, int]:
    end = start + 1 + data[start]
    if end > len(data):
        raise IndexError
    return _decode_name(data[start + 1 : end]), end


@lru_cache(_NAMES_CACHED)
def _encode_names(first: bytes, routing: str, name: str, topic: str) -> bytes:
    return _encode_routing(first, routing) + _encode_string(name) + _encode_string(topic)


def _decode_names(data: bytes, start: int) -> tuple[str, str, int]:
    """A partition or a sender, a topic, and where they end."""
    name, start = _decode_string(data, start)
    topic, start = _decode_string(data, start)
    return name, topic, start


class Beacon(msgspec.Struct, frozen=True, gc=False):
    """Where others can subscribe to a node. ``host`` "", in what a node tells a tower: at the address that it
    connects from. ``key`` is the public CURVE key of the node in Z85, or "" where it has none.
    """

    address: str
    host: str
    port: int
    key: str = ""

    @property
    def endpoint(self) -> str:
        return format_endpoint(self.host, self.port)


_KEY_FRAME = b"curve="
_KEY = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_LABEL = "[0-9A-Za-z_](?:[0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_MAX_HOST_CHARACTERS = 253
_PORT = re.compile(rb"[1-9][0-9]{0,4}")


def format_endpoint(host: str, port: int) -> str:
    """As ZeroMQ writes it: ``tcp://HOST:PORT``, an IPv6 address in brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def encode_node_beacon(beacon: Beacon) -> list[bytes]:
    """The frames of a node's beacon. Raises `LocalProtocolError`: no such address, host, port or key."""
    return _encode_beacon(beacon, beacon.host.encode(), b"%d" % beacon.port)


def encode_tower_beacon(beacon: Beacon) -> list[bytes]:
    """The frames of a tower's beacon. Raises `LocalProtocolError`: no such address, host, port or key."""
    if not beacon.host:
        raise LocalProtocolError("the beacon of a tower names a host")
    return _encode_beacon(beacon, beacon.endpoint.encode())


def decode_node_beacon(frames: Sequence[bytes]) -> Beacon:
    """Raises `RemoteProtocolError`: not exactly a node's beacon."""
    address, key = _decode_beacon(frames, 4)
    host = _decode_host(frames[2]) if frames[2] else ""
    return Beacon(address, host, _decode_port(frames[3]), key)


def decode_tower_beacon(frames: Sequence[bytes]) -> Beacon:
    """Raises `RemoteProtocolError`: not exactly a tower's beacon."""
    address, key = _decode_beacon(frames, 3)
    scheme, _, rest = frames[2].partition(b"://")
    host, _, port = rest.rpartition(b":")
    is_ipv6 = b":" in host
    if scheme != b"tcp" or is_ipv6 != (host[:1] == b"[") or (is_ipv6 and host[-1:] != b"]"):
        raise RemoteProtocolError("invalid endpoint", "beacon")
    return Beacon(address, _decode_host(host[1:-1] if is_ipv6 else host), _decode_port(port), key)


def _encode_beacon(beacon: Beacon, *place: bytes) -> list[bytes]:
    if beacon.host and not is_host(beacon.host):
        raise LocalProtocolError(f"{beacon.host!r} is not a host that a beacon can name")
    if not 1 <= beacon.port <= 65_535:
        raise LocalProtocolError(f"{beacon.port} is not a port that a beacon can name")
    key = beacon.key.encode()
    if key and not _KEY.fullmatch(key):
        raise LocalProtocolError("the key of a beacon is a public CURVE key, 40 characters of Z85")
    return [BEACON, _encode_name(beacon.address), *place, *([_KEY_FRAME + key] if key else [])]


def _decode_beacon(frames: Sequence[bytes], count: int) -> tuple[str, str]:
    """The address and the key of a beacon, of that many frames and perhaps one with a key."""
    if not count <= len(frames) <= count + 1 or frames[0] != BEACON:
        raise RemoteProtocolError("invalid beacon", "beacon")
    key = b""
    if len(frames) > count:
        prefix, key = frames[-1][: len(_KEY_FRAME)], frames[-1][len(_KEY_FRAME) :]
        if prefix != _KEY_FRAME or not _KEY.fullmatch(key):
            raise RemoteProtocolError("invalid key", "beacon")
    try:
        return _decode_name(frames[1]), key.decode()
    except RemoteProtocolError as error:
        raise RemoteProtocolError(error.what, "beacon") from None


def _decode_host(encoded: bytes) -> str:
    try:
        host = encoded.decode("ascii")
    except UnicodeDecodeError:
        host = ""
    if not is_host(host):
        raise RemoteProtocolError("invalid host", "beacon")
    return host


def _decode_port(encoded: bytes) -> int:
    if not _PORT.fullmatch(encoded) or int(encoded) > 65_535:
        raise RemoteProtocolError("invalid port", "beacon")
    return int(encoded)


def is_host(host: str) -> bool:
    """Whether it is a name or an address of one host."""
    if ":" not in host and not host.rpartition(".")[2].isdecimal():
        return len(host) <= _MAX_HOST_CHARACTERS and _HOST.fullmatch(host) is not None
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return not address.is_unspecified and "%" not in host
