"""A network of hosts in namespaces of their own, whose links fail on command.

Each host is a network namespace with a tun device for each of its links; link 0 leads to link 0 of every
other host, and so on. This process holds the other ends and carries, delays or drops every IP packet between
them, so it needs neither a packet filter nor a traffic shaper of the kernel. Host 0 is the namespace that the
process was started in; its links never fail.

::

    python -m garlicfarm.lab.tun_network HOSTS LINKS    in a user or root namespace; on stdin, a line each:

    place ID     the file of the host's namespace, for setns(2)
    {…}          `LinkFaults` as JSON, from now on; the answer is how many packets were lost before

It ends when stdin closes, and the namespaces end with the last process in them.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import msgspec

from garlicfarm.lab.line_server import LineServer, line_server, startup_error

_COMMAND = (sys.executable, "-m", "garlicfarm.lab.tun_network")
_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_SIOCSIFFLAGS, _UP = 0x8914, 1
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001
_PACKET_BYTES = 2048
_BURST = 64  # packets of one host before the next one's turn


class LinkFaults(msgspec.Struct):
    """Faults of the links between hosts, except host 0. No packet passes between the pairs (from, to) in
    ``cut``, nor at the links (host, link) in ``down``. Others are delayed by ``delay_s`` and up to
    ``jitter_s`` more, which reorders them; they are lost and duplicated with the probabilities ``loss`` and
    ``double``."""

    cut: list[tuple[int, int]] = []
    down: list[tuple[int, int]] = []
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    double: float = 0.0


def address(host: int, link: int = 0) -> str:
    """The IPv4 address of a host, 0 … 253, at one of its links, 0 … 255: of the range for benchmarks (RFC
    2544), as in `i2pd_network`."""
    return f"198.18.{link}.{host or 254}"


def listen_at(place: str) -> socket.socket:
    """A socket of this process that listens at a free port of the loopback of another namespace."""

    def listen() -> socket.socket:
        with open(place) as namespace:
            if _libc.setns(namespace.fileno(), _NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {place}")
        return socket.create_server(("127.0.0.1", 0))

    with ThreadPoolExecutor(1) as thread:  # which alone is there, and ends
        return thread.submit(listen).result()


class Network:
    """The test's handle on the network; made by `network`."""

    def __init__(self, served: LineServer) -> None:
        self._served = served

    async def place(self, host: int) -> str:
        """The file of the host's network namespace."""
        return await self._served.ask(f"place {host}")

    async def set_faults(self, faults: LinkFaults) -> int:
        """Apply these faults from now on; returns how many packets were lost under the previous ones."""
        return int(await self._served.ask(msgspec.json.encode(faults).decode()))


@asynccontextmanager
async def network(hosts: int, links: int = 1) -> AsyncIterator[Network]:
    """Hosts 1 … ``hosts``, and this namespace as host 0, for as long as the block lasts, each with so many
    links."""
    async with line_server([*_COMMAND, str(hosts), str(links)]) as served:
        made = Network(served)
        await made.set_faults(LinkFaults())
        yield made


def why_unavailable(sandbox: Sequence[str] = ()) -> str | None:
    """Why this machine cannot run it in the namespaces that ``sandbox`` makes; None if it can."""
    return startup_error([*sandbox, *_COMMAND, "1", "1"])


def raise_loopback() -> None:
    """Bring up ``lo`` in this new network namespace."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _UP))


class _Wires:
    def __init__(self, hosts: int, links: int) -> None:
        self.faults = LinkFaults()
        self.lost = 0
        self._late: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self._ends: dict[int, tuple[int, int]] = {}  # tun device → host, link
        self._devices: dict[bytes, int] = {}  # address → tun device
        self._places: dict[int, int] = {}
        for host in range(hosts + 1):
            if host and _libc.unshare(_NEWNET):
                raise OSError(ctypes.get_errno(), "no network namespace of one's own")
            self._places[host] = os.open("/proc/self/ns/net", os.O_RDONLY)
            raise_loopback()
            for link in range(links):
                self._connect(host, link)

    def _connect(self, host: int, link: int) -> None:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        name, ip = f"link{link}", address(host, link)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
        for command in (f"addr add {ip}/24 dev {name}", f"link set {name} up"):
            subprocess.run(["ip", *command.split()], check=True)
        self._ends[device] = host, link
        self._devices[socket.inet_aton(ip)] = device

    def place(self, host: int) -> str:
        return f"/proc/{os.getpid()}/fd/{self._places[host]}"

    def serve(self) -> None:
        """Carry packets and execute the commands on stdin until it closes."""
        commands = bytearray()
        while True:
            wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            readable, _, _ = select.select([0, *self._ends], [], [], wait_s)
            if 0 in readable:
                data = os.read(0, 4096)
                if not data:
                    return
                commands += data
                while b"\n" in commands:
                    line, _, rest = bytes(commands).partition(b"\n")
                    commands = bytearray(rest)
                    print(self._execute(line.decode()), flush=True)
                continue
            for device in readable:
                self._carry(device)
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(self._late)
                _deliver(device, packet)

    def _execute(self, line: str) -> str | int:
        if line.startswith("place "):
            return self.place(int(line.partition(" ")[2]))
        self.faults = msgspec.json.decode(line, type=LinkFaults)
        lost, self.lost = self.lost, 0
        return lost

    def _carry(self, device: int) -> None:
        with suppress(BlockingIOError):
            for _ in range(_BURST):
                packet = os.read(device, _PACKET_BYTES)
                end = self._devices.get(packet[16:20])
                if packet[0] >> 4 != 4 or end is None:
                    continue  # IPv6 neighbour discovery
                if self._ends[device][0] and self._ends[end][0]:
                    self._disturb(device, end, packet)
                else:
                    _deliver(end, packet)

    def _disturb(self, device: int, end: int, packet: bytes) -> None:
        faults, source, target = self.faults, self._ends[device], self._ends[end]
        is_cut = (source[0], target[0]) in faults.cut or not {source, target}.isdisjoint(faults.down)
        if is_cut or random.random() < faults.loss:
            self.lost += 1
            return
        late_s = faults.delay_s + random.random() * faults.jitter_s
        for _ in range(2 if random.random() < faults.double else 1):
            if not late_s:
                _deliver(end, packet)
                continue
            self._count += 1
            heapq.heappush(self._late, (time.monotonic() + late_s, self._count, end, packet))


def _deliver(device: int, packet: bytes) -> None:
    with suppress(BlockingIOError):  # its queue is full: any network loses packets
        os.write(device, packet)


if __name__ == "__main__":
    _Wires(*map(int, sys.argv[1:])).serve()
