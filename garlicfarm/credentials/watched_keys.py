"""Keys of a destination whose file may be replaced while they are in use."""

from __future__ import annotations

from pathlib import Path

from garlicfarm.credentials.destination_keys import read_keys
from garlicfarm.errors import ConfigError

WATCH_S = 10.0
"""Between two looks at the file."""


class WatchedKeys:
    """The long-term key of a destination, or the bundle of the node ``node_id``, in the file ``path``.

    ``keys``: those in use. ``problem``: what is wrong with what the file holds now, a sentence, "" if nothing
    is; then those in use stay.

    Raises `ConfigError`, when it is made, as `read_keys` does for ``destination`` (binary; None: any). They
    may have expired.
    """

    def __init__(self, path: Path, *, node_id: int, destination: bytes | None = None) -> None:
        self.problem = ""
        self._path = path
        self._node_id = node_id
        self._file = _identity(path)
        self.keys = read_keys(path, node_id=node_id, destination=destination, allow_expired=True)
        self._new = self.keys

    @property
    def has_new(self) -> bool:
        """Whether the file holds other keys than those in use, which `take_new` takes."""
        return self._new != self.keys

    def take_new(self) -> bool:
        """Use what the file holds from now on. Returns whether that is new."""
        is_new, self.keys = self.has_new, self._new
        return is_new

    def look(self) -> None:
        """Read the file if it has changed. Blocks."""
        file = _identity(self._path)
        if file == self._file:
            return
        self._file = file
        try:
            self._new = read_keys(self._path, node_id=self._node_id, destination=self.keys.destination)
            self.problem = ""
        except ConfigError as error:
            self._new = self.keys
            self.problem = f"{'; '.join(error.problems)}; the keys that were read before stay in use"


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Another value once the file is another one, or its bytes, owner or mode are."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size
