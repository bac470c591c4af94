"""The file of `garlicfarm doctor --bundle`: what a report of a defect needs, without secrets.

All that goes in is text. Whatever equals a secret of the node is taken out: the contents, also as base64 or
hexadecimal, of each file in the data directory or named in the configuration that only its owner may read.
"""

from __future__ import annotations

import io
import json
import platform
import sys
import tarfile
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from garlicfarm import __version__, revision
from garlicfarm.config import Config
from garlicfarm.i2p.encoding import encode

REMOVED = "[removed]"
MAX_SECRET_BYTES = 64 << 10
"""A larger file is no key: a store's, or a log."""
MAX_LOG_BYTES = 4 << 20
MIN_SECRET_CHARACTERS = 8
"""A shorter line of a file would take much out that is none."""
_NO_SECRETS = {"farms", "admin.url", "node.json"}
"""What else is private in the data directory: stores, and what anybody may know."""


def write_bundle(path: Path, config: Config, parts: Mapping[str, Any], log: Path | None) -> list[str]:
    """Write a new archive of what describes this node; the names of the files in it.

    :param parts: by name: text, or what becomes JSON.
    :param log: a file whose end goes in, too.
    :raises OSError: ``path`` exists already, or cannot be written, or ``log`` cannot be read.
    """
    files = {
        "versions.json": _json(_versions()),
        "configuration.json": _json({each.key: each.value for each in config.effective()}),
        "files.txt": "".join(f"{line}\n" for line in _listing(config.node.data_dir)),
        **{name: part if isinstance(part, str) else _json(part) for name, part in parts.items()},
    }
    if log is not None:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - MAX_LOG_BYTES))
            files["node.log"] = file.read(MAX_LOG_BYTES).decode(errors="replace")
    secrets = sorted(set(_secrets(config)), key=len, reverse=True)
    with path.open("xb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        path.chmod(0o600)
        for name, text in sorted(files.items()):
            for secret in secrets:
                text = text.replace(secret, REMOVED)
            content = text.encode()
            member = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return sorted(files)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _versions() -> dict[str, Any]:
    installed = sorted((each.name, each.version) for each in distributions() if each.name)
    return {
        "garlicfarm": f"{__version__} ({revision() or 'unknown commit'})",
        "python": sys.version,
        "platform": platform.platform(),
        "distributions": dict(installed),
    }


def _listing(directory: Path) -> Iterator[str]:
    """Mode, size and name of each file, as ``ls -l`` has it."""
    for path in sorted(directory.rglob("*")):
        with suppress(OSError):
            status = path.lstat()
            yield f"{status.st_mode:o} {status.st_uid} {status.st_size:>12} {path.relative_to(directory)}"


def _secrets(config: Config) -> Iterator[str]:
    named = {
        config.base_dir / value
        for each in config.effective()
        for value in _texts(each.value)
        if len(value) < 4096 and "\0" not in value
    }
    data = config.node.data_dir
    kept = {path for path in data.rglob("*") if path.relative_to(data).parts[0] not in _NO_SECRETS}
    for path in named | kept:
        with suppress(OSError):
            status = path.stat()
            is_private = path.is_file() and not status.st_mode & 0o077
            if is_private and status.st_size <= MAX_SECRET_BYTES:
                yield from _forms(path.read_bytes())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _forms(content: bytes) -> Iterator[str]:
    """How a secret may stand in a text."""
    stripped = content.strip()
    if len(stripped) >= MIN_SECRET_CHARACTERS:
        yield from (stripped.hex(), b64encode(stripped).decode(), urlsafe_b64encode(stripped).decode())
        yield encode(stripped)
    with suppress(UnicodeDecodeError):
        for line in stripped.decode().splitlines():
            for word in (line.strip(), *line.replace(":", " ").split()):
                if len(word) >= MIN_SECRET_CHARACTERS:
                    yield word
