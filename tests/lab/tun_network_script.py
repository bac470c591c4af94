"""Run inside a network namespace: how long a round trip between hosts takes under each fault of the links."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import trio

from garlicfarm.lab.tun_network import LinkFaults, address, listen_at, network

PORT = 9000
DELAY_S = 0.3
CUT_S = 2.0
HANGS_S = 240.0


async def echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


async def ping(patience_s: float) -> None:
    """Prints how long it took, in s; "Infinity" if it was not over in time."""
    took_s = float("inf")
    with trio.move_on_after(patience_s):
        stream = await trio.open_tcp_stream(address(2), PORT)
        begun = time.monotonic()
        await stream.send_all(b"x")
        await stream.receive_some(1)
        took_s = time.monotonic() - begun
    print(json.dumps(took_s))


async def here(what: str, place: str = "", patience_s: float = HANGS_S) -> float:
    """Run this file for one of these two on a host; as host 0, if no place is named."""
    into = ["nsenter", f"--net={place}"] if place else []
    command = [*into, sys.executable, __file__, what, str(patience_s)]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    return float(json.loads(done.stdout))


async def quick(place: str = "") -> float:
    """How long it took on a way that is not late: a busy machine may be, but not each time."""
    while (took_s := await here("ping", place)) >= 2 * DELAY_S:
        pass
    return took_s


def who_reaches(place: str) -> list[str]:
    """Those from where a listener at this host's loopback is reached: the host, or host 0."""
    with listen_at(place) as listener:
        connect = f"import socket; socket.create_connection({listener.getsockname()!r})"
        ways = {"the host": ["nsenter", f"--net={place}"], "host 0": []}
        return [
            name
            for name, into in ways.items()
            if not subprocess.run([*into, sys.executable, "-c", connect], capture_output=True).returncode
        ]


async def main() -> None:
    found: dict[str, float | list[str]] = {}
    async with network(2, links=2) as wires, trio.open_nursery() as nursery:
        place = await wires.place(1)
        nursery.start_soon(here, "echo", await wires.place(2))
        while "fair" not in found:
            try:
                found["fair"] = await quick(place)
            except subprocess.CalledProcessError:  # nobody listens yet
                await trio.sleep(0.1)
        await wires.set_faults(LinkFaults(delay_s=DELAY_S))
        found["slow"], found["from host 0"] = await here("ping", place), await quick()
        await wires.set_faults(LinkFaults(cut=[(2, 1)]))
        found["cut"] = await here("ping", place, CUT_S)
        found["lost"] = await wires.set_faults(LinkFaults(down=[(2, 1)]))
        found["other link down"] = await quick(place)
        await wires.set_faults(LinkFaults(down=[(2, 0)]))
        found["link down"] = await here("ping", place, CUT_S)
        found["listener at host 1"] = await trio.to_thread.run_sync(who_reaches, place)
        nursery.cancel_scope.cancel()
    print(json.dumps(found))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["echo", _]:
            trio.run(trio.serve_tcp, echo, PORT)
        case ["ping", patience_s]:
            trio.run(ping, float(patience_s))
        case _:
            trio.run(main)
