"""I2CP, the protocol between a router and its clients: messages to bytes, bytes to messages. Sans-I/O.

A client sends `PROTOCOL_BYTE` once; after it, messages go both ways. All integers are unsigned and
big-endian::

    message = length u32 | type u8 | body                         length of the body, at most 65,535 here
    string  = length u8 | UTF-8

    to the router                                                          from the router
     1 CreateSession       session configuration                           20 SessionStatus
     2 ReconfigureSession  session u16 | session configuration             20 SessionStatus
     3 DestroySession      session u16                                     20 SessionStatus
     5 SendMessage         session u16 | destination | payload | nonce u32  none, if the nonce is 0
     8 GetBandwidthLimits  nothing                                         23 BandwidthLimits
    32 GetDate             version string                                  33 SetDate
    41 CreateLeaseSet2     session u16 | store type u8 | LeaseSet2         none
                           | number of private keys u8
                           | so many x (type u16 | length u16 | key)

    20 SessionStatus            session u16 | status u8
    21 RequestLeaseSet          session u16 | n u8 | n x (gateway 32 | tunnel u32) | end u64 ms
    23 BandwidthLimits          16 x u32: client in, client out, router in, router in burst, router out,
                                router out burst in KB/s, burst s, and nine that mean nothing
    30 Disconnect               reason string
    31 MessagePayload           session u16 | message id u32 | payload
    33 SetDate                  date u64 ms | version string
    37 RequestVariableLeaseSet  session u16 | n u8 | n x (gateway 32 | tunnel u32 | end u64 ms)

    payload = length u32 | gzip, in whose header bytes 4 to 7 are the two ports, and byte 9 the protocol

*Writing* has no state: each ``encode_…`` returns the bytes of one message. *Reading* has state: feed a
`MessageDecoder` the received bytes, then take messages until there are none.

Source: I2P's specification "I2CP". i2pd and Java I2P write the count of private keys differently for a Meta
LeaseSet; i2pd needs it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm.i2p.lease_set import EncryptionKey
from garlicfarm.i2p.session_configuration import encode_mapping

PROTOCOL_BYTE = b"\x2a"
MAX_BODY_BYTES = 65_535

LEASE_SET_2 = 3
META_LEASE_SET = 7
"""Store types."""

SESSION_DESTROYED = 0
SESSION_CREATED = 1
SESSION_UPDATED = 2
SESSION_INVALID = 3
SESSION_REFUSED = 4

_HEADER = struct.Struct(">IB")
_SESSION = struct.Struct(">H")
_STATUS = struct.Struct(">HB")
_DATE = struct.Struct(">Q")
_COUNTED = struct.Struct(">HB")
_GATEWAY = struct.Struct(">32sI")
_GATEWAY_UNTIL = struct.Struct(">32sIQ")
_LIMITS = struct.Struct(">16I")
_LENGTH = struct.Struct(">I")
_PAYLOAD = struct.Struct(">HII")
_PRIVATE_KEY_BYTES = 32
_PRIVATE_KEY = struct.Struct(f">HH{_PRIVATE_KEY_BYTES}s")
_NO_NONCE = bytes(4)


class SetDate(msgspec.Struct, frozen=True):
    """The router's clock, ms since 1970, and the version of I2CP that it speaks."""

    date_ms: int
    version: str


class SessionStatus(msgspec.Struct, frozen=True):
    """What became of a session. ``status``: one of ``SESSION_…``, or a later version's."""

    session: int
    status: int


class TunnelLease(msgspec.Struct, frozen=True):
    """One inbound tunnel: the hash of its gateway, its id there, and when it ends, ms since 1970."""

    gateway: bytes
    tunnel: int
    end_ms: int


class RequestLeaseSet(msgspec.Struct, frozen=True):
    """The router's tunnels have changed, and it wants a LeaseSet. Both messages that ask for one."""

    session: int
    leases: tuple[TunnelLease, ...]


class BandwidthLimits(msgspec.Struct, frozen=True):
    """The limits that a router sets for its clients, and for itself, each way, KB/s, and its burst time, s.

    i2pd answers with limits of its own, or with how many bytes pass through it per second, where its clients'
    limits belong, and 0 for the rest. Java I2P before 0.9.62 has 0 there, too.
    """

    client_in: int
    client_out: int
    router_in: int
    router_out: int
    burst_s: int


class Disconnect(msgspec.Struct, frozen=True):
    """The router closes the connection."""

    reason: str


class MessagePayload(msgspec.Struct, frozen=True):
    """What a peer has sent to the session's destination, as gzip. The router does not say which peer."""

    session: int
    payload: bytes


class UnknownMessage(msgspec.Struct, frozen=True):
    """A message that is not decoded here."""

    type: int
    body: bytes


Message: TypeAlias = (
    SetDate | SessionStatus | RequestLeaseSet | BandwidthLimits | Disconnect | MessagePayload | UnknownMessage
)


def encode_get_date(version: str, options: Mapping[str, str] | None = None) -> bytes:
    """``version``: of I2CP, as ``0.9.57``. ``options``: ``i2cp.username`` and ``i2cp.password``, where the
    router asks for them. The router answers with SetDate, in the order of what it was
    sent: so the answer shows that it has read all that came before."""
    return _encode(32, _encode_string(version) + (encode_mapping(options) if options else b""))


def encode_get_bandwidth_limits() -> bytes:
    """The router answers with BandwidthLimits."""
    return _encode(8, b"")


def encode_create_session(configuration: bytes) -> bytes:
    """``configuration``: a signed session configuration."""
    return _encode(1, configuration)


def encode_reconfigure_session(session: int, configuration: bytes) -> bytes:
    """``configuration``: a signed session configuration with all options."""
    return _encode(2, _encode_u16(session) + configuration)


def encode_destroy_session(session: int) -> bytes:
    """End a session. The router closes the connection after it."""
    return _encode(3, _encode_u16(session))


def encode_create_lease_set2(
    session: int, store_type: int, lease_set: bytes, private_keys: Sequence[EncryptionKey] = ()
) -> bytes:
    """Give the router a signed LeaseSet to publish, asked or unasked.

    ``store_type``: `META_LEASE_SET` or `LEASE_SET_2`. ``private_keys``: 32 bytes each, with which the router
    decrypts what is sent to this session, in the order of the LeaseSet's; none for a Meta LeaseSet. The
    router does not answer.
    """
    keys = bytes([len(private_keys)])
    for each in private_keys:
        if len(each.key) != _PRIVATE_KEY_BYTES:
            raise LocalProtocolError(f"an X25519 key has 32 bytes, not {len(each.key)}")
        keys += _PRIVATE_KEY.pack(each.type, _PRIVATE_KEY_BYTES, each.key)
    return _encode(41, _encode_u16(session) + bytes([store_type]) + lease_set + keys)


def encode_send_message(session: int, destination: bytes, payload: bytes) -> bytes:
    """Send ``payload``, gzip, to a peer's binary destination. The router reports nothing of it."""
    return _encode(5, _encode_u16(session) + destination + _LENGTH.pack(len(payload)) + payload + _NO_NONCE)


class MessageDecoder:
    """Received bytes to messages.

    A length above 65,535 is refused as soon as the header is complete, so an announced size allocates
    nothing. The first `RemoteProtocolError` is final: every later call raises it again.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._error: RemoteProtocolError | None = None

    def receive_data(self, data: bytes) -> None:
        """Add received bytes. Raises `RemoteProtocolError` after an earlier one."""
        self._raise_error()
        self._buffer += data

    def next_message(self) -> Message | None:
        """The next whole message, None: more bytes are needed. Raises `RemoteProtocolError`."""
        self._raise_error()
        try:
            return self._next_message()
        except RemoteProtocolError as error:
            self._error = error
            raise

    def receive_eof(self) -> None:
        """Raises `RemoteProtocolError` if the stream ended inside a message."""
        self._raise_error()
        if self._buffer:
            self._error = RemoteProtocolError("the stream ended inside a message", "I2CP")
            raise self._error

    def _next_message(self) -> Message | None:
        if len(self._buffer) < _HEADER.size:
            return None
        length, type_ = _HEADER.unpack_from(self._buffer)
        if length > MAX_BODY_BYTES:
            raise RemoteProtocolError(f"a message of {length} bytes, more than {MAX_BODY_BYTES}", "I2CP")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        decode = _DECODERS.get(type_)
        if decode is None:
            return UnknownMessage(type_, body)
        try:
            return decode(body)
        except (struct.error, ValueError) as error:
            raise RemoteProtocolError("a malformed message", f"I2CP message {type_}") from error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _encode(type_: int, body: bytes) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise LocalProtocolError(f"an I2CP message of {len(body)} bytes, more than {MAX_BODY_BYTES}")
    return _HEADER.pack(len(body), type_) + body


def _encode_u16(session: int) -> bytes:
    try:
        return _SESSION.pack(session)
    except struct.error as error:
        raise LocalProtocolError(f"{session} is not a session id") from error


def _encode_string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise LocalProtocolError(f"a string of {len(data)} bytes, more than 255")
    return bytes([len(data)]) + data


def _decode_string(data: bytes) -> str:
    if not data or len(data) != 1 + data[0]:
        raise ValueError("not one string")
    return data[1:].decode()


def _set_date(body: bytes) -> SetDate:
    (date_ms,) = _DATE.unpack_from(body)
    return SetDate(date_ms, _decode_string(body[_DATE.size :]))


def _session_status(body: bytes) -> SessionStatus:
    return SessionStatus(*_STATUS.unpack(body))


def _request_lease_set(body: bytes) -> RequestLeaseSet:
    session, count = _COUNTED.unpack_from(body)
    leases, end = body[_COUNTED.size : -_DATE.size], body[-_DATE.size :]
    if len(body) != _COUNTED.size + count * _GATEWAY.size + _DATE.size:
        raise ValueError("not the leases announced")
    (end_ms,) = _DATE.unpack(end)
    tunnels = _GATEWAY.iter_unpack(leases)
    return RequestLeaseSet(session, tuple(TunnelLease(gateway, id_, end_ms) for gateway, id_ in tunnels))


def _request_variable_lease_set(body: bytes) -> RequestLeaseSet:
    session, count = _COUNTED.unpack_from(body)
    leases = body[_COUNTED.size :]
    if len(leases) != count * _GATEWAY_UNTIL.size:
        raise ValueError("not the leases announced")
    return RequestLeaseSet(session, tuple(TunnelLease(*one) for one in _GATEWAY_UNTIL.iter_unpack(leases)))


def _bandwidth_limits(body: bytes) -> BandwidthLimits:
    client_in, client_out, router_in, _, router_out, _, burst_s, *_ = _LIMITS.unpack(body)
    return BandwidthLimits(client_in, client_out, router_in, router_out, burst_s)


def _disconnect(body: bytes) -> Disconnect:
    return Disconnect(_decode_string(body))


def _message_payload(body: bytes) -> MessagePayload:
    session, _, length = _PAYLOAD.unpack_from(body)
    payload = body[_PAYLOAD.size :]
    if len(payload) != length:
        raise ValueError("not the payload announced")
    return MessagePayload(session, payload)


_DECODERS: dict[int, Callable[[bytes], Message]] = {
    20: _session_status,
    21: _request_lease_set,
    23: _bandwidth_limits,
    30: _disconnect,
    31: _message_payload,
    33: _set_date,
    37: _request_variable_lease_set,
}
