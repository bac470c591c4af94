"""ClientRequests that come together are taken as if they came one after another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft import Ready
from garlicfarm.wire.messages import MessageType, Request
from tests.raft.playbook import Player, application

Batch = Sequence[tuple[int, Sequence[int]]]

POSTS = st.lists(
    st.tuples(st.sampled_from((0, 0, 2)), st.lists(st.integers(0, 40), min_size=1, max_size=3)), max_size=8
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("posts"), POSTS),
        st.sampled_from(
            [("accept",), ("sync",), ("hang", True), ("hang", False), ("transfer",), ("deposed",), ("wait",)]
        ),
    ),
    max_size=12,
)


class Twin(Player):
    """A member that remembers everything it was told to do."""

    def __init__(self) -> None:
        self.told: list[Ready] = []
        self.hangs: object = False
        super().__init__(max_uncommitted_bytes=150)

    def turn(self) -> Ready:
        self.told.append(super().turn())
        return self.told[-1]

    @property
    def trace(self) -> object:
        return self.told, self.node.status(), self.responses, list(self.requests)

    def posts(self, batch: Batch, *, together: bool) -> None:
        posts = []
        for source, sizes in batch:
            self.token += 1
            entries = tuple(application(0, bytes(size)) for size in sizes)
            posts.append((Request(MessageType.CLIENT_REQUEST, source, 1, entries=entries), self.token))
        if together:
            self.node.step_posts(posts)
        else:
            for request, token in posts:
                self.node.step(request, token)
        self.node.tick(self.now)
        self.turn()

    def suffer(self, what: str, *arguments: object) -> None:
        if what == "accept" and self.requests:
            self.accept()
        elif what == "sync" and self.disk.pending:
            self.sync()
        elif what == "hang" and self.hangs is not arguments[0]:
            self.hangs = arguments[0]
            self.hang(bool(arguments[0]))
        elif what == "transfer":
            with suppress(ProposalDropped):
                self.transfer(2)
        elif what == "deposed":
            self.append(self.node.term + 1, source=3)
        elif what == "wait":
            self.wait(30)


@given(STEPS)
def test_posts_that_come_together_are_taken_as_one_after_another(steps: Sequence[tuple[object, ...]]) -> None:
    twins = Twin(), Twin()
    for together, twin in zip((True, False), twins, strict=True):
        twin.slow_disk = False
        twin.lead()
        twin.slow_disk = True
        for what, *arguments in steps:
            if what == "posts":
                twin.posts(arguments[0], together=together)  # type: ignore[arg-type]
            else:
                twin.suffer(str(what), *arguments)
    assert twins[0].trace == twins[1].trace
