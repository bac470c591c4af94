"""The lab's first request to its farm, on a machine that is busy, and to a node that dies of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garlicfarm.cli.lab import commit_interval
from garlicfarm.errors import GarlicFarmError, NoQuorum, OutcomeUnknown, ProposalDropped, UnreachableError
from garlicfarm.lab.processes import NodeProcess
from garlicfarm.refusals import Refusal


class Node(NodeProcess):
    def __init__(self, directory: Path, answers: list[GarlicFarmError | None]) -> None:
        super().__init__(1, directory)
        self.answers = answers
        self.asked = 0
        self.log_file.write_text("what went wrong\n")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:  # type: ignore[override]
        yield self

    async def administer(self, farm: str, action: str, args: dict[str, int]) -> tuple[int, int]:
        assert (farm, action, args) == ("farm", "interval", {"ms": 2000})
        self.asked += 1
        if self.answers and (error := self.answers.pop(0)):
            raise error
        return 2, 1


async def set_interval(node: Node) -> None:
    await commit_interval(SimpleNamespace(name="farm", nodes={1: node}), 2000)  # type: ignore[arg-type]


async def test_interval_is_set_again_until_it_is_known_to_be_set(tmp_path: Path, autojump_clock: Any) -> None:
    node = Node(
        tmp_path,
        [
            NoQuorum("no leader within 4 s"),
            OutcomeUnknown("?"),
            ProposalDropped(Refusal.LEADERSHIP_IN_TRANSFER),
        ],
    )
    await set_interval(node)
    assert node.asked == 4


async def test_interval_waits_for_a_leader_however_busy_the_machine_is(tmp_path, autojump_clock):
    node = Node(tmp_path, [NoQuorum("no leader within 4 s")] * 100)
    await set_interval(node)
    assert node.asked == 101


async def test_interval_for_a_node_that_ended_shows_the_end_of_its_log(tmp_path: Path) -> None:
    node = Node(tmp_path, [OutcomeUnknown("took the request and did not answer")])
    node.process = SimpleNamespace(returncode=1)  # type: ignore[assignment]
    with pytest.raises(UnreachableError, match="node 1 ended with code 1") as raised:
        await set_interval(node)
    assert "what went wrong" in str(raised.value)
    assert node.asked == 1
