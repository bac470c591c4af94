"""Puts the commit that a distribution is made from into it, for hatchling (pyproject.toml).

The environment variable GARLICFARM_REVISION names it where there is no checkout, as in the image of
`Dockerfile`. Nothing is written into the source tree.
"""

from __future__ import annotations

import os
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INSIDE = "garlicfarm/_revision.txt"
_ALLOWED = r"[0-9A-Za-z.+~_-]{1,64}"


def _checked_out(root: Path) -> str:
    """What the package itself says, which is not installed where it is built."""
    spec = spec_from_file_location("version", root / "garlicfarm" / "_version.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.revision())


class RevisionHook(BuildHookInterface[Any]):
    """Adds the file that `garlicfarm._version.revision` reads, if the commit is known."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the checkout itself says what is checked out
            return
        if Path(self.root, INSIDE).exists():  # in an unpacked source distribution, which brings it along
            return
        revision = os.environ.get("GARLICFARM_REVISION") or _checked_out(Path(self.root))
        if not revision:
            return
        if re.fullmatch(_ALLOWED, revision) is None:
            raise ValueError(f"GARLICFARM_REVISION is {revision!r}; it must be like {_ALLOWED}")
        self._directory = TemporaryDirectory()
        written = Path(self._directory.name, "revision")
        written.write_text(f"{revision}\n", encoding="ascii")
        build_data["force_include"][str(written)] = INSIDE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_directory"):
            self._directory.cleanup()
