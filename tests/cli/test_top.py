"""`garlicfarm top` on a terminal of its own, beside a real node."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from garlicfarm.setup.provision import MemberPlan, create_node
from tests.cli.served import Cli
from tests.running import running, until

ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def test_pipe_is_told_what_to_do_in_its_place(cli: Cli) -> None:
    assert "garlicfarm status --watch -o jsonl" in cli("top", exits=2).err


@pytest.mark.slow
def test_farm_fills_the_terminal_until_an_interrupt(tmp_path: Path, cli: Cli) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        url = f"ssl://127.0.0.1:{free.getsockname()[1]}"
    create_node(tmp_path / "node", 1, MemberPlan(endpoint=url, listen=url, admin_url="https://127.0.0.1:0"))
    config = str(tmp_path / "node" / "garlicfarm.toml")
    garlicfarm = [sys.executable, "-m", "garlicfarm"]
    with running([*garlicfarm, "node", "start", "--config", config]) as node:
        until((tmp_path / "node/data/admin.url").exists, node)
        cli("wait", "--for", "leader", "--timeout", "4m", "--config", config)
        ours, its = os.openpty()
        with closing(os.fdopen(ours, "rb", buffering=0)) as screen:
            environ = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
            top = subprocess.Popen(
                [*garlicfarm, "top", "--config", config], stdin=its, stdout=its, stderr=its, env=environ
            )
            os.close(its)
            shown = b""
            while b"Ctrl-C ends this" not in shown:
                shown = ESCAPES.sub(b"", shown + screen.read(4096))
            assert b"leader 1" in shown
            assert url.encode()[:12] in shown
            top.send_signal(signal.SIGINT)
            assert top.wait(240) == 130
