"""The cost of a farm of five with a preset (``--preset``, by default `i2p`) for each node: traffic, memory,
CPU, disk.

Five processes in real time, with the preset's timing, interval and R, and two leaves each. Once all members
are connected and have posted, it measures for ``--minutes`` without any requests to the nodes:

* ``cost_preset``: the interval, R, and how long a lease lasts, after which a dead publisher is replaced.
* ``cost_traffic``, leader and followers: bytes of the connections to other members, by the kernel's counters
  (`ss -ti`), without handshakes; ``with_headers`` adds 52 bytes for each TCP segment, the headers of IPv4
  and TCP. `messages` are requests by the nodes' counters.
* ``cost_process``: memory at the end (PSS divides shared pages among the five, RSS does not), CPU, and bytes
  written to the disk.
* ``cost_status``: the size of the statuses, and of their parts.
* ``cost_disk_cap``: the final size of the data directory. One node is filled with notes of the sizes of these
  statuses, with the default retention, until its log has been shortened several times; not with
  ``--traffic``.

By default over `ssl` on loopback with simulated routers, which report figures of one of the two leaves. With
``--i2p`` over i2pd routers on a private network, with tunnels without hops and figures from I2PControl: then
``cost_routers`` is the traffic of each router by its own counters, without and with the farm, and
``loopback`` all traffic of that network by the kernel's counters, including nodes and headers. Values named
``per_hour`` are scaled from the measured time; values named ``extrapolated`` are calculated.

Prints JSON lines; exit code 1 if there was an election. Run by `make bench-cost`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from shutil import which
from statistics import fmean
from typing import NamedTuple

import trio
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.bench_farm import bench_farm, command_line, cpu_s, note, resident_mb, retrying_client, status
from benchmarks.bench_sockets import Connection, Meter, Traffic, connections
from garlicfarm.config import load
from garlicfarm.config.model import PRESET_INTERVALS_MS, PRESET_LEASES_MS, RetentionSection
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import GarlicFarmError
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network, in_private_network, reexec_in_private_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.processes import NodeProcess, ProcessFarm, free_ports, process_farm
from garlicfarm.setup.i2p_tunnel import Tunnel
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from garlicfarm_plugin_i2pcontrol.client import I2PControlClient

MEMBERS = 5
READY_S = 900.0
SETTLE_S = 60.0
IDLE_S = 180.0
SAMPLE_S = 5.0
HEADER_BYTES = 52
HOUR_S = 3600.0
MONTH_HOURS = 30 * 24
SHORTENED = 4
BATCH = 100
ALL_APPLIED_S = 60.0


def tell(figure: str, **values: object) -> None:
    print(json.dumps({"figure": figure, **values, "load": round(os.getloadavg()[0], 2)}), flush=True)


# ---------------------------------------------------------------------- the farm


def simulated_member(node_id: int, port: int) -> MemberPlan:
    return MemberPlan(
        endpoint=f"ssl://127.0.0.1:{port}",
        admin_url="https://127.0.0.1:0",
        router={"plugin": "simulated", "seed": node_id},
        leaves=tuple(_base64(simulated_destination(seed)) for seed in (node_id, node_id + MEMBERS)),
    )


def member_behind(router: I2pdRouter, node_id: int, port: int) -> MemberPlan:
    return MemberPlan(
        endpoint=f"i2p://{router.address_of_tunnel}:27150",
        listen=f"i2p://127.0.0.1:{port}",
        admin_url="https://127.0.0.1:0",
        proxy=router.proxy,
        router={
            "plugin": "i2pcontrol",
            "url": router.url,
            "password_file": str(router.password_file),
            "pin": router.pin,
        },
        leaves=(_base64(router.leaf), _base64(simulated_destination(node_id))),
    )


def _base64(destination: bytes) -> str:
    return b64encode(destination, altchars=b"-~").decode()


class Measured:
    """The farm, its routers if any, and the ports of its members' connections."""

    def __init__(
        self, farm: ProcessFarm, routers: Sequence[I2pdRouter], listens: Mapping[int, int], dials: set[int]
    ) -> None:
        self.farm = farm
        self.routers = routers
        self._listens = listens
        self._dials = dials

    def connections(self) -> dict[Connection, Traffic]:
        """The connections of the nodes to each other, or to their routers' tunnels."""
        ports = {node.pid: self._listens[node.id] for node in self.farm.nodes.values()}
        return {
            each: traffic
            for each, traffic in connections().items()
            if each.pid in ports and (each.local_port == ports[each.pid] or each.peer_port in self._dials)
        }


def behind_tunnel(port: int) -> RouterPlan:
    tunnel = Tunnel("farm", "127.0.0.1", port, 27150, "garlicfarm-farm.dat")
    return RouterPlan(tunnels=(tunnel,), has_proxy=True)


@asynccontextmanager
async def measured_farm(directory: Path, preset: str, *, over_i2p: bool) -> AsyncIterator[Measured]:
    """The farm, running. Prints the routers' traffic before the farm starts."""
    master = directory / "master.key"
    plan = FarmPlan(
        preset=preset,
        master=encode(create_keys(master).destination),
        master_key_file=master,
        interval_ms=PRESET_INTERVALS_MS[preset],
        lease_ms=PRESET_LEASES_MS[preset],
    )
    listens = dict(enumerate(free_ports(MEMBERS), 1))
    routers: Sequence[I2pdRouter]
    async with AsyncExitStack() as stack:
        if over_i2p:
            plans = [behind_tunnel(port) for port in listens.values()]
            routers = await stack.enter_async_context(i2pd_network(directory / "routers", plans))
            members = {i: member_behind(routers[i - 1], i, port) for i, port in listens.items()}
            dials = {int(router.proxy.rpartition(":")[2]) for router in routers}
            await trio.sleep(SETTLE_S)
            idle = await RouterBytes.read(routers)
            await trio.sleep(IDLE_S)
            tell("cost_routers", farm=False, **await idle.per_hour(routers, IDLE_S))
        else:
            routers = ()
            members = {i: simulated_member(i, port) for i, port in listens.items()}
            dials = set(listens.values())
        farm = await stack.enter_async_context(process_farm(directory / "farm", members, plan))
        yield Measured(farm, routers, listens, dials)


async def led(farm: ProcessFarm) -> tuple[int, int]:
    """(leader, term), once every node names the same leader and has a status of every member."""
    while True:
        try:
            told = [await status(node, farm.name) for node in farm.nodes.values()]
        except GarlicFarmError:
            told = []
        agreed = {(each["leader"], each["term"]) for each in told}
        posted = all(member["age_s"] is not None for each in told for member in each["members"])
        if len(agreed) == 1 and posted and None not in (found := agreed.pop()):
            return found
        await trio.sleep(1)


# ---------------------------------------------------------------------- the system's counters


async def requests_sent(node: NodeProcess) -> Counter[str]:
    """Raft's requests that the node has sent, by type."""
    async with node.client() as client:
        text = await client.metrics()
    return Counter(
        {
            sample.labels["type"]: round(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "garlicfarm_raft_messages_total" and sample.labels["direction"] == "out"
        }
    )


def disk_bytes(directory: Path) -> int:
    """The disk usage of the files below."""
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def written_bytes(pid: int) -> int:
    return _field(f"/proc/{pid}/io", "write_bytes")


def memory_mb(pid: int) -> tuple[float, float]:
    """(PSS, RSS)."""
    path = f"/proc/{pid}/smaps_rollup"
    return _field(path, "Pss") / 1024, _field(path, "Rss") / 1024


def _field(path: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", Path(path).read_text(), re.MULTILINE)
    assert found is not None, f"no {name} in {path}"
    return int(found[1])


class RouterBytes(NamedTuple):
    """Since the start: bytes sent and received by each router, and bytes of the network."""

    sent: list[int]
    received: list[int]
    loopback: list[int]

    @classmethod
    async def read(cls, routers: Sequence[I2pdRouter]) -> RouterBytes:
        names = ("i2p.router.net.total.sent.bytes", "i2p.router.net.total.received.bytes")
        totals = []
        for router in routers:
            password = router.password_file.read_text().strip()
            client = I2PControlClient(router.url, password, router.pin)
            token = await client._authenticate()
            answer = await client._call("RouterInfo", dict.fromkeys(names) | {"Token": token})
            assert answer.result is not None, answer
            totals.append([int(float(answer.result[name])) for name in names])
        sent, received = ([each[way] for each in totals] for way in (0, 1))
        return cls(sent, received, [_field("/proc/net/dev", " *lo")])

    async def per_hour(self, routers: Sequence[I2pdRouter], seconds: float) -> dict[str, object]:
        """The increase since then, over this many seconds."""
        now = await self.read(routers)
        return {
            f"{name}_per_hour": [
                round((late - early) * HOUR_S / seconds) for early, late in zip(before, after, strict=True)
            ]
            for name, before, after in zip(self._fields, self, now, strict=True)
        }


def traffic_per_hour(traffic: Sequence[Traffic], seconds: float) -> dict[str, int]:
    """The figures of one node, from its connections."""
    total = Traffic()
    for each in traffic:
        total = total.plus(each)
    hours = seconds / HOUR_S
    return {
        "sent": round(total.sent / hours),
        "received": round(total.received / hours),
        "sent_with_headers": round((total.sent + HEADER_BYTES * total.segments_out) / hours),
        "received_with_headers": round((total.received + HEADER_BYTES * total.segments_in) / hours),
    }


# ---------------------------------------------------------------------- one stretch of time


async def measure(
    directory: Path, seconds: float, preset: str, *, over_i2p: bool
) -> tuple[bool, float, list[int]]:
    """Whether the leader stayed; entries per hour; the sizes of the statuses."""
    with trio.fail_after(READY_S + seconds):
        async with measured_farm(directory, preset, over_i2p=over_i2p) as measured:
            leader, *_ = await led(measured.farm)
            async with measured.farm.nodes[leader].client() as client:
                policy = await client.policy(measured.farm.name)
            interval_s, lease_s = policy["interval_ms"] / 1000, policy["lease_ms"] / 1000
            tell("cost_preset", preset=preset, interval_s=interval_s, R=policy["R"], lease_s=lease_s)
            await trio.sleep(SETTLE_S)
            return await measure_running(measured, seconds)


async def measure_running(measured: Measured, seconds: float) -> tuple[bool, float, list[int]]:
    farm = measured.farm
    nodes = farm.nodes
    pids = {node.id: node.pid for node in nodes.values()}
    leader = await led(farm)
    requests = {node.id: await requests_sent(node) for node in nodes.values()}
    first = (await status(nodes[leader[0]], farm.name))["commit"]
    routers = await RouterBytes.read(measured.routers) if measured.routers else None
    disk = {node.id: disk_bytes(node.directory / "data") for node in nodes.values()}
    cpu = {i: cpu_s([pid]) for i, pid in pids.items()}
    written = {i: written_bytes(pid) for i, pid in pids.items()}
    meter, begun = Meter(), trio.current_time()
    meter.read(measured.connections())
    while trio.current_time() < begun + seconds:
        await trio.sleep(min(SAMPLE_S, begun + seconds - trio.current_time()))
        meter.read(measured.connections())
    took = trio.current_time() - begun

    hours = took / HOUR_S
    memory = {i: memory_mb(pid) for i, pid in pids.items()}
    cpu = {i: (cpu_s([pid]) - cpu[i]) / hours for i, pid in pids.items()}
    written = {i: round((written_bytes(pid) - written[i]) / hours) for i, pid in pids.items()}
    disk = {i: round((disk_bytes(node.directory / "data") - disk[i]) / hours) for i, node in nodes.items()}
    if routers is not None:
        tell("cost_routers", farm=True, leader=leader[0], **await routers.per_hour(measured.routers, took))
    requests = {node.id: await requests_sent(node) - requests[node.id] for node in nodes.values()}
    stayed = await led(farm) == leader
    sizes = await statuses(nodes[leader[0]], farm.name, first)
    entries_per_hour = len(sizes) / hours

    for node_id, pid in sorted(pids.items(), key=lambda item: item[0] != leader[0]):
        own = [traffic for each, traffic in meter.total.items() if each.pid == pid]
        tell(
            "cost_traffic",
            role="leader" if node_id == leader[0] else "follower",
            node=node_id,
            seconds=round(took),
            bytes_per_hour=traffic_per_hour(own, took),
            requests_per_hour={kind: round(n / hours) for kind, n in requests[node_id].items() if n},
            connections=len(own),
        )
    for node_id in pids:
        pss, rss = memory[node_id]
        tell(
            "cost_process",
            role="leader" if node_id == leader[0] else "follower",
            node=node_id,
            pss_mb=round(pss, 1),
            rss_mb=round(rss, 1),
            cpu_s_per_hour=round(cpu[node_id], 1),
            written_bytes_per_hour=written[node_id],
            data_directory_grows_per_hour=disk[node_id],
        )
    tell(
        "cost_entries",
        entries_per_hour=round(entries_per_hour),
        connections_ended=meter.ended,
        same_leader=stayed,
        date=time.strftime("%Y-%m-%d"),
    )
    return stayed, entries_per_hour, sizes


async def statuses(node: NodeProcess, farm: str, after: int) -> list[int]:
    """The sizes of the entries since then; prints their parts."""
    async with node.client() as client:
        entries = [entry.value async for entry in client.log(farm, after)]
    parts: Counter[str] = Counter()
    for entry in entries:
        for key, value in json.loads(entry).items():
            parts[key] += len(json.dumps({key: value}, separators=(",", ":"))) - 1
    mean = {key: round(size / len(entries)) for key, size in parts.most_common(5)}
    sizes = [len(entry) for entry in entries]
    tell("cost_status", bytes=round(fmean(sizes)), most=max(sizes), of_which=mean)
    return sizes


# ---------------------------------------------------------------------- the size on disk


async def fill(entries_per_hour: float, sizes: Sequence[int]) -> None:
    async with bench_farm(FarmPlan(), 1) as farm:
        (node,) = farm.nodes.values()
        keep = load(node.directory / "garlicfarm.toml", {}).farm[0].retention
        total = keep.keep_entries + (SHORTENED + 1) * keep.snapshot_every_entries
        seen = [(0, 1, disk_bytes(node.directory / "data"))]
        async with retrying_client(farm.endpoints, farm.farm_id) as client:
            for first in range(0, total, BATCH):
                numbers = range(first, min(first + BATCH, total))
                await client.post([note(number, sizes[number % len(sizes)]) for number in numbers])
                if (first + BATCH) % 1000 == 0:
                    told = await status(node, farm.name)
                    held = told["last_index"] - told["first_index"]
                    seen.append((told["first_index"], held, disk_bytes(node.directory / "data")))
        tell_cap(entries_per_hour, fmean(sizes), keep, seen, resident_mb(node.pid))


def tell_cap(
    entries_per_hour: float,
    entry_bytes: float,
    keep: RetentionSection,
    seen: Sequence[tuple[int, int, int]],
    memory: tuple[float, float],
) -> None:
    """``seen``: (first index, entries held, size of the data directory), as the log grew."""
    grown = [each for each in seen if each[0] == 1]
    per_entry = (grown[-1][2] - grown[0][2]) / (grown[-1][1] - grown[0][1])
    steady = [size for first, _, size in seen if first > 1]
    hours = (keep.keep_entries + keep.snapshot_every_entries) / entries_per_hour
    grows = entries_per_hour * per_entry
    tell(
        "cost_disk_cap",
        keep_entries=keep.keep_entries,
        keep_bytes=keep.keep_bytes,
        snapshot_every_entries=keep.snapshot_every_entries,
        times_shortened=len({first for first, _, _ in seen}) - 1,
        entry_bytes=round(entry_bytes),
        disk_bytes_per_entry=round(per_entry),
        steady_bytes=[min(steady), max(steady)],
        rss_mb=round(memory[0], 1),
        peak_rss_mb=round(memory[1], 1),
        extrapolated_bytes_per_hour=round(grows),
        extrapolated_days_until_steady=round(hours / 24, 1),
        extrapolated_bytes_after_a_month=round(min(grows * MONTH_HOURS, max(steady))),
    )


async def main_async(seconds: float, preset: str, *, over_i2p: bool, traffic_only: bool) -> bool:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        stayed, entries_per_hour, sizes = await measure(Path(directory), seconds, preset, over_i2p=over_i2p)
    if not traffic_only:
        await fill(entries_per_hour, sizes)
    return stayed


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--preset", choices=sorted(PRESET_INTERVALS_MS), default="i2p")
    parser.add_argument("--traffic", action="store_true", help="do not measure the size of a full log")
    parser.add_argument("--i2p", action="store_true", help="over real i2pd routers on a private network")
    options = parser.parse_args()
    if which("ss") is None:
        parser.error("ss not found: apt install iproute2")
    if options.i2p and not in_private_network():
        reexec_in_private_network([sys.executable, "-m", __spec__.name, *sys.argv[1:]])
    seconds = options.minutes * 60
    stayed = trio.run(
        lambda: main_async(seconds, options.preset, over_i2p=options.i2p, traffic_only=options.traffic)
    )
    return 0 if stayed else 1


if __name__ == "__main__":
    sys.exit(main())
