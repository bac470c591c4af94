"""What serving its log as a Dafka topic costs a member: a farm of one, entries of 100 bytes, each program a
process.

``dafka_farm_ratio``: entries that it commits per second while a consumer catches up, as a share of what it
commits while that one stands still. At least 0.9. The consumer runs with what processor time is left, and has
to come forward all the same.

The median of ``--rounds`` rounds. In each of them the consumer stands still every other second, since a log
that grows gets slower by itself. Exit code 1 if the limit is not kept. Run by `make bench-dafka`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from garlicfarm.client.farm import FarmClient, open_farm_client
from garlicfarm.config.model import PRESETS
from garlicfarm.credentials.users import UserStore
from garlicfarm.lab.processes import process_farm
from garlicfarm.plugins import make_transport
from garlicfarm.setup.provision import FarmPlan

AT_LEAST = 0.9
ENTRY = b"x" * 100
BATCH, WRITERS = 500, 4
MOST_ENTRIES = 10_000_000  # of a round: its epoch and its log hold them all


async def read(url: str) -> None:
    """Catch up, and print how many records were read, again and again."""
    from garlicfarm_plugin_dafka import MeshConfig, open_consumer

    os.nice(19)
    count = 0
    async with open_consumer(MeshConfig(towers=(url,)), ["farm"]) as consumer:
        while True:
            count += len(await consumer.receive())
            print(count, flush=True)


async def post(client: FarmClient, seconds: float) -> int:
    """Post entries for so long; how many were committed."""
    count = 0

    async def write() -> None:
        nonlocal count
        while True:
            await client.post([ENTRY] * BATCH)
            count += BATCH

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(WRITERS):
                nursery.start_soon(write)
    return count


async def commit_rates(directory: Path, url: str, seconds: int) -> tuple[float, float, int]:
    """Entries per second without and with a reader, and how many records that one has got meanwhile."""
    plan = FarmPlan(
        application="log",
        raft=PRESETS["clearnet"],
        retention={"keep_entries": MOST_ENTRIES},
        epoch_length=MOST_ENTRIES,
    )
    async with process_farm(directory, 1, plan, start=False) as farm:
        node = farm.nodes[1].directory
        UserStore(node / "data" / "users").add("writer", "writer", "writer's password")
        with (node / "garlicfarm.toml").open("a") as file:
            file.write(f'\n[[farm.feed]]\nplugin = "dafka"\ntowers = {json.dumps([url])}\n')
        await farm.start(1)
        async with open_farm_client(
            farm.endpoints,
            farm=farm.name,
            user="writer",
            password="writer's password",
            transport=lambda scheme: make_transport(scheme, {}, directory),
        ) as client:
            await post(client, seconds)  # what the reader catches up with
            command = [sys.executable, "-m", "benchmarks.dafka_farm", "--role", "reader", url]
            async with trio.open_nursery() as nursery:
                reader = await nursery.start(
                    partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
                )
                output = await reader.stdout.receive_some()  # it has begun
                counts = {signal.SIGSTOP: 0, signal.SIGCONT: 0}
                for _ in range(seconds):
                    for each in counts:
                        reader.send_signal(each)
                        counts[each] += await post(client, 1)
                reader.terminate()
                async for data in reader.stdout:
                    output = (output + data)[-100:]
        alone, served = (count / seconds for count in counts.values())
        return alone, served, int(output.split(b"\n")[-2])


async def measure(rounds: int, seconds: int) -> bool:
    from garlicfarm_plugin_dafka.config import TowerConfig
    from garlicfarm_plugin_dafka.tower import open_tower

    found = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        for each in range(rounds):
            async with open_tower(TowerConfig(listen="tcp://127.0.0.1:0")) as tower:
                directory = Path(temporary) / f"farm-{each}"
                found.append(await commit_rates(directory, str(tower.endpoint), seconds))
    ratios = [served / alone for alone, served, _ in found]
    value = statistics.median(ratios)
    line = {
        "figure": "dafka_farm_ratio",
        "ok": value >= AT_LEAST and all(read for _, _, read in found),
        "value": round(value, 3),
        "at_least": AT_LEAST,
        "rounds": [round(ratio, 3) for ratio in ratios],
        "entries_s": [[round(alone), round(served)] for alone, served, _ in found],
        "records_read": [read for _, _, read in found],
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(line), flush=True)
    return bool(line["ok"])


def main() -> int:
    if sys.argv[1:3] == ["--role", "reader"]:
        trio.run(read, sys.argv[3])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="of each load in a round")
    options = parser.parse_args()
    return 0 if trio.run(measure, options.rounds, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
