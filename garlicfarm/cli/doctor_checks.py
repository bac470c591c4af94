"""What `garlicfarm doctor` looks at: files and disk, the way to members and to the router, the running node.

Each check tells `Finding`s, and raises nothing that what it looks at may raise. None changes anything,
but for a file that one makes in the data directory and removes.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import trio

from garlicfarm.admin.health import judge, level_word, program_word
from garlicfarm.client.admin import client_of
from garlicfarm.client.local_node import local_node
from garlicfarm.config import Config, FarmSection
from garlicfarm.disk_space import REMEDY, disk_space
from garlicfarm.durable_files import owner_of
from garlicfarm.errors import ConfigError, GarlicFarmError, NotSupported, PluginError, StorageError
from garlicfarm.plugins import CONTRACTS, load_plugin, make_router, make_transport, options_of
from garlicfarm.storage import read_genesis
from garlicfarm.transport import Endpoint, Transport

State = Literal["ok", "note", "problem"]
CONNECT_S = 10.0
CONNECT_INSIDE_S = 60.0
"""Inside I2P a router first looks up where a member is."""
ASK_S = 15.0
FSYNCS, FSYNC_BYTES = 100, 4096
CERTIFICATE_DAYS = 30
MOST_FILES = 100_000
_ADDRESSES = ("address", "sam", "proxy")
"""Options of plugins that say where on this machine a router's door is."""


class Finding(NamedTuple):
    """``check``: what was looked at. ``text``: what was found, a clause. ``next``: what to do, "" for
    nothing."""

    check: str
    state: State
    text: str
    next: str = ""


def check_files(config: Config) -> Iterator[Finding]:
    """Whether all of the data directory belongs to its owner, and this process runs as that user."""
    directory = config.node.data_dir
    try:
        owner = directory.stat().st_uid
    except OSError as error:
        told = f"there is no data directory {directory}: {error.strerror}"
        yield Finding("files", "problem", told, "garlicfarm node init, or node join")
        return
    files = 0
    for path in (directory, *directory.rglob("*")):
        with suppress(OSError):
            files += 1
            if path.lstat().st_uid != owner:
                told = f"{path} belongs to {owner_of(path)}, its node's files to {owner_of(directory)}"
                yield Finding("files", "problem", told, f"chown -R {owner_of(directory)} {directory}")
                return
        if files == MOST_FILES:
            break
    mode = directory.stat().st_mode & 0o777
    if mode & 0o077:
        yield Finding(
            "files", "problem", f"others may enter {directory} (mode {mode:04o})", f"chmod 700 {directory}"
        )
    else:
        yield Finding("files", "ok", f"{directory} belongs to {owner_of(directory)}, and only it may enter")


def check_certificate(config: Config) -> Iterator[Finding]:
    """How long the node's own certificate is valid. Peers that pin it do not look at its dates."""
    from cryptography import x509

    path = config.node.data_dir / "tls" / "node.crt"
    try:
        end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        yield Finding("certificate", "problem", f"{path} cannot be read: {error}", "garlicfarm config check")
        return
    days = (end - datetime.now(UTC)).days
    state: State = "ok" if days > CERTIFICATE_DAYS else "note"
    yield Finding("certificate", state, f"{path} is valid until {end:%Y-%m-%d}, {days} days")


def check_space(config: Config) -> Iterator[Finding]:
    """How full the file system of the data directory is."""
    try:
        space = disk_space(config.node.data_dir)
    except OSError as error:
        yield Finding("space", "problem", f"{config.node.data_dir}: {error.strerror}")
        return
    yield Finding("space", space.state, str(space), "" if space.state == "ok" else REMEDY)
    held = 0
    for path in (config.node.data_dir / "farms").rglob("*.seg"):
        with suppress(OSError):  # a node that runs deletes them
            held += path.stat().st_size
    most = sum(farm.retention.keep_bytes for farm in config.farm)
    if most > (room := held + max(0, space.free - space.reserve)):
        told = (
            f"the logs may grow to {most / 1e9:.1f} GB (keep_bytes), and there is room for {room / 1e9:.1f}"
        )
        yield Finding("space", "note", told, REMEDY)


def check_disk(config: Config) -> Iterator[Finding]:
    """How long a small write takes to be durable, beside the heartbeat of the fastest farm. Blocks."""
    path = config.node.data_dir / f".doctor-{os.getpid()}"
    took = []
    try:
        with path.open("xb", buffering=0) as file:
            for _ in range(FSYNCS):
                began = time.perf_counter()
                file.write(bytes(FSYNC_BYTES))
                os.fsync(file.fileno())
                took.append(time.perf_counter() - began)
    except OSError as error:
        told = f"{config.node.data_dir} takes no file: {error.strerror}"
        yield Finding("disk", "problem", told, "run this as the node's user, and look at the file system")
        return
    finally:
        path.unlink(missing_ok=True)
    p99 = sorted(took)[int(0.99 * (len(took) - 1))]
    beat = min((farm.raft.heartbeat_s for farm in config.farm), default=1.0)
    told = f"a write is durable within {1000 * p99:.1f} ms (99 of 100); the heartbeat is {1000 * beat:.0f} ms"
    state: State = "problem" if p99 > beat else "note" if p99 > beat / 4 else "ok"
    todo = "find out what else writes there, use a faster disk, or longer timeouts in [farm.raft]"
    yield Finding("disk", state, told, "" if state == "ok" else todo)


async def check_members(config: Config, endpoints: Mapping[str, Mapping[int, str]]) -> AsyncIterator[Finding]:
    """Whether each member can be reached from here, and is who its endpoint says; this node at its own, too.

    :param endpoints: by farm and member; of farms whose Configuration is not known there are none.
    """
    transports: dict[str, Transport] = {}
    found: dict[tuple[str, int], Finding] = {}

    async def dial(farm: FarmSection, member: int, text: str) -> None:
        who = f"{farm.name}: this node" if member == config.node.id else f"{farm.name}: member {member}"
        check = "reaches members"
        try:
            endpoint = Endpoint.parse(text, farm.default_transport)
            if endpoint.scheme not in transports:
                table = config.transport.get(endpoint.scheme, {})
                transports[endpoint.scheme] = make_transport(endpoint.scheme, table, config.base_dir)
            bound = CONNECT_INSIDE_S if endpoint.host.endswith(".i2p") else CONNECT_S
            began = trio.current_time()
            with trio.fail_after(bound):
                stream = await transports[endpoint.scheme].open_stream(endpoint)
            took = trio.current_time() - began
            await trio.aclose_forcefully(stream)
            told = f"{who} answers at {endpoint.authority} after {1000 * took:.0f} ms"
            found[farm.name, member] = Finding(check, "ok", told)
        except trio.TooSlowError:
            told = f"{who}: nothing answers at {endpoint.authority} within {bound:g} s"
            found[farm.name, member] = Finding(check, "problem", told, _reach(config, member))
        except (GarlicFarmError, OSError) as error:
            found[farm.name, member] = Finding(check, "problem", f"{who}: {error}", _reach(config, member))

    async with trio.open_nursery() as nursery:
        for farm in config.farm:
            for member, text in endpoints.get(farm.name, {}).items():
                nursery.start_soon(dial, farm, member, text)
    for key in sorted(found):
        yield found[key]


def _reach(config: Config, member: int) -> str:
    if member == config.node.id:
        return "start the node; else open its port, and compare the endpoint with [[listener]]"
    return "run garlicfarm doctor there; is it running, and does its firewall let this machine in?"


async def check_doors(config: Config) -> AsyncIterator[Finding]:
    """Whether something listens where the configuration says that the router does: proxy, SAM, I2CP."""
    tables: list[tuple[str, Mapping[str, Any]]] = []
    schemes = {Endpoint.parse(farm.endpoint, farm.default_transport).scheme for farm in config.farm}
    for scheme in sorted(schemes | config.transport.keys()):
        tables.append(
            (f"[transport.{scheme}]", _options("transport", scheme, config.transport.get(scheme, {})))
        )
    for farm in config.farm:
        if farm.router:
            tables.append(("[farm.router]", _options("router", farm.router["plugin"], farm.router)))
        for each in farm.publisher:
            tables.append(("[[farm.publisher]]", _options("publisher", each.plugin, each.options)))
    for name, table in tables:
        for option in _ADDRESSES:
            address = str(table.get(option) or "").removeprefix("http://").rstrip("/")
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                continue
            try:
                with trio.fail_after(CONNECT_S):
                    await trio.aclose_forcefully(await trio.open_tcp_stream(host.strip("[]"), int(port)))
                yield Finding("router's doors", "ok", f"{name}: {option} {address} takes connections")
            except (OSError, trio.TooSlowError) as error:
                told = f"{name}: nothing listens at {option} {address} ({error or 'no answer'})"
                yield Finding("router's doors", "problem", told, "start the router, and switch that door on")


def _options(kind: str, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A plugin's table with its defaults; {} where the plugin cannot be loaded, which its check tells."""
    group, base_class = CONTRACTS[kind]
    try:
        plugin = load_plugin(group, name, base_class)
    except PluginError:
        return {}
    return {option.name: option.default for option in options_of(plugin)} | dict(table)


async def check_routers(config: Config) -> AsyncIterator[Finding]:
    """What each farm's router says of itself."""
    for farm in config.farm:
        table = dict(farm.router)
        if not table:
            continue
        plugin = table.pop("plugin")
        try:
            with trio.fail_after(ASK_S):
                async with make_router(plugin, table, config.base_dir) as router:
                    status = await router.get_local_router_status()
        except NotSupported as error:
            yield Finding("router", "note", f"{farm.name}: {plugin}: {error}")
        except (GarlicFarmError, OSError, trio.TooSlowError) as error:
            told = f"{farm.name}: {plugin} does not answer: {error or 'too slow'}"
            yield Finding("router", "problem", told, "garlicfarm router show")
        else:
            uptime = "" if status.uptime is None else f", up for {status.uptime / 3_600_000:.1f} h"
            yield Finding("router", "ok", f"{farm.name}: {plugin} answers{uptime}")


async def ask_node(config: Config) -> tuple[dict[str, dict[str, Any]], str, list[Finding]]:
    """The statuses of the running node, by farm; its metrics, "" if it does not answer; what it all tells."""
    statuses: dict[str, dict[str, Any]] = {}
    metrics, findings = "", list[Finding]()
    todo = "garlicfarm node start; under systemd: systemctl status garlicfarm"
    try:
        with trio.fail_after(ASK_S):
            async with client_of(local_node(config)) as client:
                for row in await client.farms():
                    statuses[str(row["name"])] = await client.status(str(row["name"]))
                metrics = await client.metrics()
    except (GarlicFarmError, OSError) as error:
        findings.append(Finding("node", "problem", f"it does not answer: {error}", todo))
    except trio.TooSlowError:
        findings.append(Finding("node", "problem", f"it does not answer within {ASK_S:g} s", todo))
    for name, status in statuses.items():
        findings += _of_status(name, status)
    return statuses, metrics, findings


def _of_status(farm: str, status: Mapping[str, Any]) -> Iterator[Finding]:
    verdict = judge(status)
    whole = f"{farm}: {verdict}, leader {status['leader'] or 'none'}, this node is {status['role']}"
    yield Finding("farm", "ok" if verdict == "healthy" else "problem", whole, "garlicfarm status")
    for problem in status.get("problems") or ():
        yield Finding("farm", "problem", f"{farm}: {problem}")
    for row in status["members"]:
        if row["error"]:
            text = f"{farm}: member {row['id']}: {row['error']}"
            yield Finding("farm", "problem", text, "garlicfarm doctor, on its machine")
    programs = {program_word(row) for row in status["members"] if row["version"]}
    if len(programs) > 1:
        told = f"{farm}: members run {' and '.join(sorted(map(str, programs)))}"
        yield Finding("versions", "note", told, "garlicfarm node upgrade-check")
    elif programs:
        yield Finding("versions", "ok", f"{farm}: members run {programs.pop()}")
    if word := level_word(status):
        yield Finding("level", "note", f"{farm}: {word}")


def endpoints_of(config: Config, statuses: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, str]]:
    """The members' endpoints: from the running node, else those that its farm began with."""
    found: dict[str, dict[int, str]] = {}
    for farm in config.farm:
        if farm.name in statuses:
            found[farm.name] = {row["id"]: row["endpoint"] for row in statuses[farm.name]["members"]}
            continue
        with suppress(StorageError, ConfigError, PluginError):
            genesis = read_genesis(Path(config.node.data_dir) / "farms" / farm.name)
            if genesis.configuration is not None:
                found[farm.name] = {server.id: server.endpoint for server in genesis.configuration.servers}
    return found
