"""The release that an upgrade begins with, 0.2.0, built from this repository's own history.

``python -m tests.upgrade.baseline`` prints where its wheel is, and builds it first where there is none.
Nothing is downloaded: the commit comes from git's history, hatchling from this environment. The wheel is kept
in `CACHE`, in a directory named by the commit, with its SHA-256 in a file beside it; one that does not match
is built anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.upgrade.programs import ROOT, Program

BASELINE = "18b24fda355876043d534f6970e6c5b20633244a"
VERSION = "0.2.0"
CACHE = ROOT / ".baseline"


def why_unavailable() -> str | None:
    """Why the baseline cannot be built here; None if it can."""
    try:
        found = _git("cat-file", "-t", BASELINE)
    except FileNotFoundError:
        return "git is not installed, and the release before is built from its history"
    if found.returncode:
        [reason, *_] = found.stderr.decode(errors="replace").splitlines() or ["git does not say why"]
        return f"{BASELINE[:12]} ({VERSION}) is not in git's history here: git fetch --unshallow ({reason})"
    return None


def baseline_wheel(cache: Path = CACHE) -> Path:
    """The wheel of the baseline in ``cache``; says on stdout where it has to be built, and why."""
    cache.mkdir(exist_ok=True)
    kept = cache / BASELINE
    with _turn(cache):
        problem = _problem(kept)
        if problem is not None:
            print(f"{VERSION} ({BASELINE[:12]}) is built: {problem}", flush=True)
            _build(kept)
        (wheel,) = kept.glob("*.whl")
    return wheel


def install(wheel: Path, directory: Path) -> Program:
    """Unpack a wheel into ``directory``, which must not exist; the program in it has the dependencies of this
    environment."""
    _pip("install", "--no-index", "--no-deps", "--target", str(directory), str(wheel))
    return Program(VERSION, directory)


def _problem(kept: Path) -> str | None:
    """Why there is no usable wheel in ``kept``, None if there is one."""
    wheels = [*kept.glob("*.whl")]
    if len(wheels) != 1:
        return "no wheel of it is kept here yet"
    try:
        noted = _checksum_file(wheels[0]).read_text()
    except OSError as error:
        return f"{wheels[0]} has no checksum beside it ({error.strerror})"
    found = _checksum(wheels[0])
    return None if noted == found else f"{wheels[0]} is damaged: its SHA-256 is {found[:16]}…, not as noted"


def _build(kept: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="part-", dir=kept.parent) as scratch:
        source, made = Path(scratch, "source"), Path(scratch, "made")
        archive = _git("archive", "--format=zip", BASELINE)
        archive.check_returncode()
        with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
            files.extractall(source)
        _pip(
            "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(made), str(source)
        )
        (wheel,) = made.glob(f"garlicfarm-{VERSION}-*.whl")
        _checksum_file(wheel).write_text(_checksum(wheel))
        if kept.exists():
            kept.rename(Path(scratch, "damaged"))
        made.rename(kept)


@contextmanager
def _turn(cache: Path) -> Iterator[None]:
    """Two workers do not build it at the same time."""
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _checksum_file(wheel: Path) -> Path:
    return wheel.with_suffix(".sha256")


def _checksum(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    reason = why_unavailable()
    print(f"skipped: {reason}" if reason else f"{VERSION}: {baseline_wheel()}")
