"""A node's process whose disk does not answer: what it tells monitors, and that it ends all the same."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import trio

from garlicfarm.cli.exits import Exit
from garlicfarm.errors import DiskHangs, GarlicFarmError
from garlicfarm.lab.processes import process_farm
from garlicfarm.setup.provision import FarmPlan
from tests.node.support.cluster import ALONE
from tests.running import wait_until

COMMAND = (sys.executable, str(Path(__file__).parents[1] / "support" / "hanging_node.py"))
PLAN = FarmPlan(application="log", raft={**ALONE, "disk_timeout_s": 0.3})


@pytest.mark.slow
async def test_node_whose_disk_hangs_says_so_serves_again_and_ends_in_time_with_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GARLICFARM_NODE__SHUTDOWN_TIMEOUT_S", "1.0")
    async with process_farm(tmp_path / "farm", 1, PLAN, command=COMMAND) as farm:
        node = farm.nodes[1]
        hang = node.directory / "hang"

        async def health() -> int:
            command = [sys.executable, "-m", "garlicfarm", "health", "--local"]
            config = ["--config", str(node.directory / "garlicfarm.toml")]
            return (await trio.run_process([*command, *config], check=False, capture_stdout=True)).returncode

        async with node.client() as client, httpx.AsyncClient(verify=False) as scraper:

            async def ready() -> bool:
                return (await scraper.get(f"{node.url}/readyz")).status_code == 200

            async def hangs() -> bool:
                with suppress(GarlicFarmError):
                    await client.post("farm", b"unknown")
                return (await client.status("farm"))["disk_hangs_s"] is not None

            async def posted() -> bool:
                with suppress(GarlicFarmError):
                    await client.post("farm", b"after")
                    return True
                return False

            index, _ = await client.post("farm", b"before")
            hang.touch()
            await wait_until(hangs)
            assert await health() in (Exit.DEGRADED, Exit.NO_QUORUM)  # it leads for another moment
            assert not await ready()
            with pytest.raises(DiskHangs, match="has not answered for"):
                await client.page("farm", 0, linearizable=True)
            page, commit_index = await client.page("farm", 0)
            assert ([entry.value for entry in page.entries], commit_index) == ([b"before"], index)
            hang.unlink()
            await wait_until(posted)
            await wait_until(ready)
            assert await health() == Exit.OK
            hang.touch()
            await wait_until(hangs)
        assert await farm.stop(1) == Exit.STORAGE
        assert "event=not-ended" in node.log_file.read_text()
        hang.unlink()
        await farm.start(1)
        async with node.client() as client:

            async def there() -> bool:
                return b"after" in [entry.value async for entry in client.log("farm")]

            await wait_until(there)
