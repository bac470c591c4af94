from __future__ import annotations

import os
import subprocess
from pathlib import Path

from garlicfarm.lab.i2pd import PACKAGES

SCRIPT = Path(__file__).parents[2] / "tools" / "debs.sh"


def test_debs_for_an_ordinary_user_prints_the_packages_and_installs_nothing(tmp_path: Path) -> None:
    for program, body in {"id": "echo 1000", "apt-get": "echo called >&2; exit 9"}.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / program).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for arguments, packages in ((), set(PACKAGES.values())), (("bench",), {"etcd-server", "golang-go"}):
        command = ["sh", str(SCRIPT), *arguments]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert packages <= set(ended.stdout.split())
        assert "called" not in ended.stderr
        assert "root" in ended.stderr
