"""The pages about Dafka say what the code does, and the commands of the guide run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from garlicfarm_plugin_dafka.codec import Command
from garlicfarm_plugin_dafka.keys import MAY_SEND, MAY_SUBSCRIBE, Role, read_known_peers
from tests.project.test_docs_commands import ROOT, blocks, environment

REFERENCE = ROOT / "docs" / "reference" / "dafka.md"
PLUGIN = ROOT / "plugins" / "garlicfarm_plugin_dafka"


def rows(first: str) -> list[list[str]]:
    """The rows of the table whose heading begins so."""
    table = REFERENCE.read_text(encoding="utf-8").partition(f"| {first} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def wire_name(command: type) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", command.__name__).upper()


def test_reference_has_every_command_with_its_id():
    shown = {name: identifier.strip("`") for name, identifier, *_ in rows("command")}
    assert shown == {wire_name(command): command.id.decode() for command in Command.__args__}


def test_reference_has_every_role_with_what_it_may():
    shown = {
        cells[0].strip("`"): [set(filter(None, cell.split(", "))) for cell in cells[1:]]
        for cells in rows("role")
    }
    assert shown.pop(Role.TOWER.value) == [{"beacons of others"}, set()]
    assert shown == {
        role.value: [{*map(wire_name, MAY_SEND[role])}, {*map(wire_name, MAY_SUBSCRIBE[role])}]
        for role in Role
        if role is not Role.TOWER
    }


def test_reference_has_every_reason_for_which_something_is_dropped():
    said = {
        reason
        for name in ("codec", "beacons", "inbox", "outbox", "mesh", "tower")
        for reason in re.findall(
            r'(?:RemoteProtocolError\(|_on_dropped\(|self\.dropped\[)"([^"]+)"',
            (PLUGIN / f"{name}.py").read_text(encoding="utf-8"),
        )
    }
    shown = [reason for cells in rows("reason") for reason in re.findall("`([^`]+)`", cells[0])]
    assert sorted(shown) == sorted(said)


def test_keys_of_the_guide_are_known_peers(tmp_path: Path):
    (block,) = [block for block in blocks("docs/howto/dafka.md", "sh") if "keys create" in block]
    subprocess.run(["bash", "-ec", block], cwd=tmp_path, env=environment(tmp_path), check=True, timeout=120)
    known = read_known_peers(tmp_path / "peers.toml").values()
    assert {peer.name for peer in known} == {file.stem for file in tmp_path.glob("*.key")}
    assert {role for peer in known for role in peer.roles} == {*Role}
