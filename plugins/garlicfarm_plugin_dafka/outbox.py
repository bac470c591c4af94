"""Commands to the other nodes: one publishing socket, to which they subscribe.

ZeroMQ leaves each subscription to us (``XPUB_MANUAL``): a task admits those that the roles of the
subscriber's key cover, and tells the node of them. So a key reads what its roles let it read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import trio
import zmq

from garlicfarm_plugin_dafka.codec import MAX_NAME_BYTES, Command, encode, split_prefix
from garlicfarm_plugin_dafka.entrance import Entrance, Guest
from garlicfarm_plugin_dafka.keys import KnownPeer
from garlicfarm_plugin_dafka.network import Subscription

MAX_WAITING: Final = 4096


class Outbox:
    """Takes the entrance that leads to the publishing socket, which becomes its own.

    ``known``: the peers by their keys; None: without keys, all may subscribe. ``on_dropped`` gets a reason
    and the name of the peer, or "".
    """

    def __init__(
        self,
        entrance: Entrance,
        known: Mapping[str, KnownPeer] | None,
        on_dropped: Callable[[str, str], None],
    ) -> None:
        self._socket = entrance.socket
        self._entrance = entrance
        self._known = known
        self._on_dropped = on_dropped
        self._changes: deque[Subscription] = deque(maxlen=MAX_WAITING)
        self._has_changes = trio.Event()
        self._socket.set(zmq.XPUB_MANUAL, 1)

    def send_all(self, commands: Iterable[Command]) -> None:
        """Send commands to their subscribers. Never waits: those whose queue is full do not get them. Let
        other tasks run after some hundred.

        :raises LocalProtocolError: the wire cannot carry one; those before it were sent.
        """
        self._socket.send_all(map(encode, commands))

    async def subscriptions(self) -> list[Subscription]:
        """Wait for changes of subscriptions. Only the last 4096 are kept. Cancellation loses none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._changes:
            self._has_changes = trio.Event()
            await self._has_changes.wait()
        batch = list(self._changes)
        self._changes.clear()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return batch

    async def admit(self) -> None:
        """The task that admits subscriptions, until cancelled."""
        while True:
            await self._socket.wait_readable()
            for guest, frames in self._entrance.messages():
                self._on_message(guest, frames)

    def _on_message(self, guest: Guest | None, frames: Sequence[zmq.Frame]) -> None:
        data = frames[0].bytes
        if len(frames) > 1 or data[:1] not in (b"\0", b"\x01") or len(data) > 2 + MAX_NAME_BYTES:
            self._on_dropped("no subscription", "")
            return
        is_on, prefix = data[0] == 1, data[1:]
        command, routing = split_prefix(prefix)
        name = ""
        if guest is not None and not self._entrance.subscribed(guest, prefix, is_on=is_on):
            return
        if self._known is not None:
            peer = None if guest is None else self._known.get(guest.key)
            name = peer.name if peer is not None else ""
            if is_on and (peer is None or command not in peer.may_subscribe):
                self._on_dropped("a subscription not allowed to its sender", name)
                return
        if is_on and guest is None:  # it has left
            return
        # Both mean the peer of the subscription that was received last.
        self._socket.set(zmq.SUBSCRIBE if is_on else zmq.UNSUBSCRIBE, prefix)
        self._changes.append(Subscription(command, routing, is_on, name))
        self._has_changes.set()
