"""The pages about Dafka say what the code does, and the commands of the guide run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from garlicfarm_plugin_dafka import Retention, open_consumer, open_producer, open_store
from garlicfarm_plugin_dafka.codec import Command
from garlicfarm_plugin_dafka.keys import MAY_SEND, MAY_SUBSCRIBE, PeerRole, read_known_peers
from tests.dafka.meshes import plain_tower
from tests.project.pages import ROOT, blocks, environment, page, table

HOWTO = "docs/howto/dafka.md"
DEADLINE_S = 120.0  # ends what hangs
PLUGIN = ROOT / "plugins" / "garlicfarm_plugin_dafka"


def rows(first: str) -> list[list[str]]:
    """The rows of the table whose heading begins so."""
    return table(page("docs/reference/dafka.md"), f"{first} \\|")


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
    assert shown.pop(PeerRole.TOWER.value) == [{"beacons of others"}, set()]
    assert shown == {
        role.value: [{*map(wire_name, MAY_SEND[role])}, {*map(wire_name, MAY_SUBSCRIBE[role])}]
        for role in PeerRole
        if role is not PeerRole.TOWER
    }


def test_reference_has_every_reason_for_which_something_is_dropped():
    said = {
        reason
        for name in ("codec", "beacons", "entrance", "inbox", "outbox", "mesh", "tower")
        for reason in re.findall(
            r'(?:RemoteProtocolError\(|_on_dropped\(|\b_?dropped\[|_drop\(|close\([^"\n]*)"([^"]+)"',
            (PLUGIN / f"{name}.py").read_text(encoding="utf-8"),
        )
    }
    shown = [reason for cells in rows("reason") for reason in re.findall("`([^`]+)`", cells[0])]
    assert sorted(shown) == sorted(said)


def test_reference_has_every_reason_for_which_a_role_drops_a_command():
    said = {
        reason
        for path in PLUGIN.glob("*_core.py")
        for reason in re.findall(r'self\.dropped\["([^"]+)"', path.read_text(encoding="utf-8"))
    }
    shown = [reason for cells in rows("reason of a role") for reason in re.findall("`([^`]+)`", cells[0])]
    assert sorted(shown) == sorted(said)


def test_reference_has_the_signatures_of_the_functions():
    shown = {cells[0].strip("`").partition("(")[0]: cells[0].strip("`") for cells in rows("function")}
    for function in (open_producer, open_consumer, open_store):
        told = [
            parameter.name
            if parameter.default is parameter.empty
            else f"{parameter.name}={_written(parameter.default)}"
            for parameter in inspect.signature(function).parameters.values()
        ]
        assert shown[function.__name__].replace("*, ", "") == (
            f"{function.__name__}({', '.join(told)})".replace("_000", "000")
        )


def _written(default: object) -> str:
    if isinstance(default, Path | Retention):
        return f"{type(default).__name__.removeprefix('Posix')}()"
    return repr(default).replace("'", '"')


async def test_commands_and_the_program_of_the_guide_run(tmp_path: Path):
    scripts = blocks(HOWTO, "sh setup") + blocks(HOWTO, "sh")
    setup, produce, consume, again = [script for script in scripts if "readings" in script]
    (shown,) = blocks(HOWTO, "json")
    (program,) = blocks(HOWTO, "python")
    (promised,) = re.findall("`(3 records in .*)`", (ROOT / HOWTO).read_text(encoding="utf-8"))
    async with plain_tower() as tower, trio.open_nursery() as nursery:
        url = str(tower.endpoint)

        def process(script: str) -> Callable[..., Awaitable[Any]]:
            script = re.sub("dafka (?:store|produce|consume)", rf"\g<0> --tower '{url}'", script)
            command = ["bash", "-ec", script]
            return partial(trio.run_process, command, cwd=tmp_path, env=environment(tmp_path))

        async def output(script: str) -> str:
            done = await process(script)(capture_stdout=True, capture_stderr=True)
            return (done.stdout + done.stderr).decode()

        nursery.start_soon(process(f"exec {setup}"))
        with trio.fail_after(DEADLINE_S):
            said = await output(produce)
            assert re.fullmatch(promised.replace("1A6F…", "[0-9A-F]{32}"), said.strip())
            assert re.sub("[0-9A-F]{32}", "1A6F…", await output(consume)) == shown
            assert re.fullmatch("1 record in partition [0-9A-F]{32}, 1 saved", (await output(again)).strip())
            (tmp_path / "program.py").write_text(program.replace("tcp://127.0.0.1:5556", url))
            reading = await nursery.start(
                partial(process(f"exec {sys.executable} -u program.py"), stdout=subprocess.PIPE)
            )
            read = b""
            while read.count(b"\n") < 7:  # those of the commands, and its own
                read += await reading.stdout.receive_some()
        assert re.fullmatch(rb"(readings [0-9A-F]{32} [0-2] b'21\.[4567]'\n){7}", read)
        nursery.cancel_scope.cancel()


def test_keys_of_the_guide_are_known_peers(tmp_path: Path):
    (block,) = [block for block in blocks("docs/howto/dafka.md", "sh") if "keys create" in block]
    subprocess.run(["bash", "-ec", block], cwd=tmp_path, env=environment(tmp_path), check=True, timeout=120)
    known = read_known_peers(tmp_path / "peers.toml").values()
    assert {peer.name for peer in known} == {file.stem for file in tmp_path.glob("*.key")}
    assert {role for peer in known for role in peer.roles} == {*PeerRole}
