"""Makes docs/images/dashboard.png anew: the page of a real farm of three processes, one of them killed.

Needs Chromium, and a minute: ``python -m tests.browser.picture [FILE [dark]]`` from the project's folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import trio

from garlicfarm.cli.lab import running_lab
from garlicfarm.credentials.users import UserStore
from garlicfarm.lab.processes import ProcessFarm
from tests.browser.chromium import chromium

ROOT = Path(__file__).parents[2]
WATCHED_S = 45
SIZE = (1200, 1500)


async def main(target: Path, *, dark: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with running_lab(Path(directory), 3, 1000, "simulated") as farm, chromium() as browser:
            leader, publisher = await _roles(farm)
            node = farm.nodes[leader]
            killed = max(one for one in farm.nodes if one not in (leader, publisher))
            UserStore(node.directory / "data" / "users").add("alice", "reader", "alice's word")
            page = await browser.page()
            await page.open(str(node.url), "alice", "alice's word")
            await trio.sleep(WATCHED_S)
            await farm.kill(killed)
            await page.until(
                f"document.getElementById('member-{killed}').className === 'unreachable'"
                " && document.getElementById('ranking').innerText.includes('no status since')"
            )
            await page.picture(*SIZE, dark=dark)  # so that it is laid out for that size
            await page.until("document.getElementById('live').textContent === 'live'")
            await trio.Path(target).write_bytes(await page.picture(*SIZE, dark=dark))


async def _roles(farm: ProcessFarm) -> tuple[int, int]:
    async with farm.nodes[1].client() as client:
        with trio.fail_after(240):
            while True:
                status = await client.status(farm.name)
                if status["leader"] and status["publisher"]:
                    return status["leader"], status["publisher"]
                await trio.sleep(0.2)


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "dashboard.png"
    trio.run(lambda: main(where, dark="dark" in sys.argv))
