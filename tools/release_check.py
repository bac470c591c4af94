"""Whether a release can be made of the commit that is checked out: `make release-check`.

Everything is tried on copies of what is committed, in a temporary directory; nothing is published or written
into the tree. Every problem is named, then the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from garlicfarm import __version__

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 600.0


class Failed(Exception):
    """A command that did not end with 0, and what it said last."""


def run(*command: str | Path, cwd: Path = ROOT, revision: str = "") -> str:
    """What ``command`` wrote to stdout. Raises `Failed` where it fails or takes more than `TIMEOUT_S`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GARLICFARM_", "MAKE"))}
    try:
        done = subprocess.run(
            [str(each) for each in command],
            cwd=cwd,
            env=kept | {"GARLICFARM_REVISION": revision},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{command[0]} took more than {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise Failed(f"{' '.join(map(str, command[:4]))} … ended with {done.returncode}: {' / '.join(said)}")
    return done.stdout


def changelog_problems(version: str, text: str) -> Iterator[str]:
    """What the newest section of the changelog lacks to be that of ``version``, released."""
    newest = re.search(r"^## (.*)$", text, re.MULTILINE)
    title = newest[1] if newest else ""
    if title.split(" ")[0] != version:
        yield f"CHANGELOG.md begins with {title!r}, and garlicfarm/_version.py says {version}"
    elif re.fullmatch(r"\S+ \(\d{4}-\d\d-\d\d\)", title) is None:
        yield f"CHANGELOG.md has {title!r}; a release has its date there: ## {version} (YYYY-MM-DD)"


def tree_problems(status: str) -> Iterator[str]:
    """``status`` is what `git status --porcelain` prints."""
    if status:
        yield f"the tree has changes that are not committed: {', '.join(status.splitlines()[:5])}"


def found(pythons: list[str]) -> list[str]:
    """Those that can make a virtual environment here."""
    can = []
    for python in pythons:
        if shutil.which(python) is not None:
            try:
                run(python, "-c", "import ensurepip, venv")
            except Failed:  # such as a shim of a version that is not installed
                continue
            can.append(python)
    return can


def pip(python: Path | str, *arguments: str | Path, revision: str = "") -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments, revision=revision)


def only_file(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def build_twice(scratch: Path) -> tuple[Path, Path, list[str]]:
    """Wheel and source distribution, from two copies of what is committed; the wheel also from the source
    distribution. pip builds wheels as it does for users: with what it downloads."""
    revision = run("git", "rev-parse", "--short=12", "HEAD").strip()
    archive = scratch / "committed.tar"
    run("git", "archive", "--output", archive, "HEAD")
    wheels, sdists = [], []
    for name in ("first", "second"):
        copy = scratch / name
        shutil.unpack_archive(archive, copy, filter="data")
        sdist, wheel = scratch / f"sdist-{name}", scratch / f"wheel-{name}"
        built = (sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", sdist)
        run(*built, cwd=copy, revision=revision)
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", wheel, copy, revision=revision)
        sdists.append(only_file(sdist))
        wheels.append(only_file(wheel))
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", scratch / "wheel-of-sdist", sdists[0])
    wheels.append(only_file(scratch / "wheel-of-sdist"))
    problems = []
    for what, paths in (("wheels", wheels), ("source distributions", sdists)):
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
        print(f"{digests[0]}  {paths[0].name}")
        if len(set(digests)) != 1:
            problems.append(f"{what} that were built of the same commit differ: {', '.join(digests)}")
    return wheels[0], sdists[0], problems


def try_on(python: str, wheel: Path, scratch: Path) -> None:
    """Installs the wheel as a user does, and has a farm elect a leader and name a publisher."""
    environment = scratch / f"on-{Path(python).name}"
    run(python, "-m", "venv", environment)
    pip(environment / "bin/python", "install", wheel)
    pip(environment / "bin/python", "check")
    command = environment / "bin/garlicfarm"
    said = run(command, "--version", cwd=scratch)
    if said.split()[:2] != ["garlicfarm", __version__]:
        raise Failed(f"garlicfarm --version says {said!r}")
    run(command, "lab", "--until", "publisher", "--timeout", "300s", cwd=scratch)


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether a release can be made of what is committed.")
    parser.add_argument("pythons", nargs="+", help="commands of Python; those that are found are tried")
    pythons = parser.parse_args().pythons
    problems = [
        *changelog_problems(__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")),
        *tree_problems(run("git", "status", "--porcelain")),
    ]
    usable = found(pythons)
    if not usable:
        problems.append(f"none of {', '.join(pythons)} is found here")
    with TemporaryDirectory(prefix="garlicfarm-release-") as directory:
        scratch = Path(directory)
        try:
            wheel, sdist, differing = build_twice(scratch)
            problems += differing
            run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        except Failed as error:
            problems.append(str(error))
        else:
            for python in usable:
                try:
                    try_on(python, wheel, scratch)
                    print(f"{python}: installed, and a farm named a publisher", flush=True)
                except Failed as error:
                    problems.append(f"{python}: {error}")
    if missing := set(pythons) - set(usable):
        print(f"not found, so not tried: {', '.join(sorted(missing))}")
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
