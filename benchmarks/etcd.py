"""A cluster of etcd on this machine, for `compare.py`: plaintext, fsync, data where the nodes' are.

The client puts values through the leader, over one connection: a small Go program (`etcd_client.go`) on
etcd's own client library, built from the sources of Debian's golang-etcd-server-dev. Without it, httpx puts
them through etcd's JSON gateway, over a connection for each entry that is outstanding; that costs the nodes
more.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import httpx
import msgspec
import trio

from benchmarks.bench_farm import cpu_s, percentile
from benchmarks.samples import Load, Sample
from garlicfarm.lab.processes import free_ports, terminate

GOPATH = "/usr/share/gocode"
CLIENT_SOURCE = Path(__file__).with_name("etcd_client.go")
READY_S = 60.0


def version() -> str | None:
    """None if etcd is not installed."""
    if shutil.which("etcd") is None:
        return None
    printed = subprocess.run(["etcd", "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"etcd Version: (\S+)", printed)[1]


def build_client(directory: Path) -> tuple[Path | None, str]:
    """The client, or None and in one sentence why."""
    if shutil.which("go") is None:
        return None, "go is not installed: as root, make bench-debs"
    environment = {**os.environ, "GO111MODULE": "off", "GOFLAGS": "", "GOPATH": GOPATH}
    command = ["go", "build", "-o", str(directory / "etcd_client"), str(CLIENT_SOURCE)]
    built = subprocess.run(command, env=environment, capture_output=True, text=True)
    if built.returncode != 0:
        reason = next(line.strip() for line in built.stderr.splitlines() if not line.startswith("#"))
        return None, f"its client cannot be built ({reason}): as root, make bench-debs"
    return directory / "etcd_client", ""


class EtcdNode:
    def __init__(self, name: str, directory: Path, client_port: int, peer_port: int) -> None:
        self.name = name
        self.directory = directory
        self.url = f"http://127.0.0.1:{client_port}"
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self.process: trio.Process | None = None

    async def start(self, nursery: trio.Nursery, cluster: str) -> None:
        command = ["etcd", "--name", self.name, "--data-dir", str(self.directory)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        command += ["--initial-cluster", cluster, "--initial-cluster-state", "new", "--logger", "zap"]
        with self.directory.with_suffix(".log").open("wb") as log:
            run = partial(trio.run_process, stdin=DEVNULL, stdout=log, stderr=STDOUT)
            self.process = await nursery.start(partial(run, command, deliver_cancel=terminate))

    async def is_leader(self, http: httpx.AsyncClient) -> bool | None:
        """None while it knows no leader."""
        try:
            status = (await http.post(f"{self.url}/v3/maintenance/status", json={})).json()
        except httpx.TransportError:
            return None
        leader = status.get("leader")
        return None if leader is None else leader == status["header"]["member_id"]


@asynccontextmanager
async def etcd_cluster(nodes: int) -> AsyncIterator[tuple[EtcdNode, list[int]]]:
    """The leader, and the pids of all."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        ports = iter(free_ports(2 * nodes))
        members = [
            EtcdNode(f"n{number}", Path(temporary, f"n{number}"), next(ports), next(ports))
            for number in range(1, nodes + 1)
        ]
        cluster = ",".join(f"{member.name}={member.peer_url}" for member in members)
        async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False) as http:
            for member in members:
                await member.start(nursery, cluster)
            with trio.fail_after(READY_S):
                while True:
                    found = [await member.is_leader(http) for member in members]
                    if found.count(True) == 1 and None not in found:
                        break
                    await trio.sleep(0.1)
            yield members[found.index(True)], [member.process.pid for member in members]
            nursery.cancel_scope.cancel()


async def samples(nodes: int, loads: Sequence[Load], client: Path | None) -> list[Sample]:
    """One cluster, under one load after the other. ``client``: the compiled one; None: the JSON gateway."""
    found = []
    async with etcd_cluster(nodes) as (leader, pids):
        for load in loads:
            before = cpu_s(pids)
            sample = await (compiled(client, leader.url, load) if client else gateway(leader.url, load))
            found.append(msgspec.structs.replace(sample, nodes_cpu_s=cpu_s(pids) - before))
    return found


async def compiled(client: Path, url: str, load: Load) -> Sample:
    arguments = [url, str(load.outstanding), str(load.size_bytes), str(load.seconds)]
    done = await trio.run_process([str(client), *arguments], capture_stdout=True)
    return msgspec.json.decode(done.stdout, type=Sample)


async def gateway(url: str, load: Load) -> Sample:
    latencies: list[float] = []
    value = base64.b64encode(os.urandom(load.size_bytes)).decode()

    async def one(number: int, until: float) -> None:
        put = {"key": base64.b64encode(str(number).encode()).decode(), "value": value}
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=READY_S) as http:
            while (begun := trio.current_time()) < until:
                (await http.post(f"{url}/v3/kv/put", json=put)).raise_for_status()
                latencies.append(trio.current_time() - begun)

    context = ssl.create_default_context()  # unused, but making it takes longer than the request
    client_s, begun = time.process_time(), trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(load.outstanding):
            nursery.start_soon(one, number, begun + load.seconds)
    took, client_s = trio.current_time() - begun, time.process_time() - client_s
    return Sample(
        commits=len(latencies),
        seconds=took,
        p50_ms=percentile(latencies, 0.5) * 1000,
        p99_ms=percentile(latencies, 0.99) * 1000,
        client_cpu_s=client_s,
    )
