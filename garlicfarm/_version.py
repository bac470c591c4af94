"""Which program this is: its version, and the commit that it was made from."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.3.0"

SHOWN_DIGITS = 12


@cache
def revision() -> str:
    """The commit that this program was made from, as its first 12 digits or as its packager named it; "" if
    it is not known. In a checkout, the commit that is checked out there."""
    import re  # every process imports this module, and few need to know
    from pathlib import Path

    package = Path(__file__).parent
    try:
        return _line(package / "_revision.txt")  # in a wheel or source distribution: tools/build_hook.py
    except FileNotFoundError:
        pass
    try:
        commit = _checked_out(package.parent / ".git")
    except (OSError, UnicodeDecodeError):
        return ""
    return commit[:SHOWN_DIGITS] if re.fullmatch("[0-9a-f]{40,64}", commit) else ""


def _checked_out(git: Path) -> str:
    """The commit of ``.git``: a directory, or a file that names that of a worktree or submodule."""
    if git.is_file():
        git = git.parent / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    head = _line(git / "HEAD")
    if not head.startswith("ref: "):
        return head
    ref = head.removeprefix("ref: ")
    common = git / _line(git / "commondir") if (git / "commondir").is_file() else git
    if (common / ref).is_file():
        return _line(common / ref)
    for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def _line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
