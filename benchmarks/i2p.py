"""The cost of a farm in round trips on slow I2P paths: real routers on links with a set delay.

Three nodes with the preset ``i2p``, each on a host of its own beside an i2pd router (0 hops). Ratios and
limits apply to one run: the round trip of the tunnels is measured beside each figure.

* ``handshake``: opening a stream to a member, and the handshake with a cached challenge; with and without
  500 ms more each way between the hosts. At most three round trips and 50 ms.
* ``commit``: the median with one entry outstanding, with these 500 ms, for a client beside the leader. At
  most 1.2 round trips and one fsync.
* ``pipeline``: commits per second with one entry outstanding, divided by those with 64: at most 1/40.

Prints a line of JSON each. Exit 1: a limit is exceeded; 0: none is, or this machine cannot run it, and a
line says why. Run by `make bench-i2p`; the nodes write in BENCH_DIR.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks.bench_farm import PASSWORD, USER, VALUE_BYTES, report, status
from benchmarks.commits import drive, fdatasync_ms
from benchmarks.samples import Load
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import ConfigError, GarlicFarmError, TransportError
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.lab.i2pd import (
    I2pdRouter,
    check_programs,
    i2pd_network,
    reexec_in_private_network,
)
from garlicfarm.lab.i2pd_files import RouterPlan, i2pd_program
from garlicfarm.lab.line_server import startup_error
from garlicfarm.lab.processes import ProcessFarm, process_farm
from garlicfarm.lab.tun_network import LinkFaults, network, why_unavailable
from garlicfarm.net.handshake import DialCredentials, initiate
from garlicfarm.plugins import make_transport
from garlicfarm.setup.i2p_tunnel import Tunnel, b32_address
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from garlicfarm.transport import Endpoint
from garlicfarm_transport_i2p import I2PConfig, I2PTransport

NODES = 3
PORT = 27150
ECHO_PORT = 9000  # the target of the tunnel ``leaf`` of `i2pd_network`
ECHO_BYTES = 100
DELAY_S = 0.5
HURRY_EACH_S = 0.5
HANDSHAKES = 21
HANDSHAKE_ROUND_TRIPS, HANDSHAKE_MORE_MS = 3, 50
COMMIT_ROUND_TRIPS = 1.2
OUTSTANDING = 64
SPEED_UP = 40
SECONDS = 30.0
DEADLINE_S = 900.0
TRY_S = 10.0
LIBC = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD = 438
SANDBOX = ("unshare", "--map-root-user", "--net")


class Beside(I2PTransport):
    """Dials the listener on this host, like the router's tunnel."""

    async def open_stream(self, endpoint: Endpoint) -> trio.abc.Stream:
        return await trio.open_tcp_stream("127.0.0.1", endpoint.port)


# ---------------------------------------------------------------------- on the hosts


async def serve_echo(address: str) -> None:
    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    await trio.serve_tcp(echo, ECHO_PORT, host=address)


async def echoed(stream: trio.abc.Stream) -> float:
    """The round-trip time of some bytes, in ms."""
    begun = trio.current_time()
    await stream.send_all(bytes(ECHO_BYTES))
    left = ECHO_BYTES
    while left:
        data = await stream.receive_some(left)
        if not data:
            raise TransportError("the echo has ended", "see the routers' logs")
        left -= len(data)
    return (trio.current_time() - begun) * 1000


async def dial(proxy: str, echo_host: str, host: str, farm_id: str) -> dict[str, float]:
    """Alternating echoes on one stream and handshakes on new streams: medians in ms."""
    transport = make_transport("i2p", {"proxy": proxy}, Path())
    cache = ChallengeCache()
    opened = 0

    async def open_stream(to: str, port: int) -> trio.abc.Stream:
        nonlocal opened
        opened += 1
        return await transport.open_stream(Endpoint("i2p", to, port))

    async def handshake() -> float:
        begun = trio.current_time()
        credentials = DialCredentials(FarmPlan().name, USER, PASSWORD, cache, bytes.fromhex(farm_id))
        established = await initiate(partial(open_stream, host, PORT), credentials, host=f"{host}:{PORT}")
        took_ms = (trio.current_time() - begun) * 1000
        await established.stream.aclose()
        return took_ms

    while True:  # the first stream to a router that has just started may lead nowhere
        try:
            with trio.fail_after(TRY_S):
                stream = await open_stream(echo_host, ECHO_PORT)
                await echoed(stream)
                await handshake()  # which learns the challenge
            break
        except (TransportError, trio.TooSlowError, trio.BrokenResourceError):
            await trio.sleep(0.5)
    opened = 0
    echoes, handshakes = [], []
    for _ in range(HANDSHAKES):
        echoes.append(await echoed(stream))
        handshakes.append(await handshake())
    assert opened == HANDSHAKES, "a challenge that was cached did not do"
    return {"round_trip_ms": statistics.median(echoes), "handshake_ms": statistics.median(handshakes)}


async def post(outstanding: str, seconds: str, member: str, farm_id: str) -> dict[str, float]:
    """Post to the member on this host."""
    endpoints = {int(member): f"i2p://127.0.0.1:{PORT}"}
    transport = Beside(I2PConfig(), Path())
    load = Load(int(outstanding), VALUE_BYTES, float(seconds))
    sample = await drive(load, [], endpoints, bytes.fromhex(farm_id), transport)
    return msgspec.to_builtins(sample)


# ---------------------------------------------------------------------- the driver


async def on_host(router: I2pdRouter, *arguments: str) -> dict[str, float]:
    """Run a function of this file on a host."""
    command = ["nsenter", f"--net={router.place}", sys.executable, "-m", __spec__.name, *arguments]
    done = await trio.run_process(command, capture_stdout=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


async def leader_of(farm: ProcessFarm) -> int:
    """The leader, once all nodes name it."""
    while True:
        named: set[Any] = set()
        for node in farm.nodes.values():
            try:
                named.add((await status(node, farm.name))["leader"])
            except GarlicFarmError:
                named.add(None)
        if len(named) == 1 and None not in named:
            return int(named.pop())
        await trio.sleep(0.5)


async def hurry(routers: Collection[I2pdRouter]) -> None:
    """Keep Nagle's algorithm off in the routers' TCP; i2pd has no option for it. It sometimes delays a
    message until the previous one is acknowledged, and i2pd's streams treat that as loss."""
    while True:
        for router in routers:
            without_nagle(router.pid)
        await trio.sleep(HURRY_EACH_S)


def without_nagle(pid: int) -> None:
    """Set TCP_NODELAY on all sockets of another process."""
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            descriptor = LIBC.syscall(PIDFD_GETFD, pidfd, int(name), 0)
            if descriptor < 0:
                if ctypes.get_errno() == errno.EBADF:  # closed meanwhile
                    continue
                raise OSError(ctypes.get_errno(), f"cannot reach the sockets of process {pid}")
            try:
                with socket.socket(fileno=descriptor) as shared:
                    if shared.proto == socket.IPPROTO_TCP:
                        shared.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                if error.errno != errno.ENOTSOCK:
                    raise
                os.close(descriptor)
    finally:
        os.close(pidfd)


def plan_of(router: I2pdRouter) -> MemberPlan:
    return MemberPlan(
        endpoint=f"i2p://{router.address_of_tunnel}:{PORT}",
        listen=f"i2p://127.0.0.1:{PORT}",
        admin_url=f"https://{router.address}:27151",
        proxy=router.proxy,
    )


async def measure(directory: Path) -> bool:
    """Measure all figures; whether they are within their limits."""
    tunnel = Tunnel("garlicfarm-farm", "127.0.0.1", PORT, PORT, "garlicfarm-farm.dat")
    plans = [RouterPlan(tunnels=(tunnel,), has_proxy=True)] * NODES
    with trio.fail_after(DEADLINE_S):
        async with (
            network(NODES) as wires,
            i2pd_network(directory, plans, wires, ssu2=False) as started,
        ):
            routers = dict(enumerate(started, 1))
            places = {number: router.place for number, router in routers.items()}
            members = {number: plan_of(router) for number, router in routers.items()}
            plan = FarmPlan(application="log", preset="i2p")
            async with (
                trio.open_nursery() as nursery,
                process_farm(directory / "farm", members, plan, places=places, start=False) as farm,
            ):
                nursery.start_soon(hurry, started)
                for node in farm.nodes.values():
                    router = routers[node.id]
                    UserStore(node.directory / "data" / "users").add(USER, "writer", PASSWORD)
                    await farm.start(node.id)
                    nursery.start_soon(on_host, router, "echo", router.address)
                kept = report_handshake(0.0, await dialled(farm, routers, await leader_of(farm)))
                await wires.set_faults(LinkFaults(delay_s=DELAY_S))
                # i2pd estimates the next round trip by the mean of all round trips of a stream.
                for node_id in farm.nodes:
                    await farm.stop(node_id)
                for node_id in farm.nodes:
                    await farm.start(node_id)
                leader = await leader_of(farm)
                found = await dialled(farm, routers, leader)
                kept &= report_handshake(DELAY_S, found)
                posting = (str(SECONDS), str(leader), farm.farm_id.hex())
                one = await on_host(routers[leader], "post", "1", *posting)
                many = await on_host(routers[leader], "post", str(OUTSTANDING), *posting)
                sync_ms = fdatasync_ms(farm.nodes[leader].directory)
                kept &= report_commits(found["round_trip_ms"], sync_ms, one, many)
                nursery.cancel_scope.cancel()
    return kept


async def dialled(farm: ProcessFarm, routers: Mapping[int, I2pdRouter], leader: int) -> dict[str, float]:
    """The result of `dial` between the leader and another member."""
    other = routers[leader % NODES + 1]
    echo_host = b32_address(other.data_dir / "leaf.dat")
    way = (routers[leader].proxy, echo_host, other.address_of_tunnel)
    return await on_host(routers[leader], "dial", *way, farm.farm_id.hex())


def report_handshake(delay_s: float, found: dict[str, float]) -> bool:
    round_trip_ms = found["round_trip_ms"]
    return report(
        "handshake",
        found["handshake_ms"],
        round(HANDSHAKE_ROUND_TRIPS * round_trip_ms + HANDSHAKE_MORE_MS, 3),
        delay_ms=delay_s * 1000,
        round_trip_ms=round(round_trip_ms, 2),
        round_trips=round(found["handshake_ms"] / round_trip_ms, 2),
    )


def report_commits(
    round_trip_ms: float, sync_ms: float, one: dict[str, float], many: dict[str, float]
) -> bool:
    per_s = [found["commits"] / found["seconds"] for found in (one, many)]
    latency = report(
        "commit",
        one["p50_ms"],
        round(COMMIT_ROUND_TRIPS * round_trip_ms + sync_ms, 3),
        round_trip_ms=round(round_trip_ms, 2),
        fdatasync_ms=round(sync_ms, 2),
        p99_ms=round(one["p99_ms"], 1),
        commits=one["commits"],
    )
    pipelined = report(
        "pipeline",
        per_s[0] / per_s[1],
        1 / SPEED_UP,
        outstanding=OUTSTANDING,
        commits_per_s=[round(each, 2) for each in per_s],
        times=round(per_s[1] / per_s[0], 1),
        p50_ms=round(many["p50_ms"], 1),
        p99_ms=round(many["p99_ms"], 1),
    )
    return latency and pipelined


def why_not(*probe: str) -> str | None:
    """The reason why this machine cannot run what needs routers, links between them, and a network of its own
    in which ``probe`` succeeds; or None."""
    try:
        check_programs()
    except ConfigError as error:
        return str(error)
    return why_unavailable(SANDBOX) or startup_error([*SANDBOX, *(probe or ("true",))])


def print_i2pd_version() -> None:
    told = subprocess.run([i2pd_program(), "--version"], capture_output=True, text=True, check=True).stdout
    print(told.partition("\n")[0], flush=True)


def main() -> int:
    match sys.argv[1:]:
        case ["echo", address]:
            trio.run(serve_echo, address)
        case ["dial", *arguments]:
            print(json.dumps(trio.run(partial(dial, *arguments))))
        case ["post", *arguments]:
            print(json.dumps(trio.run(partial(post, *arguments))))
        case ["inside"]:
            with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
                return 0 if trio.run(measure, Path(directory)) else 1
        case ["nagle"]:
            without_nagle(os.getpid())
        case _:
            if reason := why_not(sys.executable, "-m", __spec__.name, "nagle"):
                print(f"bench-i2p: skipped: {reason}")
            else:
                reexec_in_private_network([sys.executable, "-m", __spec__.name, "inside"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
