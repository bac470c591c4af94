"""What this node published last, in a file, so that a restarted node still reports it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from garlicfarm.durable_files import make_private_directory, replace_file
from garlicfarm.publisher import Published
from garlicfarm.regular_files import read_file


class PublishedRecord:
    """``newest``: what a router has taken last, None if nothing ever was. A Meta LeaseSet replaces anything
    else, and nothing else replaces a Meta LeaseSet, whose bytes are known (D19)."""

    def __init__(self, path: Path) -> None:
        """A file that is missing, damaged or not readable is as good as none: statuses of this member in
        the log say the same, and the next publication writes it anew."""
        self._path = path
        self.newest: Published | None = None
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.newest = msgspec.json.decode(read_file(path), type=Published)

    def add(self, published: Published) -> bool:
        """Whether it is the one to report from now on, and `write` has to be called."""
        newest = self.newest
        if newest is not None and newest.lease_set is not None and published.lease_set is None:
            return False
        self.newest = published
        return True

    def write(self) -> None:
        """Keep `newest`, durably. Raises `OSError`."""
        make_private_directory(self._path.parent)
        replace_file(self._path, [msgspec.json.encode(self.newest)], 0o600)
