"""Two farms in the same three processes, behind the same listeners: one is flooded, the other is observed.

``isolation_p99_gap_ratio``: the gap between the leader's messages at a follower of the quiet farm, 99th
percentile over both followers, during a flood of the other farm, as a multiple of the same without a flood.
At most 2. The flood: 64 clients post without pause, entries of 1 … 65,536 bytes (log-uniform sizes from a
given seed), to the member that leads both farms, if there is one.

Exit code 1 if the limit is exceeded. Run by `make bench`.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import trio

from benchmarks.bench_farm import (
    PASSWORD,
    USER,
    RetryingClient,
    command_line,
    leader_of,
    percentile,
    report,
    retrying_client,
)
from garlicfarm import logs
from garlicfarm.config import load
from garlicfarm.credentials.member_credentials import write_secret_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.lab.processes import FAST, ProcessFarm, process_farm
from garlicfarm.levels import FIRST_ALGORITHM
from garlicfarm.node import serve
from garlicfarm.node.incoming_requests import IncomingRequests
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.storage import Genesis, create_store
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request

RATIO_AT_MOST = 2.0
OUTSTANDING = 64
MOST_BYTES = 1 << 16
QUIET = "quiet"
SETTLE_S = 5.0

heard: TextIO


class Watched(IncomingRequests):
    """The requests of a farm; of the quiet one, it is noted when the leader was heard."""

    def on_request(self, request: Request) -> None:
        if self._core.farm == QUIET and request.type is MessageType.APPEND_ENTRIES_REQUEST:
            heard.write(f"{trio.current_time()}\n")
        super().on_request(request)


def node(path: Path) -> None:
    """One node, like `garlicfarm node start`, that records messages of the quiet farm."""
    import garlicfarm.node.replica

    global heard
    heard = (path.parent / "heard").open("a", buffering=1)
    vars(garlicfarm.node.replica)["IncomingRequests"] = Watched
    config = load(path, {})
    with logs.configured("warning", "text", sys.stderr):
        trio.run(serve, config)


def add_quiet_farm(farm: ProcessFarm) -> None:
    """A second farm of the same members: its own id, secret and stores; the same listeners."""
    farm_id, secret = secrets.token_bytes(16), secrets.token_bytes(32)
    servers = tuple(ClusterServer(node_id, endpoint) for node_id, endpoint in farm.endpoints.items())
    genesis = Genesis(QUIET, farm_id, "log", FIRST_ALGORITHM, Configuration(0, 0, servers))
    for each in farm.nodes.values():
        data, file = each.directory / "data", each.directory / "garlicfarm.toml"
        create_store(data / "farms" / QUIET, genesis)
        write_secret_file(data / "secrets" / f"{QUIET}.secret", secret)
        table = "".join(file.read_text().partition("[[farm]]")[1:]).replace(f'"{farm.name}"', f'"{QUIET}"')
        with file.open("a") as more:
            more.write("\n" + table.replace(f"{farm.name}.secret", f"{QUIET}.secret"))


@asynccontextmanager
async def two_farms() -> AsyncIterator[ProcessFarm]:
    """The farm to flood, and the quiet one beside it."""
    command = (sys.executable, "-m", __spec__.name, "--node")
    plan = FarmPlan(application="log", raft=FAST)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        directory = Path(temporary) / "farm"
        async with process_farm(directory, 3, plan, command=command, start=False) as farm:
            add_quiet_farm(farm)
            for each in farm.nodes.values():
                UserStore(each.directory / "data" / "users").add(USER, "writer", PASSWORD)
                await farm.start(each.id)
            yield farm


def gaps(farm: ProcessFarm, leader: int, begun: dict[int, int]) -> Iterator[float]:
    """Gaps between the messages at the quiet farm's followers since these positions in their files."""
    for each in farm.nodes.values():
        if each.id != leader:
            with (each.directory / "heard").open() as file:
                file.seek(begun[each.id])
                times = [float(line) for line in file if line.endswith("\n")]
            yield from (after - before for before, after in pairwise(times))


def lengths(farm: ProcessFarm) -> dict[int, int]:
    return {each.id: (each.directory / "heard").stat().st_size for each in farm.nodes.values()}


async def flood(client: RetryingClient, dice: random.Random, posted: list[int]) -> None:
    while True:
        value = dice.randbytes(int(MOST_BYTES ** dice.random()))
        await client.post([value])
        posted.append(len(value))


async def measure(seconds: float, seed: int) -> bool:
    async with two_farms() as farm:
        async with retrying_client(farm.endpoints, farm.farm_id) as client:
            await client.post([b"elect"])
            leader = await leader_of(farm.nodes[1], QUIET)
            await trio.sleep(SETTLE_S)
            begun = lengths(farm)
            await trio.sleep(seconds)
            alone = [*gaps(farm, leader, begun)]
            posted: list[int] = []
            async with trio.open_nursery() as nursery:
                for number in range(OUTSTANDING):
                    dice = random.Random(seed * OUTSTANDING + number)
                    nursery.start_soon(flood, client, dice, posted)
                await trio.sleep(SETTLE_S)
                begun, before = lengths(farm), len(posted)
                await trio.sleep(seconds)
                flooded = [*gaps(farm, leader, begun)]
                entries, size_bytes = len(posted) - before, sum(posted[before:])
                nursery.cancel_scope.cancel()
        same = await leader_of(farm.nodes[1], QUIET) == leader
    quiet_ms, flooded_ms = (percentile(each, 0.99) * 1000 for each in (alone, flooded))
    return report(
        "isolation_p99_gap_ratio",
        flooded_ms / quiet_ms,
        RATIO_AT_MOST,
        p99_ms=round(flooded_ms, 1),
        p99_alone_ms=round(quiet_ms, 1),
        max_ms=round(max(flooded) * 1000, 1),
        heartbeat_ms=FAST["heartbeat_s"] * 1000,
        same_leader=same,
        flood_entries_s=round(entries / seconds),
        flood_mb_s=round(size_bytes / seconds / 1e6, 2),
        seconds=seconds,
        seed=seed,
    )


def main() -> int:
    if sys.argv[1:2] == ["--node"]:
        node(Path(sys.argv[3]))
        return 0
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return 0 if trio.run(measure, options.seconds, options.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
