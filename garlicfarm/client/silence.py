"""Which node has fallen silent.

Theory of operation. A node that waits for a commit, or for the next entry of a long poll, answers late and is
well; one whose process is stopped, or whose machine is lost, never answers, and its connections stay open. So
while a node owes an answer, and nothing comes from it, it is asked something that any live process answers at
once, on a connection of its own. If it does not answer that either, the other nodes are asked the same, one
after another. Only when one of them answers is the first one given up: while none does there is none better
to ask.

How long each wait is depends on how quickly that node has answered before (`HttpsClient.patience_s`): within
I2P one round trip takes seconds. What is not answered in time is asked again with more time, as much as the
silence has lasted.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import trio

from garlicfarm.client.https import TRANSPORT_ERRORS, HttpsClient

_T = TypeVar("_T")


class NodeSilent(Exception):
    """A node owes an answer and answers nothing else either, while the one at ``other`` (a URL) does."""

    def __init__(self, other: str) -> None:
        super().__init__("no answer in time")
        self.other = other


class SilenceWatch:
    """Tells silent nodes from slow ones. ``nodes()`` are all nodes that could be asked, by their URLs."""

    def __init__(self, nodes: Callable[[], Mapping[str, HttpsClient]]) -> None:
        self._nodes = nodes
        self._asking = trio.Lock()  # one question at a time
        self._found: dict[HttpsClient, tuple[float, str]] = {}  # when it was silent, and who was not

    async def unless_silent(
        self, node: HttpsClient, ask: Callable[[], Awaitable[_T]], grace_s: float = 0.0
    ) -> _T:
        """What ``ask`` returns, which waits for an answer of the node.

        :param grace_s: how long it may take until the node has the request, beyond the time of a short one.
        :raises NodeSilent: the node has fallen silent. ``ask`` was cancelled.

        Raises what ``ask`` raises.
        """
        if len(self._nodes()) == 1:
            return await ask()
        outcome: list[_T] = []
        failure: Exception | None = None
        since = trio.current_time() + grace_s
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal failure
                failure = NodeSilent(await self._falls_silent(node, since))
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                outcome.append(await ask())
            except Exception as error:  # noqa: BLE001 - raised below as it is, in no group
                failure = error
            nursery.cancel_scope.cancel()
        if outcome:
            return outcome[0]
        assert failure is not None
        raise failure

    async def _falls_silent(self, node: HttpsClient, since: float) -> str:
        """Wait until the node has been silent for too long; the URL of one that is not. ``since``: when it
        began to owe an answer."""
        while True:
            last = max(since, node.heard)
            # One that has answered a question is given more time until the next one.
            due = last + node.patience_s * (1 if last == since else 2)
            if (begun := trio.current_time()) < due:
                await trio.sleep_until(due)
                continue
            async with self._asking:
                # Another task may have asked meanwhile.
                found_at, other = self._found.get(node, (-math.inf, ""))
                if node.heard > last:
                    continue
                if found_at >= begun:
                    return other
                with trio.move_on_after(max(2 * node.patience_s, begun - last)) as deadline:
                    await self._answers(node)
                if deadline.cancelled_caught:
                    other = await self._other(node)
                    if other and node.heard <= last:
                        self._found[node] = trio.current_time(), other
                        return other
            if node.heard <= last:
                await trio.sleep(node.patience_s)

    async def _other(self, silent: HttpsClient) -> str:
        """The URL of a node that answers, "" if none does."""
        for url, node in self._nodes().items():
            if node is not silent:
                with trio.move_on_after(2 * node.patience_s):
                    if await self._answers(node):
                        return url
        return ""

    async def _answers(self, node: HttpsClient) -> bool:
        """Whether it answers now. False: it refuses connections, or ends them, as a node that is being
        stopped; what it owes then ends by itself."""
        try:
            await node.ask()
        except TRANSPORT_ERRORS:
            return False
        return True
