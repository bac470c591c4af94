"""A node that is told to end before it serves ends in order: with 0, at once, and nothing changed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from garlicfarm.config import load
from garlicfarm.node import Node, serve
from garlicfarm.storage import DataDirectory
from tests.node.support.cluster import cluster

# The process signals itself when it calls what is named, as a service manager might just then.
CHILD = """
import importlib, os, sys
module, _, name = sys.argv[1].partition(":")
owner = importlib.import_module(module)
*path, last = name.split(".")
for part in path:
    owner = getattr(owner, part)
call = getattr(owner, last)

def signalled(*arguments, **more):
    os.kill(os.getpid(), int(sys.argv[2]))
    return call(*arguments, **more)

setattr(owner, last, signalled)
from garlicfarm.cli import main
main(["node", "start", "--config", sys.argv[3]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
@pytest.mark.parametrize(
    "place",
    [
        "garlicfarm.config:load",
        "garlicfarm.logs:configured",
        "garlicfarm.node.hosted_farm:LogStore.open",
        "garlicfarm.node.listeners:Listeners.check",
        "garlicfarm.node.node:serve_admin",
    ],
)
async def test_signal_during_start_up_ends_the_node_with_0(
    place: str, how: signal.Signals, tmp_path: Path
) -> None:
    async with cluster(tmp_path, start=False) as nodes:
        directory = nodes.directories[1]
        before = sorted(directory.rglob("*"))
        with trio.fail_after(240):
            done = await trio.run_process(
                [sys.executable, "-c", CHILD, place, str(int(how)), str(directory / "garlicfarm.toml")],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_stderr=True,
            )
        said = done.stderr.decode()
        assert done.returncode == 0, said
        assert "event=started" not in said
        assert "Traceback" not in said
        assert sorted(directory.rglob("*")) == before
        with DataDirectory.open(nodes.data(1)):
            pass  # held by nobody


async def test_node_whose_farm_does_not_come_up_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router may not answer for long."""
    coming = trio.Event()

    async def never_up(node: Node, farm: object, *, task_status: trio.TaskStatus[None]) -> None:
        coming.set()
        await trio.sleep_forever()

    monkeypatch.setattr(Node, "_run_farm", never_up)
    async with cluster(tmp_path, start=False) as nodes:
        config = load(nodes.directories[1] / "garlicfarm.toml", {})
        shutdown = trio.Event()
        with trio.fail_after(240):
            async with trio.open_nursery() as nursery:

                async def run() -> None:
                    await serve(config, shutdown=shutdown)

                nursery.start_soon(run)
                await coming.wait()
                shutdown.set()
        assert not (nodes.data(1) / "admin.url").exists()
