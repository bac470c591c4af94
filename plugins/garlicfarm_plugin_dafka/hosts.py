"""Connections to hosts that may have a name: `keep_connected`.

ZeroMQ would look names up itself, in the thread that serves all connections, at each attempt to connect. One
name whose servers are silent would hold up everything, also the beacons of this node, so that all others cut
it off. So ZeroMQ gets addresses only.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

import trio

from garlicfarm_plugin_dafka.sockets import Socket

__all__ = ["keep_connected"]

LOOK_UP_S: Final = 30.0
"""How often the address of a name is looked up, since it can change."""
RETRY_S: Final = 2.0
TIMEOUT_S: Final = 5.0


async def keep_connected(
    host: str, connections: Sequence[tuple[Socket, int]], limiter: trio.CapacityLimiter
) -> None:
    """Connect sockets to ports of a host: at once if it is an address, else when its address is found, and
    again when that changes, until cancelled. ``limiter`` bounds the threads that look names up."""
    if _is_address(host):
        for each, port in connections:
            each.connect(host, port)
        return
    current = ""
    while True:
        found: list[str] = []
        with trio.move_on_after(TIMEOUT_S):
            found = await trio.to_thread.run_sync(_look_up, host, abandon_on_cancel=True, limiter=limiter)
        if found and current not in found:
            for each, port in connections:
                if current:
                    each.disconnect(current, port)
                each.connect(found[0], port)
            current = found[0]
        await trio.sleep(LOOK_UP_S if found else RETRY_S)


def _look_up(host: str) -> list[str]:
    """The addresses of a name, those of IPv4 first; none if it has none."""
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(address[0]) for _, *_, address in sorted(answers, key=lambda answer: answer[0])]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
