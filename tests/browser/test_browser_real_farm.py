"""The dashboard of a farm of processes: an admin's form ends up in the log, a killed node on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from garlicfarm.cli.lab import running_lab
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.credentials.users import LOCAL_USER
from tests.browser.chromium import chromium

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HASH = "A" * 43 + "="


async def test_forms_reach_the_log_of_all_and_a_killed_node_is_shown_as_dead(tmp_path: Path) -> None:
    with trio.fail_after(110):
        async with running_lab(tmp_path, 3, 1000, "simulated") as farm, chromium() as browser:
            async with farm.nodes[1].client() as client:
                leader = None
                while leader is None:
                    await trio.sleep(0.1)
                    leader = (await client.status(farm.name))["leader"]
            follower, other = (one for one in farm.nodes if one != leader)
            password = read_private_file(farm.nodes[follower].directory / "data" / "local.password").strip()
            page = await browser.page()
            await page.open(str(farm.nodes[follower].url), LOCAL_USER, password)
            await page.until("document.querySelectorAll('#scores polyline').length === 3")

            async def submit(action: str, fill: str) -> None:
                await page.value(f"window.form = document.querySelector('form:has([value={action}])')")
                await page.value(f"{fill}; form.querySelector('button').click()")
                await page.until("document.readyState === 'complete' && window.form === undefined")

            await submit("override", f"form.member.value = '{other}', form.mode.value = 'off'")
            assert "Done: committed at index" in await page.text()
            await page.until("document.getElementById('ranking').innerText.includes('off by override')")
            await submit("exclude", f"form.hash.value = '{HASH}'")
            assert f"{HASH} by {LOCAL_USER}" in await page.text("#actions")
            await submit("include", "0")
            assert HASH not in await page.text("#actions")
            await submit("exclude", "form.hash.value = 'no hash'")
            assert "Not done" in await page.text()
            await page.open(f"{farm.nodes[follower].url}/")
            await submit("stepdown", "form.member.value = '0'")
            assert "Not done" in await page.text(), "a follower lets nobody lead"

            await page.open(f"{farm.nodes[follower].url}/")
            await farm.kill(other)
            await page.until(f"document.getElementById('member-{other}').className === 'unreachable'")
            async with farm.nodes[leader].client() as client:
                policy = await client.policy(farm.name)
            assert policy["orders"][f"override {other}"]["by"] == LOCAL_USER
            assert policy["excluded"] == []
