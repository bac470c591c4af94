"""What is fuzzed: functions of bytes that may raise nothing, and the inputs that they start from.

A target catches the errors that its subject documents, and no others. So any exception that leaves it is
a finding: an undocumented error, or an assertion of the target's own (what was decoded encodes to the
same bytes; pieces give what the whole gives; a refused state changes nothing).

The first bytes of an input choose what is done with the rest; `seeds` begin with them.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from garlicfarm.config import load
from garlicfarm.credentials.destination_keys import read_keys, write_bundle
from garlicfarm.credentials.join_token import JoinToken, check_expiry, decode_token, encode_token
from garlicfarm.errors import (
    AuthError,
    ConfigError,
    EntryRefused,
    RemoteProtocolError,
    StorageDamaged,
    StorageError,
    StorageVersion,
)
from garlicfarm.feed.binary_format import encode_records
from garlicfarm.feed.events import (
    HealthEvent,
    LeaderEvent,
    MemberAddress,
    MembersEvent,
    PositionEvent,
    PublisherEvent,
    decode_entries,
    decode_events,
    encode_event,
)
from garlicfarm.http.digest import (
    ALGORITHMS,
    REALM,
    ChallengeCache,
    DigestVerifier,
    Verified,
    digest_response,
    ha1,
    parse_header,
)
from garlicfarm.http.upgrade import (
    Accepted,
    FarmCredentials,
    Initiator,
    NewStream,
    Rejected,
    Responder,
    farm_target,
)
from garlicfarm.i2p import i2cp as messages_of_i2cp
from garlicfarm.i2p.destination import FILLER_BYTES, make_destination
from garlicfarm.i2p.encoding import decode
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
from garlicfarm.log_application import LogApplication
from garlicfarm.publishing.entries import check_author, parse_entry
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.strict_json import decode_object
from garlicfarm.raft.types import Entry, HardState, Persist
from garlicfarm.storage import Genesis, LogStore, Snapshot, Writer, create_store, write_snapshot
from garlicfarm.storage.snapshot_receiver import SnapshotReceiver
from garlicfarm.storage.snapshots import read_snapshot
from garlicfarm.wire import (
    ClusterServer,
    Configuration,
    Limits,
    RequestDecoder,
    ResponseDecoder,
    SnapshotSyncRequest,
    ValueType,
    decode_cluster_server,
    decode_configuration,
    decode_log_pack,
    decode_snapshot_sync_request,
    encode_cluster_server,
    encode_configuration,
    encode_log_pack,
    encode_request,
    encode_response,
    encode_snapshot_sync_request,
)
from garlicfarm_plugin_dafka import codec as codec_of_dafka
from garlicfarm_plugin_dafka.zap import zap_answer
from garlicfarm_plugin_i2cp.streaming import Streams
from garlicfarm_plugin_i2cp.streaming import packet as packet_of_streams
from garlicfarm_plugin_i2cp.streaming.packet import Packet, encode_packet
from garlicfarm_plugin_i2cp.streaming.payload import encode_payload

__all__ = ["TARGETS", "Target", "planted"]

DATA = Path(__file__).parent.parent / "data"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files are made: fsync costs nothing there."""

FARM = "farm"
MEMBERS = Configuration(
    0, 0, tuple(ClusterServer(id_, f"ssl://host{id_}.example:27150") for id_ in (1, 2, 3))
)
GENESIS = Genesis(FARM, b"farm-id-16-bytes", "log", 2, MEMBERS)
SMALL = Limits(max_message_bytes=1 << 16, max_entry_bytes=1 << 12)


class Target(NamedTuple):
    """``run`` raises on a finding; ``seeds`` are inputs that get far."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    """``data`` in pieces of ``size`` bytes, or (0) whole."""
    step = size or len(data) or 1
    return (data[start : start + step] for start in range(0, len(data), step))


def _vectors() -> Iterator[dict[str, Any]]:
    """The messages that JRaft sent (`tests/data/jraft`)."""
    for path in sorted((DATA / "jraft").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            vector = json.loads(line)
            if "hex" in vector:
                yield vector


@cache
def _scripted_entries() -> tuple[bytes, ...]:
    lines = (DATA / "farm" / "scripted-log.jsonl").read_text().splitlines()
    return tuple(json.loads(line)["entry"].encode() for line in lines if '"entry"' in line)


# wire


def _decoded(decoder: RequestDecoder | ResponseDecoder, pieces: Iterator[bytes], **how: bool) -> list[Any]:
    """All messages, and as the last one the words of the error that ended it, if one did."""
    found: list[Any] = []
    try:
        for piece in pieces:
            decoder.receive_data(piece)
            while (message := decoder.next_message(**how)) is not None:
                found.append(message)
        decoder.receive_eof()
    except RemoteProtocolError as error:
        found.append(str(error))
    return found


def _wire_stream(make: Callable[[], Any], encode: Callable[[Any], bytes], data: bytes, **how: bool) -> None:
    size, data = data[0] if data else 0, data[1:]
    messages = _decoded(make(), _pieces(data, 0), **how)
    assert _decoded(make(), _pieces(data, size), **how) == messages
    whole = [message for message in messages if not isinstance(message, str)]
    written = b"".join(map(encode, whole))
    if how:  # the term of the entry that holds a hint is lost
        assert _decoded(make(), _pieces(written, 0), **how) == whole
    else:
        assert data.startswith(written)


def _wire_log_pack(data: bytes) -> None:
    pack = decode_log_pack(data, 1 << 20, 1 << 12)
    again = encode_log_pack(pack.offsets[0] if pack.offsets else 0, pack.entries)
    assert decode_log_pack(again, 1 << 20, 1 << 12) == pack


def _wire_value(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], data: bytes) -> None:
    assert encode(decode(data)) == data


_WIRE: Sequence[Callable[[bytes], None]] = (
    lambda data: _wire_stream(lambda: RequestDecoder(SMALL), encode_request, data),
    lambda data: _wire_stream(ResponseDecoder, encode_response, data),
    lambda data: _wire_stream(ResponseDecoder, encode_response, data, hinted=True),
    lambda data: _wire_value(decode_cluster_server, encode_cluster_server, data),
    lambda data: _wire_value(
        lambda value: decode_cluster_server(value, id_only=True),
        lambda server: encode_cluster_server(server, id_only=True),
        data,
    ),
    lambda data: _wire_value(decode_configuration, encode_configuration, data),
    lambda data: _wire_value(decode_snapshot_sync_request, encode_snapshot_sync_request, data),
    _wire_log_pack,
    lambda data: _wire_log_pack(zlib.compress(data, 0, 31)),
)


def wire(data: bytes) -> None:
    """Decoders of requests, responses and all values."""
    kind, rest = data[0] if data else 0, data[1:]
    with suppress(RemoteProtocolError):
        _WIRE[kind % len(_WIRE)](rest)


def _wire_seeds() -> list[bytes]:
    seeds = {b"\x03\x00\x00\x00\x07\x00\x00\x00\x03ssl", b"\x04\x00\x00\x00\x07"}
    hint = encode_configuration(MEMBERS)
    for vector in _vectors():
        data = bytes.fromhex(vector["hex"])
        if vector["kind"] != "request":
            refused = data[:-1] + b"\0" + bytes(8) + b"\x02" + len(hint).to_bytes(4, "big") + hint
            seeds |= {b"\x01\x00" + data, b"\x02\x07" + refused}
            continue
        seeds |= {b"\x00\x00" + data, b"\x00\x05" + data + data}
        for request in _decoded(RequestDecoder(SMALL), _pieces(data, 0)):
            for entry in () if isinstance(request, str) else request.entries:
                if entry.value_type is ValueType.CONFIGURATION:
                    seeds.add(b"\x05" + entry.value)
                elif entry.value_type is ValueType.CLUSTER_SERVER:
                    seeds.add(b"\x03" + entry.value)
                elif entry.value_type is ValueType.SNAPSHOT_SYNC_REQUEST:
                    seeds.add(b"\x06" + entry.value)
                elif entry.value_type is ValueType.LOG_PACK:
                    seeds |= {b"\x07" + entry.value, b"\x08" + gzip.decompress(entry.value)}
    return sorted(seeds)


# upgrade

KEY = b"k" * 32
NOW_S = 1000.0
RANDOM = b"r" * 16
USER, PASSWORD = "7", "the password"
TARGET = farm_target(FARM)
EXTENSIONS = {"pre-vote": "1", "leader-hint": "1"}


def _lookup(user: str) -> Mapping[str, Sequence[str]]:
    return {each: [ha1(each, USER, REALM, PASSWORD)] for each in ALGORITHMS} if user == USER else {}


def _verifier() -> DigestVerifier:
    return DigestVerifier(REALM, ALGORITHMS, KEY, _lookup)


def _responder() -> Responder:
    leader = (2, "ssl://host2.example:27150")
    return Responder({FARM: FarmCredentials(FARM, GENESIS.farm_id, _verifier(), EXTENSIONS, lambda: leader)})


def _initiator(*, challenged: bool) -> Initiator:
    host, cache = "host1.example:27150", ChallengeCache()
    if challenged:
        cache.learn((host, FARM, USER), _verifier().challenges(NOW_S, RANDOM))
    return Initiator(
        host=host,
        farm=FARM,
        user=USER,
        password=PASSWORD,
        cache=cache,
        farm_id=GENESIS.farm_id,
        extensions=EXTENSIONS,
    )


def _respond(data: bytes, size: int) -> Accepted | Rejected:
    responder = _responder()
    for piece in _pieces(data, size):
        verdict = responder.receive(piece, NOW_S, RANDOM)
        if verdict is not None:
            return verdict
    verdict = responder.receive(b"", NOW_S, RANDOM)
    assert verdict is not None
    return verdict


def _initiate(data: bytes, size: int, *, challenged: bool) -> str:
    initiator = _initiator(challenged=challenged)
    initiator.request("cafe")
    try:
        for piece in _pieces(data, size):
            verdict = initiator.receive(piece)
            if isinstance(verdict, NewStream):
                outcome = _respond(initiator.request("cafe"), 0)
                assert isinstance(outcome, Rejected | Accepted)
                assert not isinstance(outcome, Rejected) or outcome.reason in {
                    "password",
                    "stale",
                    "challenge",
                }
                return "new stream"
            if verdict is not None:
                return f"{verdict.user} {verdict.extensions}"
        initiator.receive(b"")
    except (AuthError, RemoteProtocolError) as error:
        return type(error).__name__
    raise AssertionError("no verdict on a stream that ended")


def upgrade(data: bytes) -> None:
    """Both sides of the handshake, whole and in pieces."""
    side, size, rest = data[0] % 3 if data else 0, data[1] if len(data) > 1 else 0, data[2:]
    if side == 0:
        whole, cut = _respond(rest, 0), _respond(rest, size)
        assert type(whole) is type(cut)
        if isinstance(whole, Accepted) and isinstance(cut, Accepted):
            assert (whole.reply, whole.user, whole.extensions) == (cut.reply, cut.user, cut.extensions)
            assert whole.leftover.startswith(cut.leftover)
    else:
        challenged = side == 2
        assert _initiate(rest, size, challenged=challenged) == _initiate(rest, 0, challenged=challenged)


def _upgrade_seeds() -> list[bytes]:
    first, second = (_initiator(challenged=challenged).request("cafe") for challenged in (False, True))
    keyed = second.replace(b"Upgrade: websocket", b"Upgrade: websocket\r\nSec-WebSocket-Key: AAAA")
    replies = [
        _respond(request, 0).reply for request in (first, second, keyed, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    ]
    asked = [first, second, keyed, second + b"raft", b"HEAD / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00"]
    seeds = [b"\x00" + size + request for request in asked for size in (b"\x00", b"\x11")]
    return seeds + [side + b"\x07" + reply for reply in replies for side in (b"\x01", b"\x02")]


# digest


def _digest_credentials(text: str) -> None:
    verdict = _verifier().verify("GET", TARGET, text, NOW_S)
    if isinstance(verdict, Verified):
        assert verdict.user == USER
        assert parse_header(verdict.authentication_info)


def _digest_challenges(text: str) -> None:
    cache, key = ChallengeCache(), ("host", FARM, USER)
    try:
        challenge = cache.learn(key, text.split("\n"))
    except RemoteProtocolError:
        return
    answer = cache.authorization(key, method="GET", target=TARGET, password=PASSWORD, cnonce="cafe")
    assert answer is not None
    ((scheme, given),) = parse_header(answer.header)
    assert (scheme, given["nonce"], given["realm"]) == ("digest", challenge.nonce, challenge.realm)


def digest(data: bytes) -> None:
    """Headers of Digest authentication: lists of parameters, credentials, challenges."""
    kind, text = data[0] % 3 if data else 0, data[1:].decode("latin-1")
    if kind == 0:
        for _, parameters in parse_header(text):
            assert parameters
    elif kind == 1:
        _digest_credentials(text)
    else:
        _digest_challenges(text)


def _digest_seeds() -> list[bytes]:
    challenges = _verifier().challenges(NOW_S, RANDOM)
    texts = [*challenges, ", ".join(challenges), "\n".join(_verifier().challenges(NOW_S, RANDOM, stale=True))]
    nonce = parse_header(challenges[0])[0][1]["nonce"]
    for algorithm in ALGORITHMS:
        secret = ha1(algorithm, USER, REALM, PASSWORD)
        proof = {"nonce": nonce, "nc": "00000001", "cnonce": "cafe", "uri": TARGET}
        response = digest_response(algorithm, secret, method="GET", **proof)
        texts.append(
            f'Digest username="{USER}", realm="{REALM}", nonce="{nonce}", uri="{TARGET}", '
            f'algorithm={algorithm}, response="{response}", qop=auth, nc=00000001, cnonce="cafe"'
        )
    texts += [
        'rspauth="abc", qop=auth',
        "Basic YTpi",
        'Digest a="b\\"c"',
        'Digest qop="auth,auth-int", opaque=x',
    ]
    return [kind + text.encode("latin-1") for text in texts for kind in (b"\x00", b"\x01", b"\x02")]


# status


def status(data: bytes) -> None:
    """Entries, one per line: judged one by one, then folded as if all had been committed."""
    application = PublisherFold(FARM)
    application.configure(0, MEMBERS)
    for index, entry in enumerate(data.split(b"\n"), 1):
        for judge in (decode_object, lambda text: check_author(parse_entry(text, FARM), 1)):
            with suppress(EntryRefused):
                judge(entry)
        with suppress(EntryRefused):
            application.check(entry, 1)
        application.apply(index, 1, entry)
        msgspec.json.encode(application.ranking())
        application.contents()
    state = application.snapshot()
    restored = PublisherFold(FARM)
    restored.restore(state)
    assert restored.snapshot() == state
    assert restored.ranking() == application.ranking()


def _status_seeds() -> list[bytes]:
    entries = _scripted_entries()
    note = b'{"cluster":"farm","date":1800000000000,"id":0,"sequence":5,"config":{"by":"alice"}}'
    groups = (b"\n".join(entries[start : start + 4]) for start in range(0, min(len(entries), 80), 16))
    return [note, b'{"a":[1.5,-0,1e5,"\\ud83d\\ude00"]}', *entries[:40], *groups]


# config and token


def config(data: bytes) -> None:
    """A configuration file, whatever its bytes."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        path = Path(directory) / "garlicfarm.toml"
        path.write_bytes(data)
        with suppress(ConfigError):
            load(path, {})


def _config_seeds() -> list[bytes]:
    destination = "A" * 516
    smallest = """version = 1
[node]
id = 1
[[listener]]
url = "ssl://0.0.0.0:27150"
[[farm]]
name = "farm"
endpoint = "ssl://a.example:27150"
"""
    full = f"""version = 1
[node]
id = 2
preset = "i2p"
shutdown_timeout_s = 10
[log]
level = "debug"
format = "json"
[admin]
url = "https://[::1]:27151"
metrics_token_file = "token"
[[listener]]
url = "i2p://127.0.0.1:27152"
farms = ["my-farm"]
[transport.i2p]
proxy = "http://127.0.0.1:4444"
[[farm]]
name = "my-farm"
application = "publisher"
endpoint = "tcp://a.example:27150?pin=sha256-AAAA"
algorithms = ["SHA-256"]
[farm.raft]
heartbeat_s = 4.5
[farm.retention]
keep_entries = 5
[farm.router]
plugin = "i2pcontrol"
[farm.meta]
destination = "{destination}"
publish = "on"
[[farm.leaf]]
destination = "{destination}"
"""
    odd = 'version = 1\na.b."c" = [nan, 1979-05-27T07:32:00Z, {x = 0x1F}, """\ny"""]\n'
    return [smallest.encode(), full.encode(), odd.encode()]


def token(data: bytes) -> None:
    """A join token: as text, or (after an odd byte) the JSON that the text spells."""
    kind, rest = data[0] % 2 if data else 0, data[1:]
    text = base64.urlsafe_b64encode(rest).decode() if kind else rest.decode("utf-8", "replace")
    try:
        made = decode_token(text)
        assert decode_token(encode_token(made)) == made
        check_expiry(made, 1.8e9)
    except (AuthError, ConfigError):
        pass


def _token_seeds() -> list[bytes]:
    made = JoinToken(
        farm=FARM,
        farm_id=GENESIS.farm_id,
        farm_secret=KEY,
        application="publisher",
        algorithm=2,
        id=4,
        endpoints={server.id: server.endpoint for server in MEMBERS.servers},
        expires_s=1_700_000_000,
        raft={"heartbeat_s": 0.5},
    )
    later = msgspec.structs.replace(made, expires_s=1_900_000_000)
    seeds = [b"\x00" + encode_token(each).encode() for each in (made, later)]
    return seeds + [b"\x01" + msgspec.json.encode(each) for each in (made, later)]


# i2p


def i2p(data: bytes) -> None:
    """LeaseSets, I2CP configurations and files of keys. What is read is written as it was."""
    kind, rest = data[0] % 4 if data else 0, data[1:]
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
    long_term = DestinationKeys(destination=make_destination(_public(KEY), bytes(FILLER_BYTES)), seed=KEY)
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


def _public(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


# snapshot

SENT = Snapshot(GENESIS.farm_id, "log", 2, 30, 2, MEMBERS, MEMBERS.servers, 21, bytes(range(40)))


@cache
def _sent() -> bytes:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        write_snapshot(Path(directory), SENT)
        return (Path(directory) / "30-2.snap").read_bytes()


@cache
def _farm_states() -> tuple[bytes, ...]:
    application, states = PublisherFold(FARM), []
    application.configure(0, MEMBERS)
    for index, entry in enumerate(_scripted_entries()[:60], 1):
        application.apply(index, 1, entry)
        if index % 12 == 3:
            states.append(application.snapshot())
    return tuple(states)


def _snapshot_restore(application: LogApplication | PublisherFold, data: bytes) -> None:
    before = application.snapshot()
    try:
        application.restore(data)
    except (StorageDamaged, StorageVersion):
        assert application.snapshot() == before
        return
    after = application.snapshot()
    application.restore(after)
    assert application.snapshot() == after


def _snapshot_pieces(data: bytes) -> None:
    """Pieces of a sound snapshot and of others: ``flags u8 | offset u16 | length u8``, and if the first
    flag is set the bytes themselves, else the sound ones of that place."""
    sound = _sent()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        directory = Path(name) / "snapshots"
        receiver = SnapshotReceiver(directory, GENESIS)
        while len(data) >= 4:
            flags, offset, length = data[0], int.from_bytes(data[1:3], "big"), data[3]
            data = data[4:]
            piece = sound[offset : offset + length]
            if flags & 1:
                piece, data = data[:length], data[length:]
            request = SnapshotSyncRequest(30 + (flags >> 4 & 1), 2, MEMBERS, offset, piece, bool(flags & 2))
            held, meta = receiver.take(request)
            assert held >= 0
            if meta is not None:
                assert meta == SENT.meta
                assert read_snapshot(directory / "30-2.snap") == SENT


def _snapshot_file(data: bytes) -> None:
    """A file whose size and checksum are right, whatever it holds."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        path = Path(name) / "30-2.snap"
        path.write_bytes(_sent()[:8] + len(data).to_bytes(8, "big") + sha256(data).digest() + data)
        with suppress(StorageDamaged, StorageVersion):
            read_snapshot(path)


def snapshot(data: bytes) -> None:
    """Snapshots: states that an application takes up, pieces that come in, files."""
    kind, rest = data[0] % 4 if data else 0, data[1:]
    if kind == 0:
        _snapshot_restore(LogApplication(), rest)
    elif kind == 1:
        _snapshot_restore(PublisherFold(FARM), rest)
    elif kind == 2:
        _snapshot_pieces(rest)
    else:
        _snapshot_file(rest)


def _snapshot_seeds() -> list[bytes]:
    size = len(_sent())
    places = [(at, min(200, size - at)) for at in range(0, size, 200)]
    pieces = [
        bytes([2 * (at + length == size)]) + at.to_bytes(2, "big") + bytes([length]) for at, length in places
    ]
    smallest = PublisherFold(FARM).snapshot()
    return [
        b"\x00" + LogApplication().snapshot(),
        *(b"\x01" + state for state in (smallest, *_farm_states())),
        b"\x02" + b"".join(pieces),
        b"\x02" + pieces[0] + pieces[0] + b"\x01\x00\xc8\x03abc" + pieces[1],
        b"\x03" + _sent()[48:],
    ]


# store

_STEPS = 6
_FILES = ("log/0000000001.seg", "log/synced", f"snapshots/{6}-1.snap")


class _Store(NamedTuple):
    """The files of sound stores: one that was closed, and one of a process that was killed."""

    closed: dict[str, bytes]
    killed: dict[str, bytes]


def _files(directory: Path) -> dict[str, bytes]:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


@cache
def _sound_store() -> _Store:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        directory = Path(name) / "farm"
        create_store(directory, GENESIS)
        state = LogApplication()
        steps = []
        for token in range(_STEPS):
            entries = [
                Entry(2 * token + at, 1, ValueType.APPLICATION, bytes([token]) * 50 * token) for at in (1, 2)
            ]
            for entry in entries:
                state.apply(entry.index, entry.term, entry.value)
            steps.append(Persist(token, HardState(1, 2, 2 * token + 2), None, tuple(entries)))
            if token == 2:
                taken = Snapshot(
                    GENESIS.farm_id, "log", 2, 6, 1, MEMBERS, MEMBERS.servers, 4, state.snapshot()
                )
        killed = trio.run(_write, directory, steps)
        write_snapshot(directory / "snapshots", taken)
        closed = _files(directory)
    return _Store(closed, killed)


async def _write(directory: Path, steps: Sequence[Persist]) -> dict[str, bytes]:
    """Write the steps, each a transaction; the files as a process leaves them that is killed then."""
    with closing(LogStore.open(directory, farm=FARM)) as store:
        durable = trio.Event()
        writer = Writer(store, lambda token: durable.set())
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: writer.run(task_status=task_status))
            for step in steps:
                durable = trio.Event()
                writer.submit(step)
                await durable.wait()
            files = _files(directory)
            nursery.cancel_scope.cancel()
    return files


def store(data: bytes) -> None:
    """A store with changed bytes: ``file u8``, then changes of ``place u16 | xor u8``; with the highest bit
    of the first byte the file ends at the first place instead. It opens and serves, or says why not."""
    if not data:
        return
    name = _FILES[data[0] % len(_FILES)]
    sound = _sound_store()
    files = dict(sound.killed if data[0] & 0x40 else sound.closed)
    changed = bytearray(files.get(name, b""))
    places = [data[at : at + 3] for at in range(1, len(data) - 2, 3)]
    for change in places if changed else ():
        place = int.from_bytes(change[:2], "big") % len(changed)
        if data[0] & 0x80:
            del changed[place:]
            break
        changed[place] ^= change[2]
    files[name] = bytes(changed)
    with tempfile.TemporaryDirectory(dir=MEMORY) as where:
        directory = Path(where)
        for file, content in files.items():
            (directory / file).parent.mkdir(exist_ok=True)
            (directory / file).write_bytes(content)
        try:
            found = _contents(directory)
        except StorageError:
            return
        if name == _FILES[0] and len(places) == 1 and not data[0] & 0x80:  # a checksum finds one such change
            shutil.rmtree(directory)
            for file, content in (sound.killed if data[0] & 0x40 else sound.closed).items():
                (directory / file).parent.mkdir(parents=True, exist_ok=True)
                (directory / file).write_bytes(content)
            assert found == _contents(directory)


def _contents(directory: Path) -> tuple[Any, ...]:
    with closing(LogStore.open(directory, farm=FARM)) as opened:
        last = opened.last_index()
        first = opened.first_index()
        return opened.initial_state(), opened.entries(first, last + 1, 1 << 30) if last >= first else ()


def _store_seeds() -> list[bytes]:
    places = [b"\x00\x10\x01", b"\x10\x05\x80", b"\x20\x64\xff", b"\x10\x05\x80\x20\x64\xff", b""]
    kinds = [file | killed | cut for file in range(len(_FILES)) for killed in (0, 0x40) for cut in (0, 0x80)]
    return [bytes([kind]) + place for kind in kinds for place in places]


# i2cp


def i2cp(data: bytes) -> None:
    """What a router sends over I2CP, whole and in pieces."""

    def messages(pieces: Iterator[bytes]) -> list[Any]:
        decoder = messages_of_i2cp.MessageDecoder()
        found: list[Any] = []
        try:
            for piece in pieces:
                decoder.receive_data(piece)
                while (message := decoder.next_message()) is not None:
                    found.append(message)
            decoder.receive_eof()
        except RemoteProtocolError as error:
            found.append(str(error))
        return found

    size, data = data[0] if data else 0, data[1:]
    assert messages(_pieces(data, size)) == messages(_pieces(data, 0))


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


# streams


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
    return DestinationKeys(destination=make_destination(_public(seed), bytes(FILLER_BYTES)), seed=seed)


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


# ---------------------------------------------------------------------------------------------- Dafka

_DAFKA: Sequence[tuple[Callable[[list[bytes]], Any], Callable[[Any], list[bytes]]]] = (
    (codec_of_dafka.decode, codec_of_dafka.encode),
    (codec_of_dafka.decode_node_beacon, codec_of_dafka.encode_node_beacon),
    (codec_of_dafka.decode_tower_beacon, codec_of_dafka.encode_tower_beacon),
)


def dafka(data: bytes) -> None:
    """Commands, both beacons, subscriptions, and what ZeroMQ asks of its ZAP handler, each of some frames."""
    kind, frames, rest = data[0] if data else 0, [], data[1:]
    while rest:
        size, rest = int.from_bytes(rest[:2], "big"), rest[2:]
        frames.append(rest[:size])
        rest = rest[size:]
    if kind < len(_DAFKA):
        decode_frames, encode_frames = _DAFKA[kind]
        with suppress(RemoteProtocolError):
            decoded = decode_frames(frames)
            assert encode_frames(decoded) == frames
            if kind == 0:
                command, routing = codec_of_dafka.split_prefix(frames[0][: frames[0].index(0)])
                assert command is type(decoded)
                assert frames[0].startswith(codec_of_dafka.subscription_prefix(command, routing))
    elif kind == len(_DAFKA):
        for prefix in frames:
            command, routing = codec_of_dafka.split_prefix(prefix)
            assert command is None or codec_of_dafka.subscription_prefix(command, routing) == prefix
    else:
        refused: list[tuple[str, str]] = []
        answer = zap_answer(frames, {}, lambda *each: True, lambda *each: refused.append(each))
        assert (answer[2], len(refused)) == (b"400", 1)


def _dafka_seeds() -> list[bytes]:
    kinds = {"NODE-BEACON": 1, "TOWER-BEACON": 2, "SUBSCRIBE": 3, "UNSUBSCRIBE": 3}
    seeds = [_dafka_input(4, [b"1.0", b"1", b"dafka/1", b"127.0.0.1", b"", b"CURVE", bytes(32)])]
    for path in sorted((DATA / "dafka").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            vector = json.loads(line)
            frames = [bytes.fromhex(frame) for frame in vector["frames"]]
            name = vector["name"]
            kind = kinds.get(name, kinds.get(name.partition("-")[0], 0))
            seeds.append(_dafka_input(kind, [frames[0][1:]] if kind == 3 else frames))
            if kind in (1, 2):
                key = b"curve=Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
                seeds.append(_dafka_input(kind, [*frames, key]))
    return seeds


def _dafka_input(kind: int, frames: Sequence[bytes]) -> bytes:
    return bytes([kind]) + b"".join(len(frame).to_bytes(2, "big") + frame for frame in frames)


# ---------------------------------------------------------------------------------------------- events


def events(data: bytes) -> None:
    """A message of live events, as a client takes it: of text, or of records of entries."""
    kind, content = data[:1], data[1:]
    with suppress(RemoteProtocolError):
        if kind == b"\0":
            decoded = decode_events(content.decode(errors="replace"))
            assert decode_events("\n".join(encode_event(event).decode() for event in decoded)) == decoded
        else:
            entries = [event.entry for event in decode_entries(content, 3)]
            assert encode_records(entries) == content


def _events_seeds() -> list[bytes]:
    told = [
        LeaderEvent(4, 1, 2),
        PublisherEvent(4, 2, 1, "margin", 4),
        MembersEvent(5, (MemberAddress(1, "ssl://a.example:1"),)),
        HealthEvent(5, "degraded", 0, (3,), False),
        PositionEvent(6),
    ]
    entries = [Entry(4, 1, ValueType.APPLICATION, b"x"), Entry(6, 2, ValueType.CONFIGURATION, b"\xff")]
    lines = [b"\0" + encode_event(event) for event in told]
    return [*lines, b"\0" + b"\n".join(line[1:] for line in lines), b"\1" + encode_records(entries)]


TARGETS: Mapping[str, Target] = {
    "wire": Target(wire, _wire_seeds),
    "dafka": Target(dafka, _dafka_seeds),
    "i2cp": Target(i2cp, _i2cp_seeds),
    "streams": Target(streams, _streams_seeds),
    "upgrade": Target(upgrade, _upgrade_seeds),
    "digest": Target(digest, _digest_seeds),
    "status": Target(status, _status_seeds),
    "config": Target(config, _config_seeds),
    "token": Target(token, _token_seeds),
    "i2p": Target(i2p, _i2p_seeds),
    "snapshot": Target(snapshot, _snapshot_seeds),
    "store": Target(store, _store_seeds),
    "events": Target(events, _events_seeds),
}


def _planted(data: bytes) -> None:
    """Requests, by a decoder that would not check ``entry_size``."""
    for message in _decoded(RequestDecoder(SMALL), _pieces(data[2:], 0)):
        if isinstance(message, str) and "entry_size" in message:
            raise IndexError(message)


planted = Target(_planted, lambda: [seed for seed in _wire_seeds() if seed[0] == 0])
"""A target with a defect, for the fuzzer to be tested by: no seed shows it."""
