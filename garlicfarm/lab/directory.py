"""The temporary directory of a lab, which goes with it even where the lab is killed."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from garlicfarm.lab import cleanup


@contextmanager
def lab_directory() -> Iterator[Path]:
    """A directory for as long as the block lasts. At its end, or when this process is killed, every process
    that was started in the block and still runs is killed, and the directory is removed.

    In the block this process' environment names the directory, so that its children inherit that, and has
    a ``TMPDIR`` in it. Use it in the program's main task only.
    """
    # Named by chance and made once something waits to remove it, so that no moment is a bad one to be killed.
    directory = Path(tempfile.gettempdir()) / f"garlicfarm-lab-{secrets.token_urlsafe(6)}"
    cleaner = subprocess.Popen(
        [sys.executable, "-I", "-S", cleanup.__file__, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the lab
    )
    scratch = directory / "tmp"
    directory.mkdir(mode=0o700)
    scratch.mkdir()
    before = {name: os.environ.get(name) for name in (cleanup.MARK, "TMPDIR")}
    os.environ.update({cleanup.MARK: str(directory), "TMPDIR": str(scratch)})
    try:
        yield directory
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        cleaner.communicate()
