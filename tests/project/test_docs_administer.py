"""The guide to administration: its commands, run as they stand there on a member of a farm of three."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import trio

from garlicfarm.cli.farm_policy import set_
from garlicfarm.config.model import PRESET_INTERVALS_MS, PRESETS
from garlicfarm.lab.processes import process_farm
from garlicfarm.setup.provision import FarmPlan, MemberPlan, first_orders

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "administer.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


(PUBLISH,) = re.findall(r"^```sh publisher\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
async def test_every_command_of_the_guide_works_on_a_member(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GARLICFARM_")}
    environ = {**kept, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = b""
    async with process_farm(tmp_path / "farm", 3) as farm:
        ready = ["garlicfarm wait --for healthy --timeout 30"]
        for block in [*ready, *BLOCKS, PUBLISH]:
            with trio.fail_after(90):
                done = await trio.run_process(
                    ["bash", "-euo", "pipefail", "-c", block],
                    cwd=farm.nodes[1].directory,
                    env=environ,
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                )
            if block == PUBLISH:
                assert (done.returncode, b"nothing was ordered: " in done.stderr) == (1, True), done.stderr
                continue
            assert done.returncode == 0, (block, done.stderr)
            said += done.stdout
        made = (farm.nodes[1].directory / "node-3.toml").read_text()
    assert 'endpoint = "ssl://c.example:27150"' in made
    assert rb"\"admin\":{\"action\":\"weights\"" in said
    assert b"farm farm: healthy, leader" in said


def test_table_of_parameters_has_those_of_the_command() -> None:
    names = set(re.findall(r"^\| `([A-Za-z]+)` \|", PAGE, re.MULTILINE))
    assert names == set(re.findall(r"([A-Za-z]+)=", set_.help or "")) - {"NAME"}


def test_pages_have_the_parameters_and_timings_of_the_presets() -> None:
    r = {}
    for preset, interval_ms in PRESET_INTERVALS_MS.items():
        plan = FarmPlan(preset=preset, interval_ms=interval_ms)
        order, _ = map(json.loads, first_orders(plan, {1: MemberPlan(endpoint="ssl://a.example:1")}))
        r[preset] = order["config"]["admin"]["args"]["R"]
    assert f"| `R` | {r['clearnet']}, `i2p` {r['i2p']} |" in PAGE
    s = {preset: interval_ms // 1000 for preset, interval_ms in PRESET_INTERVALS_MS.items()}
    assert f"| `interval` | {s['clearnet']}s, `i2p` {s['i2p']}s |" in PAGE
    (i2p, clearnet) = (
        f"{PRESETS[preset]['election_timeout_min_s']:g} to {PRESETS[preset]['election_timeout_max_s']:g} s"
        for preset in ("i2p", "clearnet")
    )
    guide = (Path(__file__).parents[2] / "docs" / "howto" / "three-machines.md").read_text(encoding="utf-8")
    assert f"elections after {i2p} instead of {clearnet}" in guide
