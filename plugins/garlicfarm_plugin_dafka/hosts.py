"""Connections to other nodes and to towers: `keep_connected`.

Names are looked up here, and not by ZeroMQ, which would do it in the thread that serves all connections: one
name whose servers are silent would hold up everything, also the beacons of this node, so that all others cut
it off.

A beacon can name any address. Only a connection that has outlived ZeroMQ's handshake has proved that the
holder of the key is there; as long as none has, the address is tried less and less often.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

import trio

from garlicfarm_plugin_dafka.relay import Allowance, Flow, relay
from garlicfarm_plugin_dafka.sockets import HANDSHAKE_S, Socket

TIMEOUT_S: Final = 5.0
FIRST_RETRY_S: Final = 0.1
MAX_RETRY_S: Final = 30.0
_PROVED_S: Final = HANDSHAKE_S + 1.0


async def keep_connected(
    client: Socket,
    host: str,
    port: int,
    *,
    limiter: trio.CapacityLimiter,
    allowance: Allowance,
    on_stuck: Callable[[], None],
    max_retry_s: float = MAX_RETRY_S,
) -> None:
    """Connect a socket to a port of a host, and again whenever the connection ends, until cancelled.

    Attempts that end before the other end has proved its key follow each other after 0.1 s, 0.2 s, and so on
    to ``max_retry_s``.

    :param limiter: bounds the threads that look names up. :param allowance: what the peer may have sent that
    was not taken from ``client``. :param on_stuck: it has sent more, and no whole message.
    """
    retry_s = FIRST_RETRY_S
    while True:
        connected_at = math.inf
        try:
            with trio.fail_after(TIMEOUT_S):
                stream = await _connect(host, port, limiter)
            connected_at = trio.current_time()
            await _pass_on(client, stream, allowance, on_stuck)
        except (OSError, trio.TooSlowError):
            pass  # it is not there now, or we have no descriptors
        is_proved = trio.current_time() - connected_at > _PROVED_S
        retry_s = FIRST_RETRY_S if is_proved else min(2 * retry_s, max_retry_s)
        await trio.sleep(retry_s)


async def _pass_on(
    client: Socket, stream: trio.SocketStream, allowance: Allowance, on_stuck: Callable[[], None]
) -> None:
    client.flow = flow = Flow(allowance)
    async with stream, client.open_pipe() as pipe:
        await relay(stream, pipe, flow, client.has_messages, on_stuck)


async def _connect(host: str, port: int, limiter: trio.CapacityLimiter) -> trio.SocketStream:
    address = host
    if not _is_address(host):
        address = await trio.to_thread.run_sync(_look_up, host, abandon_on_cancel=True, limiter=limiter)
    return await trio.open_tcp_stream(address, port)


def _look_up(host: str) -> str:
    """An address of a name, of IPv4 if it has one. Raises `OSError`: it has none."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(min(answers, key=lambda answer: answer[0])[4][0])


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
