"""A fault of strangers: so many connections that a node has no descriptor left. It has to live on."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from garlicfarm.transport import Endpoint
from tests.crash.crash_checks import Violation

if TYPE_CHECKING:
    from tests.chaos.chaos_farm import ChaosFarm

CONNECTIONS = 300  # to each victim, half of them to its admin port
CONNECT_S = 5.0


async def starve(farm: ChaosFarm, victims: Sequence[int], for_s: float) -> int:
    """Connect without a word, then let the victims open nothing more for a while. How many connections there
    were. Raises `Violation`: a node ended."""
    allowed = {}
    async with AsyncExitStack() as stack:
        opened = 0
        for victim in victims:
            opened += await _connect(farm, victim, stack)
        try:
            for victim in victims:
                process = farm.farm.nodes[victim].process
                if process is None:
                    continue
                allowed[process] = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
                used = len(os.listdir(f"/proc/{process.pid}/fd"))
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used, allowed[process][1]))
            await trio.sleep(for_s)
        finally:
            for process, limits in allowed.items():
                with suppress(ProcessLookupError):
                    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
    for process in allowed:
        if (code := process.poll()) is not None:
            raise Violation(f"without descriptors, one of nodes {victims} ended with {code}")
    return opened


async def _connect(farm: ChaosFarm, victim: int, stack: AsyncExitStack) -> int:
    node = farm.farm.nodes[victim]
    endpoint = Endpoint.parse(farm.farm.endpoints[victim])
    ports = [(endpoint.host, endpoint.port)]
    if node.url is not None and (admin := urlsplit(node.url)).hostname and admin.port:
        ports.append((admin.hostname, admin.port))
    opened = 0
    with trio.move_on_after(CONNECT_S):
        for number in range(CONNECTIONS):
            host, port = ports[number % len(ports)]
            with suppress(OSError):
                stack.push_async_exit(await trio.open_tcp_stream(host, port))
                opened += 1
    return opened
