"""Real i2pd routers on a network of their own, for tests and for the lab.

The routers run in the network namespace of the calling process, which must have no interface except ``lo``:
no packet can leave, regardless of what a router tries. Without such a namespace nothing here starts;
`reexec_in_private_network` makes one (no root needed). Alternatively each router has its own namespace, and
`tun_network` connects them by links that fail on command and lead nowhere else.

Addresses are 198.18.0.11 and up, or those of the hosts, from the range for benchmarks (RFC 2544): i2pd
before 2.51.0 drops peers at 127.0.0.0/8 and at private addresses regardless of its configuration. Each
router has its own address and data directory, knows the others from files (no reseeding), and answers
I2PControl. A `RouterPlan` says what else it does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import trio

from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.errors import ConfigError, RouterError
from garlicfarm.lab import tun_network
from garlicfarm.lab.i2pd_files import (
    CERTIFICATE,
    CONTROL_PORT,
    PASSWORD,
    RouterPlan,
    console_port,
    i2cp_port,
    i2pd_program,
    introduce,
    leaf_of,
    proxy_port,
    sam_port,
)
from garlicfarm.setup.i2p_tunnel import b32_address

STOP_TIMEOUT_S = 5.0
APART_S = 0.5
"""Between the starts of two routers: 2, 7 and 12 s after its start, each dials others."""
SETTLED_S = 15
NETWORKS = 10
UNREACHABLE = "Transports: No compatible addresses available"
"""What i2pd logs when it takes another router for unreachable."""
PACKAGES = {"i2pd": "i2pd", "ip": "iproute2", "unshare": "util-linux", "setpriv": "util-linux"}


@dataclass(frozen=True, slots=True)
class I2pdRouter:
    """One running i2pd: the address of its I2PControl, and values of its configuration."""

    id: int
    """1 for the first router of a network."""
    address: str
    url: str
    password_file: Path
    pin: str
    pid: int
    data_dir: Path
    leaf: bytes
    """The destination of its tunnel ``leaf``, in binary form, b"" if it has none."""
    proxy: str
    """The URL of its HTTP proxy, "" if it has none."""
    sam: str
    """HOST:PORT of its SAM, "" if it has none."""
    i2cp: str
    """HOST:PORT of its I2CP, "" if it has none."""
    console: str
    """The URL of its web console, "" if it has none."""
    address_of_tunnel: str
    """The b32 address of the first tunnel that it was given, "" if it was given none."""
    place: str
    """The file of its network namespace, "" if that is this process's."""


def check_programs() -> None:
    """Raises `ConfigError`, naming the Debian packages, if a program is missing here."""
    named = os.environ.get("I2PD")
    if named and shutil.which(named) is None:
        raise ConfigError([f"I2PD={named} names no program: correct it, or unset it"])
    missing = [name for name in PACKAGES if shutil.which(i2pd_program() if name == "i2pd" else name) is None]
    if missing:
        packages = " ".join(sorted({PACKAGES[name] for name in missing}))
        raise ConfigError(
            [f"{', '.join(missing)} not found: as root, make debs, or apt-get install {packages}"]
        )


def in_private_network() -> bool:
    """Whether ``lo`` is the only network interface of this process."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def reexec_in_private_network(argv: Sequence[str]) -> NoReturn:
    """Replace this process by ``argv``, run in a user and network namespace of its own.

    Raises `ConfigError` if programs are missing. If the system forbids user namespaces, ``unshare`` reports
    it on stderr and exits with 1.
    """
    check_programs()
    os.execvp("unshare", ["unshare", "--map-root-user", "--net", *argv])


class I2pdNetwork(list[I2pdRouter]):
    """The routers of a network, in order, of which each can be killed and started again; made by
    `i2pd_network`."""

    def __init__(
        self,
        routers: Iterable[I2pdRouter],
        processes: list[subprocess.Popen[bytes]],
        plans: Sequence[RouterPlan] = (),
    ) -> None:
        super().__init__(routers)
        self._processes = processes
        self._plans = plans

    def is_running(self, router_id: int) -> bool:
        """Whether a router has not ended, by itself or killed."""
        return self._processes[router_id - 1].poll() is None

    def kill(self, router_id: int) -> None:
        """End a router as a power cut would: SIGKILL. Returns when it has ended."""
        process = self._processes[router_id - 1]
        process.kill()
        process.wait()

    async def start(self, router_id: int) -> I2pdRouter:
        """Start a router that was killed, with its data directory; the router, once its I2PControl listens.

        Raises `RouterError` as `i2pd_network` does.
        """
        router = self[router_id - 1]
        plan = self._plans[router_id - 1]
        process = _start(plan, router.data_dir, router.place)
        self._processes[router_id - 1] = process
        self[router_id - 1] = router = replace(router, pid=process.pid)
        await _wait_for([plan], {0: process}, lambda _: _listens(router.address))
        return router


@asynccontextmanager
async def i2pd_network(
    base_dir: Path,
    plans: Sequence[RouterPlan],
    wires: tun_network.Network | None = None,
    *,
    hops: int = 0,
    ssu2: bool = True,
) -> AsyncIterator[I2pdNetwork]:
    """Run an i2pd router for each of ``plans`` (1 … 200) below ``base_dir``.

    They start one after another, floodfills first, and each knows those before it: a router of i2pd that
    dials one which dials it at the same moment, or is not there yet, takes that for unreachable for eight
    minutes. Where one does so all the same, as its log tells, the network is made anew.

    ``wires``: the first router runs on host 1, and so on; a client of its proxy must run there, too, unless
    the router shares it. ``hops``: of each tunnel; one hop takes five routers. ``ssu2`` False: they use TCP
    only. (Over UDP, i2pd measures round trips only from packets that it has not resent, so it misses one that
    doubles; and it allows 5 s for connecting, which takes 2½ round trips.) Yields them `SETTLED_S` after the
    I2PControl of each listens. At the end, and when cancelled, all routers are ended; they also end if this
    process is killed. An error in between gets a note for each that had ended before, killed or not.

    Raises `ConfigError` outside a private network or where programs are missing; `RouterError` if a
    router ends or does not listen in time, or none of `NETWORKS` in a row has routers that reach each other.
    """
    check_programs()
    count = len(plans)
    places = [await wires.place(i + 1) for i in range(count)] if wires else [""] * count
    if not wires:
        if not in_private_network():
            raise ConfigError(
                [
                    "i2pd would reach the public network from here: use reexec_in_private_network, "
                    "or unshare -rn"
                ]
            )
        _ip("link", "set", "lo", "up")
        for i in range(count):
            _ip("address", "replace", f"{_address(i)}/32", "dev", "lo")
    addresses = [tun_network.address(i + 1) if wires else _address(i) for i in range(count)]

    def listens(i: int) -> bool:
        return _listens(addresses[i])

    for _ in range(NETWORKS):
        data_dirs = await make_i2pd(base_dir, addresses, plans, places, hops=hops, ssu2=ssu2)
        turns = [[i] for i in _order(plans)]
        async with _running(plans, data_dirs, places, turns, listens) as processes:
            if await _all_reach_each_other(data_dirs):
                routers = [
                    _router(i, plan, data_dirs[i], addresses[i], places[i], processes[i].pid)
                    for i, plan in enumerate(plans)
                ]
                try:
                    yield I2pdNetwork(routers, processes, plans)
                except Exception as error:
                    for router_id, process in enumerate(processes, 1):
                        if process.poll() is not None:
                            error.add_note(f"router {router_id} had ended with status {process.returncode}")
                    raise
                return
        for data_dir in data_dirs:
            shutil.rmtree(data_dir)
    raise RouterError(f"in {NETWORKS} networks in a row a router of i2pd took another for unreachable")


def _router(i: int, plan: RouterPlan, data_dir: Path, address: str, place: str, pid: int) -> I2pdRouter:
    return I2pdRouter(
        id=i + 1,
        address=address,
        url=f"https://{address}:{CONTROL_PORT}{plan.control_path}",
        password_file=data_dir / PASSWORD,
        pin=pin_of_file(data_dir / CERTIFICATE),
        pid=pid,
        data_dir=data_dir,
        leaf=leaf_of(data_dir) if plan.has_leaf else b"",
        proxy=f"http://{address if plan.shares_proxy else '127.0.0.1'}:{proxy_port(i)}"
        if plan.has_proxy
        else "",
        sam=f"127.0.0.1:{sam_port(i)}" if plan.has_sam else "",
        i2cp=f"127.0.0.1:{i2cp_port(i)}" if plan.has_i2cp else "",
        console=f"http://127.0.0.1:{console_port(i)}" if plan.has_console else "",
        address_of_tunnel=b32_address(data_dir / plan.tunnels[0].keys) if plan.tunnels else "",
        place=place,
    )


async def _all_reach_each_other(data_dirs: Sequence[Path]) -> bool:
    """Whether no router took another for unreachable, in the time in which most dial each other."""
    for _ in range(SETTLED_S if len(data_dirs) > 1 else 0):
        await trio.sleep(1)
        for log in (data_dir / "i2pd.log" for data_dir in data_dirs):
            if log.exists() and UNREACHABLE in await trio.Path(log).read_text(errors="replace"):
                return False
    return True


async def make_i2pd(
    base_dir: Path,
    addresses: Sequence[str],
    plans: Sequence[RouterPlan],
    places: Sequence[str] = (),
    *,
    hops: int = 0,
    ssu2: bool = True,
) -> list[Path]:
    """Make the data directories of routers that know others, as `i2pd_network` runs them.

    The certificate of each I2PControl is in `CERTIFICATE`. The addresses need not exist yet.
    Raises `RouterError` if a router makes no keys in time.
    """
    data_dirs = [base_dir / f"i2pd{i + 1}" for i in range(len(plans))]
    for i, (address, plan) in enumerate(zip(addresses, plans, strict=True)):
        plan.configure(data_dirs[i], address, i, hops, ssu2)
    infos = [b""] * len(plans)

    def is_ready(i: int) -> bool:
        if plans[i].has_keys(data_dirs[i]):
            infos[i] = (data_dirs[i] / "router.info").read_bytes()
        return infos[i] != b""  # when i2pd has made the file, and not written it yet

    # The first start makes the routers' keys; only then can they learn of each other.
    async with _running(plans, data_dirs, places or [""] * len(plans), [range(len(plans))], is_ready):
        pass
    order = _order(plans)
    for place, i in enumerate(order):
        plans[i].certify(data_dirs[i])
        for other in order[:place]:
            introduce(data_dirs[i], infos[other])
    return data_dirs


def _order(plans: Sequence[RouterPlan]) -> list[int]:
    """In which the routers start, by their places in ``plans``: those first that start soonest."""
    return sorted(range(len(plans)), key=lambda i: (plans[i].start_timeout_s, not plans[i].is_floodfill))


@asynccontextmanager
async def i2pd_restarted(router: I2pdRouter, *options: str) -> AsyncIterator[None]:
    """Run a router of another process' network again after it was killed, with its data directory.

    ``options`` are i2pd's and override its configuration file, as ``--i2pcontrol.address=127.0.0.1``. This
    does not wait: I2PControl answers a little later. At the end the router is ended as there.
    """
    async with _running([RouterPlan()], [router.data_dir], [router.place], [[0]], lambda _: True, *options):
        yield


@asynccontextmanager
async def _running(
    plans: Sequence[RouterPlan],
    data_dirs: Sequence[Path],
    places: Sequence[str],
    turns: Iterable[Sequence[int]],
    is_ready: Callable[[int], bool],
    *options: str,
) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Yields the processes, in the order of ``plans``, once all are ready. Those of a turn start `APART_S`
    after those before are ready."""
    processes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for turn in turns:
            for i in turn:
                processes[i] = _start(plans[i], data_dirs[i], places[i], *options)
            await _wait_for(plans, {i: processes[i] for i in turn}, is_ready)
            await trio.sleep(APART_S)
        yield [processes[i] for i in range(len(plans))]
    finally:
        with trio.CancelScope(shield=True):
            await _end(processes.values())


def _start(plan: RouterPlan, data_dir: Path, place: str, *options: str) -> subprocess.Popen[bytes]:
    into = ["nsenter", f"--net={place}"] if place else []
    # Not trio's open_process: pdeathsig would follow the death of its worker thread.
    with (data_dir / "output").open("ab") as output:
        return subprocess.Popen(
            [*into, "setpriv", "--pdeathsig", "KILL", *plan.command(data_dir), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


async def _end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)  # SIGINT would be a graceful shutdown of minutes
    for process in processes:
        try:
            await trio.to_thread.run_sync(process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _wait_for(
    plans: Sequence[RouterPlan],
    processes: Mapping[int, subprocess.Popen[bytes]],
    ready: Callable[[int], bool],
) -> None:
    timeout_s = max(plans[i].start_timeout_s for i in processes)
    with trio.move_on_after(timeout_s):
        for i, process in processes.items():
            while not await trio.to_thread.run_sync(ready, i, abandon_on_cancel=True):  # it connects
                if process.poll() is not None:
                    raise RouterError(
                        f"i2pd {i + 1} ended with status {process.returncode}; "
                        "the reason is in the files output and i2pd.log of its data directory"
                    )
                await trio.sleep(0.05)
        return
    raise RouterError(f"i2pd was not ready within {timeout_s:.0f} s")


def _address(i: int) -> str:
    return f"198.18.0.{11 + i}"


def _listens(address: str) -> bool:
    try:
        socket.create_connection((address, CONTROL_PORT), 1.0).close()
    except OSError:
        return False
    return True


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
