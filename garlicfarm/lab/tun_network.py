"""A network of hosts in namespaces of their own, whose wires fail as they are told.

Each host is a network namespace with one interface, a tun device; this process holds the other ends and
carries every IP packet from one to the other, or does not. So it needs no packet filter and no traffic
shaper of the kernel's. Host 0 is the namespace that the process was started in; its wires never fail.

::

    python -m garlicfarm.lab.tun_network HOSTS    in a user or root namespace; on stdin, a line each:

    place ID     the file of the host's namespace, for setns(2)
    {…}          `Weather` as JSON, from now on; answered by how many packets were lost since the last one

Ends, and the namespaces with it once nobody is left in them, when stdin does.
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
from contextlib import asynccontextmanager, suppress

import msgspec

from garlicfarm.lab.line_server import Attendant, attendant, why_it_fails

__all__ = ["Network", "Weather", "address", "network", "raise_loopback", "why_unavailable"]

_COMMAND = (sys.executable, "-m", "garlicfarm.lab.tun_network")
_NEWNET = 0x40000000
_SIOCSIFFLAGS, _UP = 0x8914, 1
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001
_PACKET_BYTES = 2048
_BURST = 64  # packets of one host before the next one's turn


class Weather(msgspec.Struct):
    """What befalls packets between hosts, 0 excepted: ``cut`` are pairs (from, to) that nothing passes;
    any other packet is late by ``delay_s`` and up to ``jitter_s`` more (so that they overtake each
    other), lost or doubled with these probabilities."""

    cut: list[tuple[int, int]] = []
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    double: float = 0.0


def address(host: int) -> str:
    """The IPv4 address of a host, 0 … 253: of the range for benchmarks (RFC 2544), as in `i2pd_network`."""
    return f"198.18.0.{host or 254}"


class Network:
    """The network from the side of the test: made by `network`."""

    def __init__(self, served: Attendant) -> None:
        self._served = served

    async def place(self, host: int) -> str:
        """The file of the host's network namespace."""
        return await self._served.ask(f"place {host}")

    async def set(self, weather: Weather) -> int:
        """From now on it is like that; how many packets were lost in the weather before."""
        return int(await self._served.ask(msgspec.json.encode(weather).decode()))


@asynccontextmanager
async def network(hosts: int) -> AsyncIterator[Network]:
    """Hosts 1 … ``hosts``, and this namespace as host 0, for as long as the block lasts."""
    async with attendant([*_COMMAND, str(hosts)]) as served:
        made = Network(served)
        await made.set(Weather())
        yield made


def why_unavailable(sandbox: Sequence[str] = ()) -> str | None:
    """Why this machine cannot have it in the namespaces that ``sandbox`` makes; None if it can."""
    return why_it_fails([*sandbox, *_COMMAND, "1"])


def raise_loopback() -> None:
    """Let this network namespace, which is new, have 127.0.0.0/8."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _UP))


class _Wires:
    def __init__(self, hosts: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.weather = Weather()
        self.lost = 0
        self._late: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self._hosts: dict[int, int] = {}  # tun device → host
        self._devices: dict[bytes, tuple[int, int]] = {}  # address → host, tun device
        self._places: dict[int, int] = {}
        for host in range(hosts + 1):
            if host and libc.unshare(_NEWNET):
                raise OSError(ctypes.get_errno(), "no network namespace of one's own")
            self._places[host] = os.open("/proc/self/ns/net", os.O_RDONLY)
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"farm", _TUN_WITHOUT_HEADER))
            raise_loopback()
            for command in (f"addr add {address(host)}/24 dev farm", "link set farm up"):
                subprocess.run(["ip", *command.split()], check=True)
            self._hosts[device] = host
            self._devices[bytes(map(int, address(host).split(".")))] = host, device

    def place(self, host: int) -> str:
        return f"/proc/{os.getpid()}/fd/{self._places[host]}"

    def serve(self) -> None:
        """Carry packets, and obey stdin until its end."""
        commands = bytearray()
        while True:
            wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            readable, _, _ = select.select([0, *self._hosts], [], [], wait_s)
            if 0 in readable:
                data = os.read(0, 4096)
                if not data:
                    return
                commands += data
                while b"\n" in commands:
                    line, _, rest = bytes(commands).partition(b"\n")
                    commands = bytearray(rest)
                    print(self._obey(line.decode()), flush=True)
                continue
            for device in readable:
                self._carry(device)
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(self._late)
                _deliver(device, packet)

    def _obey(self, line: str) -> str | int:
        if line.startswith("place "):
            return self.place(int(line.partition(" ")[2]))
        self.weather = msgspec.json.decode(line, type=Weather)
        lost, self.lost = self.lost, 0
        return lost

    def _carry(self, device: int) -> None:
        source = self._hosts[device]
        with suppress(BlockingIOError):
            for _ in range(_BURST):
                packet = os.read(device, _PACKET_BYTES)
                there = self._devices.get(packet[16:20])
                if packet[0] >> 4 != 4 or there is None:
                    continue  # IPv6 looks for its neighbours
                target, end = there
                if source and target:
                    self._weather(source, target, end, packet)
                else:
                    _deliver(end, packet)

    def _weather(self, source: int, target: int, end: int, packet: bytes) -> None:
        weather = self.weather
        if (source, target) in weather.cut or random.random() < weather.loss:
            self.lost += 1
            return
        late_s = weather.delay_s + random.random() * weather.jitter_s
        for _ in range(2 if random.random() < weather.double else 1):
            if not late_s:
                _deliver(end, packet)
                continue
            self._count += 1
            heapq.heappush(self._late, (time.monotonic() + late_s, self._count, end, packet))


def _deliver(device: int, packet: bytes) -> None:
    with suppress(BlockingIOError):  # its queue is full: any network loses packets
        os.write(device, packet)


if __name__ == "__main__":
    _Wires(int(sys.argv[1])).serve()
