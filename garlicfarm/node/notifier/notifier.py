"""Looks at the farms of a node, and sends their notices: one task that looks, and one for each receiver.

Everything is bounded: `QUEUED` notices wait for a receiver, further ones are dropped and counted; each gets
`ATTEMPTS`, every one with a deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import msgspec
import trio

from garlicfarm.admin.contract import FarmView
from garlicfarm.config import Config
from garlicfarm.config.model import NotifySection
from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.node.notifier.notices import FarmNotices, Notice
from garlicfarm.node.notifier.receivers import NotTaken, Receiver, make_receiver

LOOK_S = 1.0
STEADY_S = 10.0
"""Beside two elections: a state that is over sooner is not told of."""
QUEUED = 100
ATTEMPTS = 5
DEADLINE_S = 10.0
PAUSE_S = 2.0
"""After the first attempt; then twice as long each time."""
LAST_S = 5.0
"""For the last notices of a node that ends."""


class Notifier:
    """The notifications of one node. ``farms``: as they come and go. The constructor raises `ConfigError`: a
    secret cannot be read."""

    def __init__(
        self,
        config: Config,
        farms: Callable[[], Mapping[str, FarmView]],
        metrics: NodeMetrics,
        log: EventLogger,
    ) -> None:
        self._farms = farms
        self._node_id = config.node.id
        self._queues = [
            NoticeQueue(make_receiver(number, section, config.base_dir), section, metrics, log)
            for number, section in enumerate(config.notify)
        ]
        self._steady_ms = {
            section.name: round(1000 * (STEADY_S + 2 * section.raft.election_timeout_max_s))
            for section in config.farm
        }
        self._notices: dict[str, FarmNotices] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            for queue in self._queues:
                nursery.start_soon(queue.run)
            nursery.start_soon(self._look)

    async def _look(self) -> NoReturn:
        started_ms = _now_ms()
        while True:
            for name, farm in self._farms().items():
                steady_ms = self._steady_ms[name]
                notices = self._notices.setdefault(name, FarmNotices(started_ms, steady_ms))
                self._put(notices.look(farm.status(), _now_ms()))
            await trio.sleep(LOOK_S)

    async def on_failed(self, farm: FarmView, error: StorageError, is_last: bool) -> None:
        """A farm's store has failed. Waits for the notice of that to be sent if it was the last farm, for
        `LAST_S` at most: the node ends then."""
        kind = "damage" if isinstance(error, StorageDamaged) else "disk"
        text = f"node {self._node_id} serves the farm {farm.farm} no longer: {error}"
        farm_id, now_ms = farm.farm_id.hex(), _now_ms()
        about = f"{farm_id}-failed-{self._node_id}-{now_ms}"
        self._put([Notice(about, farm.farm, farm_id, self._node_id, kind, text, False, now_ms)])
        if is_last:
            with trio.move_on_after(LAST_S):
                for queue in self._queues:
                    await queue.wait_empty()

    def _put(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            for queue in self._queues:
                queue.put(notice)


class NoticeQueue:
    """The notices that wait for one receiver, which the table ``section`` is of."""

    def __init__(
        self, receiver: Receiver, section: NotifySection, metrics: NodeMetrics, log: EventLogger
    ) -> None:
        self._receiver = receiver
        self._kinds = section.events
        self._farms = section.farms
        self._count = metrics.notices
        self._log = log
        self._send, self._receive = trio.open_memory_channel[Notice](QUEUED)
        self._unsent = 0
        self._empty = trio.Event()
        self._empty.set()

    def put(self, notice: Notice) -> None:
        """Have a notice sent, if the receiver wants it."""
        if notice.kind not in self._kinds or not (notice.farm in self._farms or not self._farms):
            return
        try:
            self._send.send_nowait(notice)
        except trio.WouldBlock:
            self._tally("dropped")
            self._log.warning("notice-dropped", receiver=self._receiver.name, notice=notice.id)
            return
        if not self._unsent:
            self._empty = trio.Event()
        self._unsent += 1

    async def wait_empty(self) -> None:
        """Return once none waits or is being sent."""
        await self._empty.wait()

    async def run(self) -> None:
        """Send them, one after another, until cancelled."""
        async for notice in self._receive:
            why = await self._deliver(notice)
            self._tally("failed" if why else "sent")
            if why:
                self._log.error("notice-not-sent", receiver=self._receiver.name, notice=notice.id, cause=why)
            self._unsent -= 1
            if not self._unsent:
                self._empty.set()

    async def _deliver(self, notice: Notice) -> str:
        """Why it was not taken; "": it was."""
        body, why = msgspec.json.encode(notice), ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await trio.sleep(PAUSE_S * math.pow(2, attempt - 1))
            why = f"no answer within {DEADLINE_S:g} s"
            with trio.move_on_after(DEADLINE_S):
                try:
                    await self._receiver.send(notice, body)
                except NotTaken as error:
                    why = str(error)
                    if error.is_final:
                        break
                else:
                    return ""
        return why

    def _tally(self, outcome: str) -> None:
        self._count.labels(self._receiver.name, outcome).inc()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
