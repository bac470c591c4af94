"""A copy of the node that version 0.1 wrote (``tests/data/v0.1``), and today's program on it."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from sys import executable

import trio

from garlicfarm.lab.processes import ProcessFarm
from garlicfarm.setup.provision import FarmPlan, MadeFarm
from garlicfarm.storage import read_genesis
from garlicfarm.wire.messages import Configuration

__all__ = ["OLD_PORT", "edited", "started", "unpacked"]

OLD_PORT = 28150
"""Of the node's listener and its endpoint."""
_TAR = Path(__file__).parents[2] / "data" / "v0.1" / "node-1.tar"


def unpacked(directory: Path) -> Path:
    """The node's directory in ``directory``, as 0.1 left it."""
    with tarfile.open(_TAR) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, Debian 12's, has none
        tar.extractall(directory)
    return directory / "node-1"


def edited(node: Path, port: int) -> Path:
    """The node's directory, its configuration edited as the how-to says; it listens on ``port`` (0: any), and
    both of its farms elect a leader quickly."""
    file = node / "garlicfarm.toml"
    text = file.read_text().replace('application = "farm"', 'application = "publisher"')
    text = text.replace("https://127.0.0.1:27151", "https://127.0.0.1:0")
    text += "\n[farm.raft]\nelection_timeout_min_s = 0.5\nelection_timeout_max_s = 1.0\nheartbeat_s = 0.1\n"
    file.write_text(text.replace(f'url = "ssl://127.0.0.1:{OLD_PORT}"', f'url = "ssl://127.0.0.1:{port}"'))
    return node


@asynccontextmanager
async def started(node: Path) -> AsyncIterator[ProcessFarm]:
    """The node's farm ``farm`` while today's program runs on it, and leads both of its farms."""
    genesis = read_genesis(node / "data" / "farms" / "farm")
    made = MadeFarm(genesis.farm_id, genesis.configuration or Configuration(0, 0), {1: node})
    async with trio.open_nursery() as nursery:
        command = (executable, "-m", "garlicfarm", "node", "start")
        farm = ProcessFarm(made, FarmPlan(), command, {}, nursery)
        await farm.start(1)
        async with farm.nodes[1].client() as client:
            with trio.fail_after(240):
                for name in ("farm", "vault"):
                    while (await client.status(name))["role"] != "leader":  # noqa: ASYNC110
                        await trio.sleep(0.05)
        yield farm
        nursery.cancel_scope.cancel()
