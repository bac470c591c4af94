"""Resident memory of a follower: 1,000 entries of 200 bytes, its status polled each second.

Prints one JSON line. Run by `make bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from pathlib import Path

import trio

from garlicfarm.provision import FarmPlan
from garlicfarm.testing.processes import FAST, NodeProcess, process_farm

ENTRIES = 1000
VALUE_BYTES = 200


def resident_mb(node: NodeProcess) -> tuple[float, float]:
    """Now, and at its highest."""
    assert node.process is not None
    text = Path(f"/proc/{node.process.pid}/status").read_text()
    now, peak = (int(re.search(rf"{key}:\s+(\d+) kB", text)[1]) for key in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now / 1024, peak / 1024


async def measure(seconds: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        plan = FarmPlan(application="log", raft=FAST)
        async with process_farm(Path(temporary) / "farm", 3, plan) as farm:
            async with farm.nodes[1].client() as client:
                await client.post(farm.name, b"elect")
                leader = (await client.status(farm.name))["leader"]
            follower = next(node for node in farm.nodes.values() if node.id != leader)
            at_start, _ = resident_mb(follower)
            async with follower.client() as client:
                begun = trio.current_time()
                for number in range(ENTRIES):
                    await client.post(farm.name, os.urandom(VALUE_BYTES))
                    if number % 100 == 0:
                        await client.status(farm.name)
                while trio.current_time() - begun < seconds:
                    await client.status(farm.name)
                    await trio.sleep(1)
                applied = (await client.status(farm.name))["applied"]
            now, peak = resident_mb(follower)
    return {
        "follower_entries": applied,
        "seconds": seconds,
        "resident_mb_at_start": round(at_start, 1),
        "resident_mb": round(now, 1),
        "peak_mb": round(peak, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    print(json.dumps(trio.run(measure, parser.parse_args().seconds)))


if __name__ == "__main__":
    main()
