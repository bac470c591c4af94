"""The guides to administration, members, keys and transports: their commands run as they stand there, and
what they show is what the program says and writes."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import click
import pytest
import trio

from garlicfarm import __version__
from garlicfarm.admin.health import since
from garlicfarm.cli import cli
from garlicfarm.cli.farm_policy import set_
from garlicfarm.config.model import PRESET_INTERVALS_MS, PRESET_LEASES_MS, PRESETS
from garlicfarm.credentials.member_credentials import read_secret_file, write_secret_file
from garlicfarm.durations import format_ms
from garlicfarm.lab.processes import process_farm
from garlicfarm.levels import BRINGS, HIGHEST, LOWEST, SAYS_NOTHING, cannot_follow
from garlicfarm.plugins import TRANSPORTS, list_plugins
from garlicfarm.setup.i2p_tunnel import Tunnel
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm
from tests.project.pages import ROOT, blocks, environment, page
from tests.setup.test_first_orders import orders
from tests.transports.nginx import LOCATION

ADMINISTER = page("docs/howto/administer.md")
KEYS = "docs/howto/keys.md"
MEMBERS_PAGE = "docs/howto/members.md"
MEMBERS = page(MEMBERS_PAGE)


@pytest.mark.slow
async def test_every_command_of_the_guide_works_on_a_member(tmp_path: Path) -> None:
    environ = {
        name: value for name, value in environment(tmp_path).items() if not name.startswith("GARLICFARM_")
    }
    said, (refused,) = b"", blocks("docs/howto/administer.md", "sh publisher")
    async with process_farm(tmp_path / "farm", 3) as farm:

        async def run(block: str) -> subprocess.CompletedProcess[bytes]:
            with trio.fail_after(240):
                return await trio.run_process(
                    ["bash", "-euo", "pipefail", "-c", block],
                    cwd=farm.nodes[1].directory,
                    env=environ,
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                )

        ready = ["garlicfarm wait --for healthy --timeout 240"]
        followed = [*blocks("docs/howto/administer.md", "sh"), *blocks("docs/howto/upgrade.md", "sh")]
        for block in [*ready, *followed, refused]:
            done = await run(block)
            if b"leads itself" in done.stderr:  # as anybody may: the guide says what to do then
                await run("garlicfarm leader stepdown")
                done = await run(block)
            if block == refused:
                assert (done.returncode, b"nothing was ordered: " in done.stderr) == (1, True), done.stderr
                continue
            assert done.returncode == 0, (block, done.stderr)
            said += done.stdout
        made = (farm.nodes[1].directory / "node-3.toml").read_text()
    assert 'endpoint = "ssl://c.example:27150"' in made
    assert rb"\"admin\":{\"action\":\"weights\"" in said
    assert b"farm farm: healthy, leader" in said


def test_guide_to_upgrades_has_what_each_level_brings_and_what_a_stuck_member_is_told() -> None:
    text = page("docs/howto/upgrade.md")
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| (.*?) ?\|$", text, re.MULTILINE)
    assert [(int(number), brings) for number, brings in rows] == [(LOWEST, ""), *BRINGS.items()]
    assert f"garlicfarm-{__version__}-py3-none-any.whl" in text
    shown = " ".join(blocks("docs/howto/upgrade.md", "text")[-1].split())
    told = cannot_follow(3, SAYS_NOTHING, HIGHEST, "publisher")
    since_ms = 50_524_000
    row = {"id": 3, "error": told, "trouble": told, "trouble_since_ms": since_ms}
    assert shown == f"member 3: {told} ({since(row).strip()})"


def test_table_of_parameters_has_those_of_the_command() -> None:
    names = set(re.findall(r"^\| `([A-Za-z_]+)` \|", ADMINISTER, re.MULTILINE))
    assert names == set(re.findall(r"([A-Za-z_]+)=", set_.help or "")) - {"NAME"}


def test_pages_have_the_parameters_and_timings_of_the_presets(tmp_path: Path) -> None:
    r, lease = {}, {}
    for preset, interval_ms in PRESET_INTERVALS_MS.items():
        plan = FarmPlan(preset=preset, interval_ms=interval_ms, lease_ms=PRESET_LEASES_MS[preset])
        create_farm(tmp_path / preset, {1: MemberPlan(endpoint="ssl://a.example:1")}, plan)
        made = dict(orders(tmp_path / preset / "node-1"))
        r[preset], lease[preset] = made["staleness"]["R"], format_ms(made["lease"]["ms"])
        assert made["lease"]["ms"] == PRESET_LEASES_MS[preset]
    assert f"| `R` | {r['clearnet']}, `i2p` {r['i2p']} |" in ADMINISTER
    assert f"| `lease` | {lease['clearnet']}, `i2p` {lease['i2p']} |" in ADMINISTER
    s = {preset: interval_ms // 1000 for preset, interval_ms in PRESET_INTERVALS_MS.items()}
    assert f"| `interval` | {s['clearnet']}s, `i2p` {s['i2p']}s |" in ADMINISTER
    (i2p, clearnet) = (
        f"{PRESETS[preset]['election_timeout_min_s']:g} to {PRESETS[preset]['election_timeout_max_s']:g} s"
        for preset in ("i2p", "clearnet")
    )
    guide = page("docs/howto/three-machines.md")
    assert f"elections after {i2p} instead of {clearnet}" in guide


def test_commands_of_the_page_make_keys_and_bundles_and_show_what_it_shows(tmp_path: Path) -> None:
    script = "\n".join(["set -eu", *blocks(KEYS, "sh")])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path),
        check=True,
        capture_output=True,
        text=True,
    )
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("bundles*/*")}
    assert made == {
        f"{directory}/site-{node}.bundle" for directory in ("bundles", "bundles-2") for node in (1, 2, 3)
    }
    (shown,) = blocks(KEYS, "text")
    names = [line[:11].strip() for line in shown.splitlines()]
    lines = done.stdout.splitlines()
    at = lines.index("kind         bundle")
    assert [line[:11].strip() for line in lines[at : at + len(names)]] == names
    assert lines[at + 1] == shown.splitlines()[1]
    assert lines[at + 4].split() in (["days", "left", "89"], ["days", "left", "90"])


def test_rotation_makes_the_files_of_each_round(tmp_path: Path) -> None:
    secret_file = tmp_path / "data" / "secrets" / "farm.secret"
    write_secret_file(secret_file, bytes(32))

    def follow(text: str) -> tuple[bytes, ...]:
        subprocess.run(["bash", "-euc", text], cwd=tmp_path, check=True)
        return read_secret_file(secret_file)

    (mint,) = re.findall(r"^```sh\n(.*new\.secret\)\n)^```$", MEMBERS, re.MULTILINE)
    assert follow(mint) == (bytes(32),)
    (new,) = read_secret_file(tmp_path / "new.secret")
    assert follow("".join(blocks(MEMBERS_PAGE, "sh round-1"))) == (bytes(32), new)
    assert follow("".join(blocks(MEMBERS_PAGE, "sh round-2"))) == (new, bytes(32))
    assert follow("".join(blocks(MEMBERS_PAGE, "sh round-3"))) == (new,)
    assert [path.name for path in secret_file.parent.iterdir()] == ["farm.secret"]


@pytest.mark.parametrize("line", re.findall(r"garlicfarm ((?:member|leader|node) [^`\n]*)", MEMBERS))
def test_command_of_the_guide_exists_with_its_options(line: str) -> None:
    words = line.split()
    command: click.Command = cli
    for word in words[:2]:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, line
        command = found
    known = {name for option in command.params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


SAID = re.findall(r"^\| ([^|]+) \| \d \|", MEMBERS.partition("it removes what it made:")[2], re.MULTILINE)


@pytest.mark.parametrize("message", SAID)
def test_message_of_the_guide_is_one_of_the_code(message: str) -> None:
    names = ("credentials/join_token.py", "client/joining.py", "cli/node_join.py", "setup/add_farm.py")
    said = "\n".join((ROOT / "garlicfarm" / name).read_text(encoding="utf-8") for name in names)
    said = re.sub(r'"\s*\n\s*f?"', "", said)
    said = re.sub(r"\{[^{}\n]*\}", "…", said)
    for part in re.split(r" … |, ", message.strip("… ")):
        assert part.strip() in said, part
    assert len(SAID) == 11


@pytest.mark.parametrize("plugin", [info.name for info in list_plugins(TRANSPORTS)])
def test_every_transport_has_a_readme(plugin: str) -> None:
    text = page(f"transports/garlicfarm_transport_{plugin}/README.md")
    assert text.startswith(f"# The transport `{plugin}`")


def test_tunnel_of_the_guide_is_the_one_that_setup_writes() -> None:
    guide = page("docs/howto/farm-over-i2p.md")
    written = Tunnel("garlicfarm-farm", "127.0.0.1", 27150, 27150, "garlicfarm-farm.dat").i2pd()
    assert f"```ini\n{written}```\n" in guide


def test_reverse_proxy_of_the_page_is_the_one_of_the_tests() -> None:
    shown = page("transports/garlicfarm_transport_wss/README.md")
    tried = textwrap.dedent(LOCATION.format(path="/farm", upstream="http://127.0.0.1:27150")).strip()
    assert f"```nginx\n{tried}\n```\n" in shown
