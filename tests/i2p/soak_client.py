"""The client of the soak, a process of its own: posts notes without end, and journals what it was told.

``python -m tests.i2p.soak_client SPEC.json`` until its stdin ends; specification and journal are the crash
test's. Each writer posts to one node only, so that a node without a quorum is asked as often as the others;
the same bytes until they are acknowledged (D17). In the end it writes how long the answers took beside the
journal.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import trio

from garlicfarm.lab.processes import NodeProcess
from tests.crash.crash_client import REFUSED_PAUSE_S, Journal, Spec, Writers, admin_client, run

ANSWER_S = 70.0
"""By then every post has its answer: a node gives one up after 52 s, and its admin API after 60 s."""


class SoakWriters(Writers):
    def __init__(self, spec: Spec, journal: Journal) -> None:
        super().__init__(spec, journal)
        self.journal_file = Path(spec.journal)
        self.acknowledged_s: list[float] = []
        self.declined_s: list[float] = []

    async def post_note(self, nodes: list[NodeProcess], user: str, label: str, entry: bytes) -> None:
        nodes.sort(key=lambda node: node.id)
        node = nodes[int(user.removeprefix("writer")) % len(nodes)]
        while True:
            begun = trio.current_time()
            assert node.url is not None
            async with admin_client(node, node.url, user) as client:
                with trio.fail_after(ANSWER_S):  # an error that ends this process, and the soak
                    is_acknowledged = await self.attempt(client, label, entry)
                if is_acknowledged:
                    self.acknowledged_s.append(trio.current_time() - begun)
                    return
            self.declined_s.append(trio.current_time() - begun)
            await trio.sleep(REFUSED_PAUSE_S)

    def figures(self) -> dict[str, float]:
        """How long commits took, and how long it took at most to be told that there was none."""
        took = sorted(self.acknowledged_s)
        return {
            "p50_s": round(took[len(took) // 2], 3),
            "p99_s": round(took[len(took) * 99 // 100], 3),
            "slowest_s": round(took[-1], 3),
            "slowest_declined_s": round(max(self.declined_s, default=0.0), 3),
        }


def figures_file(journal: Path) -> Path:
    """Where `SoakWriters.figures` go, as JSON."""
    return journal.with_suffix(".figures")


if __name__ == "__main__":
    ended = run(Path(sys.argv[1]), SoakWriters)
    figures_file(ended.journal_file).write_bytes(msgspec.json.encode(ended.figures()))
