"""Changing a configuration file from a command."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from garlicfarm.config.files import load
from garlicfarm.config.model import Config
from garlicfarm.durable_files import replace_file
from garlicfarm.errors import ConfigError

__all__ = ["rewrite"]


def rewrite(path: Path, text: str) -> Config:
    """Replace a configuration file by ``text``, durably, if ``text`` is a valid configuration; returns that.
    Raises `ConfigError`: it is invalid, or cannot be written. Then the file is unchanged."""
    try:
        with TemporaryDirectory(prefix=".garlicfarm-", dir=path.parent) as beside:
            draft = Path(beside) / path.name
            draft.write_text(text, encoding="utf-8")
            load(draft, {})
        replace_file(path, [text.encode()], path.stat().st_mode & 0o777)
    except OSError as error:
        raise ConfigError([f"cannot write {path}: {error.strerror}"]) from error
    return load(path, {})
