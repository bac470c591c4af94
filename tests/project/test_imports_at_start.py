"""What the commands that run most often import: what they do not need costs them more than what they do.

Judged by the modules that a process has imported, not by time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from garlicfarm.lab.processes import FAST, process_farm
from garlicfarm.setup.provision import FarmPlan

NODE = """
import os, signal, sys
from pathlib import Path
from garlicfarm.node.node import Node

write = Node._write_admin_url

def noted(node):
    (node.config.node.data_dir / "modules").write_text("\\n".join(sys.modules))
    write(node)

Node._write_admin_url = noted
from garlicfarm.cli import main
main(["node", "start", *sys.argv[1:]])
"""
COMMAND = """
import sys
from garlicfarm.cli import run
assert run(sys.argv[1:]) == 0
print("modules:", *sys.modules)
"""
OF_LATER_PYTHONS = 8 if sys.version_info >= (3, 14) else 0
"""The standard library has become more modules."""
FOR_PAGES = {"starlette", "jinja2", "wsproto", "asyncio", "anyio"}
FOR_KEYS = {"cryptography"}
FOR_COMMANDS = {"rich", "httpx", "httpcore", "pygments"}
NOT_FOR_STATUS = {"httpx", "rich", "pygments", "starlette", "jinja2", "cryptography", "sqlite3", "asyncio"}


def modules_of(*arguments: str) -> set[str]:
    """What a command has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, check=True, timeout=240
    )
    return {*done.stdout.splitlines()[-1].split()[1:]}


@pytest.mark.parametrize("command", ["status", "log post", "log tail", "node start", "node join"])
def test_help_of_a_command_imports_neither_trio_nor_a_client(command: str) -> None:
    imported = modules_of(*command.split(), "--help")
    assert imported & ({"trio", "msgspec", "sqlite3", "ssl"} | FOR_PAGES | FOR_KEYS | FOR_COMMANDS) == set()
    assert len(imported) < 150 + OF_LATER_PYTHONS


async def test_node_serves_before_it_imports_pages_and_keys(tmp_path: Path) -> None:
    plan = FarmPlan(raft=FAST)
    async with process_farm(tmp_path / "farm", 1, plan, command=(sys.executable, "-c", NODE)) as farm:
        imported = {*(farm.nodes[1].directory / "data" / "modules").read_text().split()}
        async with farm.nodes[1].client() as client:
            assert [row["name"] for row in await client.farms()] == [farm.name]  # which it imports now
    assert {"garlicfarm.node.node", "garlicfarm_transport_ssl", "trio"} <= imported
    assert imported & (FOR_PAGES | FOR_KEYS | FOR_COMMANDS) == set()
    assert len(imported) < 576 + OF_LATER_PYTHONS


async def test_status_imports_no_more_of_http_than_it_needs(tmp_path: Path) -> None:
    async with process_farm(tmp_path / "farm", 1, FarmPlan(raft=FAST)) as farm:
        config = str(farm.nodes[1].directory / "garlicfarm.toml")
        imported = await trio.to_thread.run_sync(modules_of, "status", "--config", config)
    assert {"trio", "httpcore"} <= imported
    assert imported & NOT_FOR_STATUS == set()
    assert not [name for name in imported if name.startswith(("garlicfarm.raft", "garlicfarm.node"))]
    assert len(imported) < 420 + OF_LATER_PYTHONS
