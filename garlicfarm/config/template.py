"""One configuration for many nodes: exported without the values of one node, imported with those of another.

A template is a configuration file without `OWN`, the values that differ between nodes. A configuration has no
secrets (each is in a file of its own, ``*_file``), but a third party's plugin may have one in its table:
passwords, secrets and tokens there are left out, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from garlicfarm.config.convert import join
from garlicfarm.config.environment import NoSuchKey, assign, override
from garlicfarm.config.files import FILE_NAME, check, load, parse, read
from garlicfarm.config.toml import to_toml
from garlicfarm.errors import ConfigError
from garlicfarm.printable import printable

OWN = re.compile(
    r"node\.id|farm\[\d+\]\.(endpoint|raft\.priority|leaf\[\d+\]\.destination)|notify\[\d+\]\.url"
)
"""Keys of values that no two nodes share, and of URLs that may be secrets."""

_PLUGINS = re.compile(r"(?s)transport\..+|farm\[\d+\]\.(router|publisher\[\d+\]|feed\[\d+\])\..+")
_SECRET = re.compile(r"password|passphrase|secret|token", re.IGNORECASE)


def export(path: Path, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """A node's configuration as a template, and the keys that were left out.

    It includes the overrides in ``environ``; relative paths stay relative. Raises `ConfigError` as `load`.
    """
    load(path, environ)
    raw = read(path)
    override(raw, environ, {})
    left_out: list[str] = []
    _strip(raw, "", left_out)
    head = [
        "# A template: `garlicfarm config import` makes the configuration of one node of it.",
        *(f"# left out: {key}" for key in left_out),
    ]
    return "\n".join([*head, to_toml(raw)]), left_out


def fill(template: str, settings: Sequence[tuple[str, str]]) -> str:
    """A node's configuration file: the template with ``settings``, key and value, the key as
    ``node.id``, ``farm[0].endpoint`` or ``farm.NAME.endpoint``, the value as in the environment.

    Raises `ConfigError` with all problems of the template, a key or the result.
    """
    raw = parse(template, "the template")
    problems = []
    for key, text in settings:
        try:
            assign(raw, key, text)
        except NoSuchKey as error:
            problems.append(f"--set {key}: {error}")
    if problems:
        raise ConfigError(problems)
    filled = to_toml(raw)
    check(raw, Path(FILE_NAME), {})
    return filled


def _strip(raw: Any, key: str, left_out: list[str]) -> None:
    if isinstance(raw, list):
        for index, item in enumerate(raw):
            _strip(item, f"{key}[{index}]", left_out)
    elif isinstance(raw, dict):
        for name in [*raw]:
            inner = join(key, name)
            secret = _PLUGINS.fullmatch(inner) and _SECRET.search(name) and not name.endswith("_file")
            if OWN.fullmatch(inner) or secret:
                del raw[name]
                left_out.append(printable(inner))  # it stays in its comment
            else:
                _strip(raw[name], inner, left_out)
