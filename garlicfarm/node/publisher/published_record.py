"""What a node keeps of its part in publishing, in files: what it published last, so that a restarted node
reports it, and the number of its process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from garlicfarm.durable_files import make_private_directory, replace_file
from garlicfarm.publisher import Published
from garlicfarm.regular_files import read_file


class PublishedRecord:
    """The file at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Published | None:
        """What a router has taken last, None if nothing ever was. A file that is missing, damaged or not
        readable is as good as none: statuses of this member in the log say the same, and the next publication
        writes it anew."""
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(read_file(self._path), type=Published)
        return None

    def write(self, published: Published) -> None:
        """Keep it, durably. Raises `OSError`."""
        make_private_directory(self._path.parent)
        replace_file(self._path, [msgspec.json.encode(published)], 0o600)


def next_boot(path: Path) -> int:
    """The number of a new process (D24), one above that in the file at ``path``, which has it now; 1 where
    that is missing, damaged or not readable: then the log knows better. Durable on return. Raises
    `OSError`."""
    boot = 1
    with suppress(OSError, ValueError):
        boot = min(int(read_file(path)) + 1, 2**62)
    make_private_directory(path.parent)
    replace_file(path, [b"%d\n" % max(boot, 1)], 0o600)
    return max(boot, 1)
