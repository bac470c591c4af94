"""The Debian package on a bare Debian without a network: installed, upgraded under a node's data, purged."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from garlicfarm import __version__

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1200  # for what takes a minute or two on a machine that has nothing else to do
MACHINE = ("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "chroot")
AS_ROOT = """
mount -t proc proc /proc
ip link set lo up
export DEBIAN_FRONTEND=noninteractive
"""
LIVES = """
dpkg --install /packages/first.deb
garlicfarm --version
test "$(stat -c '%U %a' /var/lib/garlicfarm)" = 'garlicfarm 750'
! garlicfarm config check
as_node() { runuser -u garlicfarm -- "$@"; }
as_node garlicfarm node init --host 127.0.0.1 /var/lib/garlicfarm/node
as_node sh -c 'garlicfarm node start >/tmp/node.log 2>&1 & echo $! >/tmp/node.pid'
garlicfarm wait --for leader --timeout 300s
dpkg --install /packages/second.deb
dpkg-query --show --showformat '${Version}\\n' garlicfarm
garlicfarm status -o json | grep '"schema"'
garlicfarm config check
kill "$(cat /tmp/node.pid)"
tail --pid="$(cat /tmp/node.pid)" -f /dev/null
ls -l /etc/garlicfarm /usr/share/man/man1/garlicfarm.1.gz /usr/lib/systemd/system/garlicfarm.service
dpkg --purge garlicfarm
echo @@@
ls -d /opt/garlicfarm /usr/bin/garlicfarm /etc/garlicfarm /usr/lib/systemd/system/garlicfarm.service || true
ls /var/lib/garlicfarm/node
rm -r /var/lib/garlicfarm/node
dpkg --install /packages/second.deb
dpkg --purge garlicfarm
! getent passwd garlicfarm
! ls /var/lib/garlicfarm
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


def packages(directory: Path) -> None:
    """The package, and its next revision, in which nothing else differs."""
    run("sh", "tools/deb.sh", "1", directory / "built")
    (built,) = (directory / "built").iterdir()
    run("dpkg-deb", "--raw-extract", built, directory / "raw")
    control = directory / "raw" / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(f"{__version__}-1\n", f"{__version__}-2\n"))
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", directory / "raw", directory / "second.deb")
    built.rename(directory / "first.deb")


@pytest.mark.slow
@pytest.mark.debian
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_package_is_installed_upgraded_and_purged_without_a_network(tmp_path: Path) -> None:
    codename = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
    assert codename is not None
    machine = tmp_path / "machine"
    include = "--include=python3,adduser,iproute2"
    run("mmdebstrap", "--variant=minbase", "--dpkgopt=force-unsafe-io", include, codename[1], machine)
    (machine / "packages").mkdir()
    packages(tmp_path)
    for name in ("first.deb", "second.deb"):
        shutil.copy(tmp_path / name, machine / "packages")
    said = run(*MACHINE, machine, "bash", "-eux", "-o", "pipefail", "-c", AS_ROOT + LIVES)
    before, after = said.split("\n@@@\n")
    assert f"\ngarlicfarm {__version__}" in before
    assert f"\n{__version__}-2\n" in before
    assert "/var/lib/garlicfarm and its owner are left, since a node is in there" in before
    missing = re.findall(r"cannot access '([^']+)'", after)
    assert missing[:4] == [
        "/opt/garlicfarm",
        "/usr/bin/garlicfarm",
        "/etc/garlicfarm",
        "/usr/lib/systemd/system/garlicfarm.service",
    ]
    assert "\ngarlicfarm.toml\n" in after
