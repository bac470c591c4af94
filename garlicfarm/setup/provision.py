"""Makes nodes: configuration, certificate, secret, the user ``local``, and the store with its genesis.
A node that joins a farm gets the farm's secret and a genesis without a Configuration, which its leader sends.

All or nothing: everything is made in a hidden directory and moved to its place at the end. Existing files are
never changed, except what a killed command left in that hidden directory. Only this room makes stores;
a running node never does: a lost store must not come back empty (D12). ::

    DIRECTORY/garlicfarm.toml
    DIRECTORY/data/                node.json  users  local.password  tls/  secrets/  farms/<farm>/
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from garlicfarm.agreed import EPOCH_LENGTH
from garlicfarm.config import load
from garlicfarm.config.model import PRESET_LEASES_MS, PRESET_RETIRE_TIMEOUTS_S, PRESETS, Algorithms
from garlicfarm.config.toml import to_toml
from garlicfarm.config.validators import dial_url_problem
from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.credentials.join_token import JoinToken
from garlicfarm.credentials.member_credentials import write_secret_file
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.credentials.users import LOCAL_USER, UserStore
from garlicfarm.durable_files import fsync_path, give_to_owner, make_private_directory, write_new_file
from garlicfarm.errors import ConfigError, StorageError, StorageInUse
from garlicfarm.http.digest import ALGORITHMS
from garlicfarm.levels import HIGHEST, LEASES, LOWEST, algorithm_of
from garlicfarm.publishing.administration import MAX_LEASE_MS
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.lease import least_lease_ms, least_R
from garlicfarm.regular_files import read_file
from garlicfarm.storage import DataDirectory, Genesis, Snapshot, create_store
from garlicfarm.transport import Endpoint
from garlicfarm.wire.messages import ClusterServer, Configuration

ADMIN_PORT = 27151
CONFIG_NAME = "garlicfarm.toml"
STAGING = ".garlicfarm-new"
HEAD = """# The configuration of one garlicfarm node. `garlicfarm config check` looks for mistakes in it;
# `garlicfarm config check --effective` shows every value in force, defaults too, and where each comes from.
"""
_FOUNDER = "farm create"  # the author of the first orders, where the log shows a user


class FarmPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What all members of a new farm share. ``raft`` and ``retention`` hold the keys of those tables that
    differ from the preset; ``algorithms`` are those of Digest that members accept. ``master`` is the master
    destination in I2P base64. Each member gets a copy of ``master_key_file``; without it none can publish.

    ``interval_ms``: how often members post their statuses. The log then begins with orders that set it and
    the least R that suits the farm's timings (`garlicfarm.publishing.lease.least_R`); later ones replace
    them. ``lease_ms``: how long a lease lasts, by default as the preset says, unless these timings ask for a
    longer one (`least_lease_ms` there); an order sets it too, if the farm begins at a level with leases
    (D24). Both None, and in any other application than ``publisher``: no orders, the constants hold.

    ``epoch_length``: how many Application entries make an epoch (D23), for ever."""

    name: str = "farm"
    application: str = "publisher"
    preset: str = "clearnet"
    master: str = ""
    master_key_file: Path | None = None
    raft: Mapping[str, Any] = {}
    retention: Mapping[str, Any] = {}
    algorithms: Algorithms = ALGORITHMS
    interval_ms: int | None = None
    lease_ms: int | None = None
    epoch_length: int = EPOCH_LENGTH


class MemberPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to one member.

    ``endpoint`` is what others dial; a pin is added to it where the transport is ``ssl`` (D11).
    ``listen`` "": every address at the endpoint's port, or loopback if the endpoint is there.
    ``admin_url`` "": loopback at `ADMIN_PORT`.
    ``proxy`` is the HTTP proxy of its router, through which it dials members in I2P; "": i2pd's default.
    ``router`` is the table ``[farm.router]``, {} for none; ``leaves`` are I2P base64; ``publishers`` are the
    tables ``[[farm.publisher]]``, ``feeds`` those of ``[[farm.feed]]``.
    """

    endpoint: str
    listen: str = ""
    admin_url: str = ""
    proxy: str = ""
    router: Mapping[str, Any] = {}
    leaves: tuple[str, ...] = ()
    publishers: tuple[Mapping[str, Any], ...] = ()
    feeds: tuple[Mapping[str, Any], ...] = ()


class MadeFarm(msgspec.Struct, frozen=True):
    """A new farm: its id (16 bytes), the first Configuration, and each member's directory."""

    farm_id: bytes
    configuration: Configuration
    directories: Mapping[int, Path]


def create_node(directory: Path, node_id: int, member: MemberPlan, farm: FarmPlan | None = None) -> MadeFarm:
    """Make a farm of one node in ``directory``, which may exist but must not hold a node.

    Mints farm id and farm secret. Raises `ConfigError`: a file exists already, or the plans make no valid
    configuration; `StorageError`: it cannot be written. After an error nothing was made.
    """
    _check_free(directory)
    with _staging(directory) as staging:
        made = _make(farm or FarmPlan(), {node_id: member}, {node_id: staging})
    return msgspec.structs.replace(made, directories={node_id: directory})


def create_joining_node(directory: Path, member: MemberPlan, token: JoinToken) -> None:
    """Make the node that ``token`` is for in ``directory``. It becomes a member when the leader adds it.
    Raises as `create_node`."""
    farm = plan_of(token)
    _check_free(directory)
    check_endpoints({token.id: member})
    with _staging(directory) as staging:
        _make_node(staging, farm, token.id, member)
        make_store(staging / "data", farm, token.farm_secret, joining_genesis(token))


def plan_of(token: JoinToken) -> FarmPlan:
    """The plan of the farm that a token is for."""
    return FarmPlan(
        name=token.farm,
        application=token.application,
        preset=token.preset,
        master=token.master,
        raft=token.raft,
        retention=token.retention,
        algorithms=token.algorithms,
        epoch_length=token.epoch_length,
    )


def joining_genesis(token: JoinToken) -> Genesis:
    """What the store of a new member is born with: it is to be told the Configuration."""
    farm = (token.farm, token.farm_id, token.application, token.algorithm)
    return Genesis(*farm, None, token.epoch_length)


def remove_node(directory: Path) -> None:
    """Remove what `create_joining_node` made of a node that was never invited. Raises `StorageError`."""
    try:
        (directory / CONFIG_NAME).unlink()
        shutil.rmtree(directory / "data")
    except OSError as error:
        raise StorageError(f"cannot remove {error.filename}: {error.strerror}") from error


def _check_free(directory: Path) -> None:
    for name in (CONFIG_NAME, "data"):
        if (directory / name).exists():
            raise ConfigError([f"{directory / name} exists already; nothing was overwritten"])


class Founding(msgspec.Struct, frozen=True):
    """What the stores of all founding members hold: see `create_store`."""

    genesis: Genesis
    configuration: Configuration
    entries: tuple[bytes | Configuration, ...] = ()
    begins: Snapshot | None = None


Found = Callable[[FarmPlan, Mapping[int, MemberPlan], tuple[ClusterServer, ...]], Founding]
"""Gets the plans, and the members with their endpoints."""


def found_empty(
    farm: FarmPlan, members: Mapping[int, MemberPlan], servers: tuple[ClusterServer, ...]
) -> Founding:
    """A farm whose log begins with its first orders."""
    configuration = founding_configuration(servers)
    genesis = new_genesis(farm, configuration)
    return Founding(genesis, configuration, first_entries(farm, members, configuration))


def create_farm(
    out: Path,
    members: Mapping[int, MemberPlan],
    farm: FarmPlan | None = None,
    found: Found = found_empty,
) -> MadeFarm:
    """Make all nodes of a farm at once, each in its own directory ``out/node-<id>``; ``out`` must not
    exist, unless it holds nothing but what a command that was killed had not finished: a node that is in
    its place already may be in use. The genesis of each names all of them. Raises as `create_node` does.
    """
    if out.exists() and not (out.is_dir() and os.listdir(out) == [STAGING]):
        raise ConfigError([f"{out} exists already; nothing was overwritten"])
    if not members:
        raise ConfigError(["a farm needs at least one member"])
    with _staging(out) as staging:
        directories = {node_id: staging / f"node-{node_id}" for node_id in sorted(members)}
        for directory in directories.values():
            directory.mkdir(mode=0o700)
        made = _make(farm or FarmPlan(), members, directories, found)
    return msgspec.structs.replace(made, directories={i: out / path.name for i, path in directories.items()})


def check_endpoints(members: Mapping[int, MemberPlan]) -> None:
    """Raises `ConfigError`: an endpoint cannot be dialled, or two members have the same."""
    problems = [
        f"member {node_id}: {problem}"
        for node_id, member in members.items()
        if (problem := _problem(member.endpoint)) is not None
    ]
    if problems:
        raise ConfigError(problems)
    dialled = [Endpoint.parse(member.endpoint) for member in members.values()]
    if len({(endpoint.host, endpoint.port) for endpoint in dialled}) < len(dialled):
        raise ConfigError(["two members have the same endpoint; each needs its own host or port"])


def _problem(endpoint: str) -> str | None:
    if endpoint.lower().startswith("tcp://"):
        # D1: on the wire of JRaft it stands for the transport of whoever reads it. Whoever writes it here
        # most likely expects plain TCP.
        return f"endpoint {endpoint!r} names no transport: write ssl://HOST:PORT (there is no plain TCP)"
    return dial_url_problem(endpoint)


def _make(
    farm: FarmPlan,
    members: Mapping[int, MemberPlan],
    directories: Mapping[int, Path],
    found: Found = found_empty,
) -> MadeFarm:
    check_endpoints(members)
    servers = tuple(
        ClusterServer(node_id, str(_make_node(directories[node_id], farm, node_id, members[node_id])))
        for node_id in sorted(members)
    )
    founding, secret = found(farm, members, servers), secrets.token_bytes(32)
    for directory in directories.values():
        make_store(
            directory / "data", farm, secret, founding.genesis, founding.entries, begins=founding.begins
        )
    return MadeFarm(founding.genesis.farm_id, founding.configuration, directories)


def founding_configuration(servers: Sequence[ClusterServer]) -> Configuration:
    """The Configuration that a farm begins with: at the highest level, unless JRaft is to be among them."""
    has_jraft = any(Endpoint.parse(server.endpoint).scheme == "jraft" for server in servers)
    return Configuration(0, 0, tuple(servers), LOWEST if has_jraft else HIGHEST)


def new_genesis(farm: FarmPlan, configuration: Configuration) -> Genesis:
    """The genesis of a new farm's stores; mints its id."""
    algorithm = algorithm_of(configuration.level)
    born = (farm.name, secrets.token_bytes(16), farm.application, algorithm)
    return Genesis(*born, configuration, farm.epoch_length)


def first_entries(
    farm: FarmPlan, members: Mapping[int, MemberPlan], configuration: Configuration
) -> tuple[bytes | Configuration, ...]:
    """The entries that the log of a new farm of ``members`` begins with: R, the interval and how long a lease
    lasts. All members' stores hold the same ones, so they take force once, whichever member leads first
    (`create_store`). The farm's ``configuration`` stands before an order that is known from a level on:
    servers that join fold the log without the genesis."""
    timings = {**PRESETS[farm.preset], **farm.raft}
    publishers = [publisher for member in members.values() for publisher in member.publishers]
    own_s = PRESET_RETIRE_TIMEOUTS_S[farm.preset]
    retire_timeout_s = max((each.get("retire_timeout_s", own_s) for each in publishers), default=own_s)
    date_ms, member = time.time_ns() // 1_000_000, min(members)

    def order(action: str, **args: object) -> bytes:
        return encode_admin(farm.name, date_ms, member, None, action, _FOUNDER, args)

    entries: list[bytes | Configuration] = []
    if farm.application != "publisher":
        return ()
    if farm.interval_ms is not None:
        R = least_R(
            farm.interval_ms,
            election_timeout_max_s=timings["election_timeout_max_s"],
            rpc_timeout_s=timings["rpc_timeout_s"],
            retire_timeout_s=retire_timeout_s,
        )
        # R first: the shorter interval alone would cut the leases before the higher R lengthens them.
        entries += [order("staleness", R=R), order("interval", ms=farm.interval_ms)]
    lease_ms = farm.lease_ms or (0 if farm.interval_ms is None else PRESET_LEASES_MS[farm.preset])
    if lease_ms and configuration.level >= LEASES:
        least_ms = least_lease_ms(
            election_timeout_max_s=timings["election_timeout_max_s"],
            heartbeat_s=timings["heartbeat_s"],
            retire_timeout_s=retire_timeout_s,
        )
        entries.append(msgspec.structs.replace(configuration, log_index=len(entries) + 1))
        entries.append(order("lease", ms=min(max(lease_ms, 1000 * -(-least_ms // 1000)), MAX_LEASE_MS)))
    return tuple(entries)


def _make_node(directory: Path, farm: FarmPlan, node_id: int, member: MemberPlan) -> Endpoint:
    """Make what a node has without a farm: data directory, user, certificate, configuration. Returns the
    endpoint that others dial, with its pin."""
    data, endpoint = directory / "data", Endpoint.parse(member.endpoint)
    DataDirectory.create(data, node_id)
    password = secrets.token_urlsafe(32)
    UserStore(data / "users").add(LOCAL_USER, "admin", password)
    write_private_file(data / "local.password", f"{password}\n".encode())
    pin = make_certificate(data / "tls" / "node.crt", data / "tls" / "node.key", endpoint.host)
    endpoint = pinned(endpoint, pin)
    transport = {"ssl": {"certificate": "data/tls/node.crt", "private_key": "data/tls/node.key"}}
    if member.proxy:
        transport["i2p"] = {"proxy": member.proxy}
    document = {
        "version": 1,
        "node": {"id": node_id, "data_dir": "data", "preset": farm.preset},
        "admin": {"url": member.admin_url or f"https://127.0.0.1:{ADMIN_PORT}"},
        "listener": [{"url": member.listen or _listen_url(endpoint)}],
        "transport": transport,
        "farm": [farm_table(farm, endpoint, "data", member)],
    }
    write_new_file(directory / CONFIG_NAME, f"{HEAD}{to_toml(document)}".encode(), 0o644)
    load(directory / CONFIG_NAME, {})  # checks the plans as it checks every configuration
    return endpoint


def pinned(endpoint: Endpoint, pin: str) -> Endpoint:
    """The endpoint with the pin of the node's own certificate, if its transport is ``ssl`` (D11). A proxy in
    front of the node shows its own certificate; its pin is kept."""
    if endpoint.scheme != "ssl" or (endpoint.proxied and "pin" in endpoint.params):
        return endpoint
    return Endpoint("ssl", endpoint.host, endpoint.port, {**endpoint.params, "pin": pin})


def make_store(
    data: Path,
    farm: FarmPlan,
    secret: bytes,
    genesis: Genesis,
    entries: tuple[bytes | Configuration, ...] = (),
    *,
    begins: Snapshot | None = None,
) -> None:
    """Make one farm's files in a node's data directory: the farm's secret and key, and the store.
    ``entries``, ``begins``: what the store of a founding member holds (`Founding`)."""
    write_secret_file(data / _secret_name(farm), secret)
    if farm.master_key_file is not None:
        write_private_file(data / _master_key_name(farm), read_file(farm.master_key_file))
    create_store(data / "farms" / farm.name, genesis, entries, begins)


def farm_table(farm: FarmPlan, endpoint: Endpoint, data: str, member: MemberPlan) -> dict[str, Any]:
    """The table ``[[farm]]``, without defaults. ``data``: the data directory as the file names it."""
    table = {
        "name": farm.name,
        "application": farm.application,
        "endpoint": str(endpoint),
        "default_transport": endpoint.scheme if endpoint.scheme != "ssl" else "",
        "secret_file": f"{data}/{_secret_name(farm)}",
        "algorithms": farm.algorithms if farm.algorithms != ALGORITHMS else (),
        "raft": farm.raft,
        "retention": farm.retention,
        "router": member.router,
        "meta": {
            **({"destination": farm.master} if farm.master else {}),
            **({"key_file": f"{data}/{_master_key_name(farm)}"} if farm.master_key_file else {}),
        },
        "leaf": [{"destination": leaf} for leaf in member.leaves],
        "publisher": member.publishers,
        "feed": member.feeds,
    }
    return {key: value for key, value in table.items() if value}


def _listen_url(endpoint: Endpoint) -> str:
    """The URL on which a member listens that others dial at ``endpoint``. A transport other than ``ssl`` is
    behind a tunnel on this machine."""
    host = "0.0.0.0"
    try:
        address = ip_address(endpoint.host)
    except ValueError:
        address = None
    if address is not None and (address.is_loopback or address.version == 6):
        host = endpoint.host if address.is_loopback else "::"
    elif endpoint.scheme != "ssl" or endpoint.host == "localhost":
        host = "127.0.0.1"
    return str(Endpoint(endpoint.scheme, host, endpoint.port))


def _secret_name(farm: FarmPlan) -> str:
    return f"secrets/{farm.name}.secret"


def _master_key_name(farm: FarmPlan) -> str:
    return f"secrets/{farm.name}.master.key"


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A directory whose contents are moved into ``target`` if the block succeeds, and deleted otherwise.
    Existing files in ``target`` are not overwritten. A working process holds the flock of ``target``; what a
    killed one left in its staging directory is deleted."""
    new, staging = not target.exists(), target / STAGING
    try:
        make_private_directory(target)
        turn = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StorageError(f"cannot make {target}: {error.strerror}") from error
    moved: list[Path] = []
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir(mode=0o700)
        yield staging
        # "data" goes before "garlicfarm.toml": a configuration is never seen without its store.
        for child in sorted(staging.iterdir()):
            if (target / child.name).exists():
                raise ConfigError([f"{target / child.name} exists already; nothing was overwritten"])
            give_to_owner(child, target)
            moved.append(child.rename(target / child.name))
        staging.rmdir()
        fsync_path(target)
        fsync_path(target.absolute().parent)
    except BlockingIOError as error:
        raise StorageInUse(f"another process is making nodes in {target}") from error
    except BaseException as error:
        for path in (staging, *moved):
            shutil.rmtree(path, ignore_errors=True)
        if new:
            with suppress(OSError):  # another process put a file into it
                target.rmdir()
        if isinstance(error, OSError):
            raise StorageError(f"cannot make {target}: {error}") from error
        raise
    finally:
        os.close(turn)
