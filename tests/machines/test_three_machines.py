"""The pages on a farm on three machines, followed on three bare Debians.

The machines are roots of Debian's packages, with nothing in them but what the README says to install, and
OpenSSH. Each has a network and processes of its own. The reader's `ssh` and `scp` are the real ones; a file
tells them where the three are, and as whom to log in. pip finds in a directory what an index would give it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MACHINES = Path(__file__).with_name("three_machines.sh")
SUITE, PYTHON = "bookworm", "3.11"
READER = "ann"
HOSTS = {"a.example": "10.77.0.1", "b.example": "10.77.0.2", "c.example": "10.77.0.3"}
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
TIMEOUT_S = 600  # for what takes one minute on a machine that has nothing else to do


def block(page: str, title: str, holding: str) -> str:
    """The block of shell commands in a section of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(rf"^## {re.escape(title)}$", text, flags=re.MULTILINE)[1]
    found = re.findall(r"^```sh\n(.*?)^```$", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return str(next(each for each in found if holding in each))


def packages() -> list[str]:
    """What the README has installed on each of the three."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## A farm on three machines")[2]
    (found,) = re.findall(r"\(Debian: `apt install ([^`]+)`\)", text.partition("\n## ")[0])
    return found.split()


def run(*command: str | Path) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}"


def make_root(base: Path) -> None:
    """A Debian as its installer leaves it, but smaller, with an account for the reader on it."""
    unneeded = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "locale", "man")]
    include = f"--include={','.join(['adduser', 'openssh-server', *packages()])}"
    run("mmdebstrap", "--variant=minbase", "--dpkgopt=force-unsafe-io", *unneeded, include, SUITE, base)
    run("chroot", base, "useradd", "--create-home", "--shell", "/bin/bash", READER)
    (base / "run" / "sshd").mkdir(exist_ok=True)
    with (base / "etc" / "hosts").open("a") as hosts:
        hosts.writelines(f"{address} {name}\n" for name, address in HOSTS.items())
    (base / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = file:///mnt\n")


def let_in(base: Path, key: Path) -> None:
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    for user, home in ((READER, f"home/{READER}"), ("root", "root")):
        run("install", "-d", "-m", "700", base / home / ".ssh")
        run("install", "-m", "600", key.with_suffix(".pub"), base / home / ".ssh" / "authorized_keys")
        run("chroot", base, "chown", "-R", f"{user}:", f"/{home}/.ssh")


def programs(directory: Path, key: Path) -> None:
    """The reader's own: OpenSSH with a configuration, and a `make` that works in the
    project's folder, with the network of this machine."""
    directory.mkdir()
    configuration = directory / "configuration"
    configuration.write_text(
        f"User {READER}\nIdentityFile {key}\nIdentitiesOnly yes\nBatchMode yes\nConnectionAttempts 60\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
        + "".join(f"Host {name}\nHostName {address}\n" for name, address in HOSTS.items())
    )
    for name, command in {
        "ssh": f"{shutil.which('ssh')} -F {configuration}",
        "scp": f"{shutil.which('scp')} -F {configuration}",
        "make": f"nsenter --net=/proc/self/fd/$OUTSIDE {shutil.which('make')} --silent --directory {ROOT}",
    }.items():
        (directory / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (directory / name).chmod(0o755)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What both pages wrote: README's whole block, then how a service is installed on the first machine."""
    directory = tmp_path_factory.mktemp("machines")
    key = directory / "key"
    make_root(directory / "base")
    let_in(directory / "base", key)
    programs(directory / "bin", key)
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    only = ("--only-binary=:all:", "--python-version", PYTHON, "--dest", str(directory / "wheels"))
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", *only, *needed)

    folder = directory / "folder"
    folder.mkdir()
    for name in (".venv", "dist"):
        (folder / name).symlink_to(ROOT / name)
    *commands, last = block("README.md", "A farm on three machines", "farm create").splitlines()
    assert last.endswith("log tail -f'")
    page = "docs/howto/three-machines.md"
    copied, installed = (block(page, "2. Install", holding) for holding in ("scp ", "venv"))
    checked = block(page, "3. Edit the configuration", "config check")
    script = [f"cd {folder}", *commands, f"sed -u '/index/q' < <({last})", "echo @@@", copied]
    unit = "/opt/garlicfarm/bin/garlicfarm node unit --config /var/lib/garlicfarm/node/garlicfarm.toml"
    script += ["ssh root@a.example bash -eu <<'END'", installed, checked, unit, "END"]
    (directory / "script").write_text("\n".join([*script, ""]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GARLICFARM_")}
    with open("/proc/self/ns/net") as outside:
        done = subprocess.run(
            [*NAMESPACES, "bash", MACHINES, directory],
            env=kept | {"OUTSIDE": str(outside.fileno()), "PATH": f"{directory / 'bin'}:{kept['PATH']}"},
            pass_fds=[outside.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.debian
@pytest.mark.timeout(900)
def test_both_pages_lead_to_nodes_on_three_bare_machines(told: str) -> None:
    farm, service = told.split("@@@\n")
    assert farm.count("garlicfarm.toml: ok\n") == 3
    assert re.search(r"^farm farm: leader [123], .* quorum, can lose", farm, re.MULTILINE)
    assert [line.split()[1] for line in farm.splitlines() if re.match(r"[123] +ssl://", line)] == [
        f"ssl://{host}:27150" for host in HOSTS
    ]
    assert '{"index":1,' in farm.splitlines()[-1]
    assert "/var/lib/garlicfarm/node/garlicfarm.toml: ok\n" in service
    assert "User=garlicfarm\n" in service
