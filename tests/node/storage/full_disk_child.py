"""A node whose data is on a file system of 96 MiB, which posts fill; what it found, as JSON.

unshare -rm python -m tests.node.storage.full_disk_child DIRECTORY
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import trio

from garlicfarm.disk_space import disk_space
from garlicfarm.errors import ProposalDropped
from garlicfarm.node.proposals import origin_now
from tests.node.support.cluster import cluster
from tests.running import wait_until

SIZE, FILLER, POST = 96 << 20, 48 << 20, 256 << 10


async def fill(directory: Path) -> None:
    filler = directory / "filler"
    filler.write_bytes(os.urandom(FILLER))
    async with cluster(directory) as nodes:
        await nodes.leader()
        farm, posts, reason = nodes.replica(), 0, ""
        while not reason:
            try:
                await farm.proposals.post(os.urandom(POST), origin_now(0, "alice"))
                posts += 1
            except ProposalDropped as dropped:
                reason = dropped.reason
        space = disk_space(directory)
        read = await farm.reads.read_index()
        told = [each["kind"] for each in nodes.node().farms["farm"].status()["troubles"]]
        leads = farm.is_leader
        filler.unlink()
        await wait_until(lambda: farm.space.has_room)
        last, _ = await farm.proposals.post(b"again", origin_now(0, "alice"))
        print(
            json.dumps(
                {
                    "reason": reason,
                    "posts": posts,
                    "free": space.free,
                    "reserve": space.reserve,
                    "read": read,
                    "troubles": told,
                    "leads": leads,
                    "last": last,
                }
            )
        )


if __name__ == "__main__":
    mountpoint = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", mountpoint], check=True)
    trio.run(fill, mountpoint)
