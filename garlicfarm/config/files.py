"""Finding and reading configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from garlicfarm.config.convert import Converter, Sources
from garlicfarm.config.environment import override
from garlicfarm.config.model import (
    DISK_TIMEOUT_S,
    PRESET_LEAST_ELECTION_TIMEOUTS_S,
    PRESET_RETIRE_TIMEOUTS_S,
    PRESETS,
    Config,
    Document,
)
from garlicfarm.config.toml import parse_toml
from garlicfarm.config.validators import problems_between_tables
from garlicfarm.durable_files import replace_file
from garlicfarm.errors import ConfigError
from garlicfarm.regular_files import read_text

FILE_NAME = "garlicfarm.toml"


def find_config(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path:
    """The configuration file of this machine's node.

    ``explicit`` (an option), else ``$GARLICFARM_CONFIG``, names the only file. Otherwise it is the first that
    exists of ``./garlicfarm.toml``, ``~/.config/garlicfarm/garlicfarm.toml`` and
    ``/etc/garlicfarm/garlicfarm.toml``. `ConfigError` names the places searched.
    """
    chosen = explicit or (Path(environ["GARLICFARM_CONFIG"]) if environ.get("GARLICFARM_CONFIG") else None)
    if chosen is not None:
        if _is_there(cwd / chosen):
            return cwd / chosen
        origin = "--config" if explicit else "$GARLICFARM_CONFIG"
        raise ConfigError([f"there is no configuration file {cwd / chosen} (given by {origin})"])
    places = [cwd / FILE_NAME]
    if environ.get("HOME"):
        places.append(Path(environ["HOME"]) / ".config" / "garlicfarm" / FILE_NAME)
    places.append(Path("/etc/garlicfarm") / FILE_NAME)
    for place in places:
        if _is_there(place):
            return place
    looked = ", ".join(str(place) for place in places)
    raise ConfigError(
        [
            f"no configuration found (looked for {looked}); run this in a node's directory, or name the file "
            "with --config or $GARLICFARM_CONFIG. `garlicfarm node init` makes a new farm, `garlicfarm node "
            "join` a new member of a farm"
        ]
    )


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError as error:
        raise ConfigError([f"cannot read {path}: {error.strerror}; is this the node's user?"]) from error
    except OSError:
        return False
    return True


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """Read and check a configuration.

    ``environ`` holds the overrides (``GARLICFARM_NODE__ID=3``); {} for none. Raises `ConfigError`
    with all problems of file and environment. Files that it names are not opened.
    """
    path = path.absolute()
    return check(read(path), path, environ)


def check(raw: dict[str, Any], path: Path, environ: Mapping[str, str]) -> Config:
    """A document as the configuration at ``path``; it gets overrides and defaults. Raises as `load`."""
    sources: Sources = {}
    problems = override(raw, environ, sources)
    _fill_defaults(raw, sources)
    converter = Converter(path.parent, sources)
    document = converter.table(Document, raw, "")
    problems += [*converter.problems, *problems_between_tables(raw)]
    if document is None or problems:
        raise ConfigError([f"{path.name}: {problem}" for problem in problems])
    return Config(
        **msgspec.structs.asdict(document),
        path=path,
        base_dir=path.parent,
        origins=tuple(converter.origins),
    )


def read(path: Path) -> dict[str, Any]:
    """The contents of a configuration file, unchecked. `ConfigError`: it cannot be read, or is not TOML."""
    try:
        text = read_text(path)
    except OSError as error:
        raise ConfigError([f"cannot read {path}: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 at byte {error.start}"]) from error
    return parse(text, str(path))


def parse(text: str, what: str) -> dict[str, Any]:
    """A document, unchecked. `ConfigError`: ``what`` is not TOML."""
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError([f"{what}: not TOML: {error}"]) from error


_TIMES = ("election_timeout_min_s", "election_timeout_max_s", "heartbeat_s")


def _fill_defaults(raw: dict[str, Any], sources: Sources) -> None:
    """Fill in the defaults that depend on other values. Wrong types are left to the converter."""
    node = raw.get("node")
    node = node if isinstance(node, dict) else {}
    preset = node.get("preset", "clearnet")
    # An unknown preset is one problem, not five.
    known = preset if isinstance(preset, str) and preset in PRESETS else "clearnet"
    defaults, retire_timeout_s = PRESETS[known], PRESET_RETIRE_TIMEOUTS_S[known]
    farms = raw.get("farm")
    for index, farm in enumerate(farms if isinstance(farms, list) else ()):
        if not isinstance(farm, dict):
            continue
        if "secret_file" not in farm:
            farm["secret_file"] = f"{node.get('data_dir', 'data')}/secrets/{farm.get('name')}.secret"
            sources[f"farm[{index}].secret_file"] = "default"
        publishers = farm.get("publisher")
        for number, table in enumerate(publishers if isinstance(publishers, list) else ()):
            if isinstance(table, dict) and "retire_timeout_s" not in table:
                table["retire_timeout_s"] = retire_timeout_s
                sources[f"farm[{index}].publisher[{number}].retire_timeout_s"] = f"preset {preset}"
        raft = farm.setdefault("raft", {})
        if isinstance(raft, dict):
            for key, value in defaults.items():
                if key not in raft:
                    raft[key] = value
                    sources[f"farm[{index}].raft.{key}"] = f"preset {preset}"
            shortest, longest, heartbeat = times = [raft[key] for key in _TIMES]
            if not all(isinstance(each, int | float) and 0 < each <= 3600 for each in times):
                continue
            if "disk_timeout_s" not in raft and longest > DISK_TIMEOUT_S:
                raft["disk_timeout_s"] = longest
                sources[f"farm[{index}].raft.disk_timeout_s"] = "default"
            if "least_election_timeout_s" not in raft:
                least = PRESET_LEAST_ELECTION_TIMEOUTS_S.get(str(preset), longest)
                is_shorter = least < longest and 2 * heartbeat <= shortest * least / longest
                raft["least_election_timeout_s"] = least if is_shorter else longest
                source = f"preset {preset}" if is_shorter else "default"
                sources[f"farm[{index}].raft.least_election_timeout_s"] = source


def rewrite(path: Path, text: str) -> Config:
    """Replace a configuration file by ``text``, durably, if ``text`` is a valid configuration; returns that.
    Raises `ConfigError`: it is invalid, or cannot be written. Then the file is unchanged."""
    changed = check(parse(text, str(path)), path, {})
    try:
        replace_file(path, [text.encode()], path.stat().st_mode & 0o777)
    except OSError as error:
        raise ConfigError([f"cannot write {path}: {error.strerror}"]) from error
    return changed
