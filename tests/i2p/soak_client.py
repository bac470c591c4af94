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

from garlicfarm.client import AdminClient
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.errors import NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped, UnreachableError
from garlicfarm.lab.processes import NodeProcess
from tests.crash.crash_client import PASSWORD, REFUSED_PAUSE_S, Journal, Spec, Writers

ANSWER_S = 70.0
"""By then every post has its answer: a node gives one up after 52 s, and its admin API after 60 s."""


class SoakWriters(Writers):
    def __init__(self, spec: Spec, journal: Journal) -> None:
        super().__init__(spec, journal)
        self.acknowledged_s: list[float] = []
        self.declined_s: list[float] = []

    async def post_note(self, nodes: list[NodeProcess], user: str, label: str, entry: bytes) -> None:
        nodes.sort(key=lambda node: node.id)
        node = nodes[int(user.removeprefix("writer")) % len(nodes)]
        assert node.url is not None
        pin = pin_of_file(node.directory / "data" / "tls" / "node.crt")
        while True:
            begun = trio.current_time()
            async with AdminClient([node.url], user=user, password=PASSWORD, pin=pin) as client:
                try:
                    with trio.fail_after(ANSWER_S):  # an error that ends this process, and the soak
                        index, term = await client.post("farm", entry)
                except OutcomeUnknown:
                    self._journal.write("unknown", label)
                except (NoQuorum, NotLeader, ProposalDropped, UnreachableError):
                    self._journal.write("refused", label)
                else:
                    self._journal.write("ack", label, index, term)
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


async def main(spec: Spec, journal: Journal) -> None:
    writers = SoakWriters(spec, journal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await writers.run()
        nursery.cancel_scope.cancel()
    figures_file(Path(spec.journal)).write_bytes(msgspec.json.encode(writers.figures()))


if __name__ == "__main__":
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    with Path(given.journal).open("ab") as journal_file:
        trio.run(main, given, Journal(journal_file))
