"""Fetches the i2pd of another Debian suite, with the libraries that it needs, to run beside this system's.

    python -m tools.debian_i2pd SUITE DIRECTORY

SUITE: trixie, forky, sid. DIRECTORY gets the unpacked packages, and a program ``i2pd`` for the environment
variable ``I2PD``. Nothing is installed, and root is not needed. apt resolves what i2pd depends on, and checks
what it fetches against the suite's signed list. It needs a Debian, with its keyring.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
FOLDERS = ("archives/partial", "lists/partial", "apt.conf.d", "preferences.d")
DEADLINE_S = 600

STARTER = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")/root
export OPENSSL_MODULES="$here/{libraries}/ossl-modules"
exec "$here/{loader}" --library-path "$here/{libraries}" "$here/usr/bin/i2pd" "$@"
"""


def fetch(suite: str, work: Path) -> list[Path]:
    """The packages. Raises `subprocess.CalledProcessError` where apt refuses, which says why."""
    for folder in FOLDERS:
        (work / folder).mkdir(parents=True)
    (work / "status").touch()  # as if nothing was installed: all that it needs is fetched
    (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n")
    options = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": work / "preferences.d",
        "Dir::State": work,
        "Dir::State::Lists": work / "lists",
        "Dir::State::Status": work / "status",
        "Dir::Cache": work,
        "Dir::Cache::Archives": work / "archives",
        "APT::Sandbox::User": "root",  # the directory is this user's alone
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    for command in (["update"], ["install", "--download-only", "--assume-yes", "i2pd"]):
        subprocess.run(["apt-get", "--quiet=2", *settings, *command], check=True, timeout=DEADLINE_S)
    return sorted((work / "archives").glob("*.deb"))


def unpack(packages: list[Path], root: Path) -> None:
    root.mkdir(parents=True)
    for package in packages:
        subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)


def make(suite: str, work: Path) -> str:
    """Fetch and unpack it into ``work``/made; what it says of itself."""
    made = work / "made"
    root = made / "root"
    unpack(fetch(suite, work), root)
    (libc,) = root.glob("usr/lib/*/libc.so.6")
    (loader,) = root.glob("usr/lib*/ld-linux*.so.*")
    libraries = libc.parent.relative_to(root)
    starter = made / "i2pd"
    starter.write_text(STARTER.format(libraries=libraries, loader=loader.relative_to(root)))
    starter.chmod(0o755)
    told = subprocess.run([str(starter), "--version"], capture_output=True, text=True, check=True).stdout
    return told.partition("\n")[0]


def main(suite: str, directory: Path) -> str:
    if not Path(KEYRING).exists() or shutil.which("apt-get") is None:
        return f"skipped: this is no Debian: apt-get, or {KEYRING}, is missing"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as work:
        try:
            version = make(suite, Path(work))
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            return f"skipped: the i2pd of Debian {suite} cannot be fetched: {error}"
        shutil.rmtree(directory, ignore_errors=True)
        (Path(work) / "made").rename(directory)
    return f"{directory / 'i2pd'}: {version}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(main(sys.argv[1], Path(sys.argv[2]).absolute()))
