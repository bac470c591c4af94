"""The scripted log, posted through three real nodes: the same publisher at every index on each of them.

A node posts statuses of its own where its application is a `PublisherFold`. Here it is a `Witness`
that has one: the fold is the real one, the posts are the script's alone, and the publisher is noted
after each entry.
"""

from __future__ import annotations

from pathlib import Path

from garlicfarm.application import Application, Origin
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.wire.messages import Configuration
from tests.node.support.cluster import cluster
from tests.publishing.test_fold_scripted_log import GOLDEN, LAST, golden, lines

LEADER = 1


class Witness(Application):
    """An application that folds as `PublisherFold` does, and remembers whom it named when."""

    def __init__(self, farm: str) -> None:
        self.fold = PublisherFold(farm)
        self.publishers: dict[int, int | None] = {}

    def check(self, entry: bytes, origin: Origin) -> None:
        self.fold.check(entry, origin.member)

    def apply(self, index: int, term: int, entry: bytes) -> None:
        self.fold.apply(index, term, entry)
        self.publishers[index] = self.fold.publisher

    def configure(self, index: int, members: Configuration) -> None:
        self.fold.configure(index, members)

    def snapshot(self) -> bytes:
        return self.fold.snapshot()

    def restore(self, data: bytes) -> None:
        self.fold.restore(data)


async def test_scripted_log_three_nodes_name_the_golden_publishers_also_after_a_restart(
    tmp_path: Path,
) -> None:
    witnesses: list[Witness] = []

    def factory(farm: str) -> Witness:
        witnesses.append(Witness(farm))
        return witnesses[-1]

    expected = {index: golden(index) for index in range(2, LAST + 1)}
    changes = [publisher for _, publisher, _ in GOLDEN[1:]]
    assert len(changes) == 1 + 4
    assert LEADER not in changes
    async with cluster(
        tmp_path, 3, start=False, application="publisher", applications={"publisher": factory}
    ) as nodes:
        nodes.favour(LEADER)
        await nodes.start()
        assert await nodes.leader() == LEADER
        for line in lines():
            place = await nodes.replica(line["author"]).post(line["entry"].encode())
            assert place == (line["index"], 1)  # the log is the script, to the index
        assert await nodes.leader() == LEADER
        await nodes.applied(LAST)
        assert [witness.publishers for witness in witnesses] == [expected] * 3
        state = witnesses[0].snapshot()
        assert [witness.snapshot() for witness in witnesses] == [state] * 3

        await nodes.stop()
        witnesses.clear()
        await nodes.start()
        await nodes.leader()
        await nodes.applied(LAST + 1)  # the Configuration of the new leader
        assert [witness.publishers for witness in witnesses] == [expected] * 3
        assert len({witness.snapshot() for witness in witnesses}) == 1
        for witness in witnesses:
            assert witness.fold.publisher == changes[-1]
            assert witness.fold.skipped == {}
