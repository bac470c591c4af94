"""Changes to a configuration file by a command."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from garlicfarm.config.files import load
from garlicfarm.config.model import Config
from garlicfarm.credentials.private_files import sync_directory
from garlicfarm.errors import ConfigError

__all__ = ["rewrite"]


def rewrite(path: Path, text: str) -> Config:
    """Put ``text`` in the place of a configuration file, durably, if it is a valid configuration, which
    is returned. Raises `ConfigError`: it is not, or cannot be written; then the file is as it was."""
    try:
        with TemporaryDirectory(prefix=".garlicfarm-", dir=path.parent) as beside:
            part = Path(beside) / path.name
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.chmod(path.stat().st_mode & 0o777)
            load(part, {})
            part.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise ConfigError([f"cannot write {path}: {error.strerror}"]) from error
    return load(path, {})
