"""What nodes of the chaos test can be made to do wrong: what those of the crash test can, and more."""

from __future__ import annotations

from garlicfarm.node.read_index import ReadIndexRequests
from tests.crash import mutant


def read_anywhere() -> None:
    """Any node answers linearizable reads at once, with what it has applied."""

    async def read_index(self: ReadIndexRequests) -> int:
        return self._core.applied_index

    ReadIndexRequests.read_index = read_index


def read_unconfirmed() -> None:
    """The leader answers linearizable reads at once, and does not ask a majority whether it still leads."""

    async def read_index(self: ReadIndexRequests) -> int:
        self._core.must_lead()
        return self._core.applied_index

    ReadIndexRequests.read_index = read_index


MUTANTS = {**mutant.MUTANTS, "reads-anywhere": read_anywhere, "reads-unconfirmed": read_unconfirmed}

SHOWN_BY = {"reads-anywhere": "not linearizable", "reads-unconfirmed": "not linearizable"}
"""Words of the broken promise that shows it, where no other one would do."""
