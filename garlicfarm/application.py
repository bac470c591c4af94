"""What a replicated application is to a node: a pure state machine over the committed log (D14).

`garlicfarm.publishing.application.PublisherApplication` and `garlicfarm.log_application.LogApplication` are
the two in the house; a library user may bring another. No method does I/O, reads a clock or makes
randomness: on every server the same calls in the same order give the same bytes.
"""

from __future__ import annotations

from typing import Protocol

from garlicfarm.wire.messages import Configuration

__all__ = ["Application"]


class Application(Protocol):
    """The state machine of one farm. Calls come from one task, in index order."""

    def check(self, entry: bytes, author: int) -> None:
        """Judge an entry before it is proposed.

        ``author`` is the member id of the connection it came over, 0 for users and raw clients (D18).
        Raises `EntryRefused` (the poster's fault) with the field and the reason.
        """

    def apply(self, index: int, term: int, entry: bytes) -> None:
        """Fold in the committed Application entry at ``index`` ≥ 1. Never raises on content: what is
        invalid is skipped, the same way everywhere."""

    def configure(self, index: int, members: Configuration) -> None:
        """A Configuration took force at ``index`` (0 for the genesis one)."""

    def snapshot(self) -> bytes:
        """The whole state. Equal states give equal bytes."""

    def restore(self, data: bytes) -> None:
        """Replace the state by that of a snapshot.

        Raises `StorageVersion` or `StorageDamaged` if ``data`` is no snapshot that this application
        can take up; the state is unchanged then. Between plain peers it is tried first on another object
        of the same factory, in another thread: two objects share nothing that this changes.
        """
