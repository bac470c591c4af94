"""Handing leadership over to another member (thesis 3.10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from garlicfarm.errors import ProposalDropped
from garlicfarm.extensions import TIMEOUT_NOW
from garlicfarm.raft.progress import Progress
from garlicfarm.raft.state import RaftState
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import MessageType, Response


class LeadershipTransfer:
    """At most one transfer at a time. The target first gets all entries, then TimeoutNow, which has it
    campaign at once. If none is named, the target is chosen once a member has answered: a new leader does not
    know yet which are alive. The transfer is given up after the upper election timeout."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._target = 0  # 0: no transfer, or none chosen yet
        self._is_choosing = False
        self._deadline_ms = 0
        self._seq = 0  # of the TimeoutNow sent, 0: none is
        self._is_backing_off = False  # TimeoutNow is repeated with the target's next heartbeat

    @property
    def is_active(self) -> bool:
        """Whether a transfer is in progress."""
        return self._target != 0 or self._is_choosing

    @property
    def deadline_ms(self) -> int | None:
        """When the transfer is given up, None: there is none."""
        return self._deadline_ms if self.is_active else None

    def begin(self, to: int) -> None:
        """Begin to hand over to the member ``to``, 0: to the one best placed. Raises `ProposalDropped`: a
        transfer is in progress, or there is no such other member."""
        if self.is_active:
            raise ProposalDropped(Refusal.LEADERSHIP_IN_TRANSFER)
        state = self._state
        others = state.membership.others(state.id)
        if not others or (to and to not in others):
            raise ProposalDropped(Refusal.NO_SUCH_MEMBER)
        self._target, self._is_choosing = to, not to
        self._deadline_ms = state.now_ms + state.config.election_timeout_max_ms
        self._seq, self._is_backing_off = 0, False

    def tick(self) -> None:
        """Give the transfer up once its time is over."""
        if self.is_active and self._state.now_ms >= self._deadline_ms:
            self._target, self._is_choosing = 0, False

    def on_heartbeat(self, peer: int) -> None:
        """A heartbeat to ``peer`` is due."""
        if peer == self._target:
            self._is_backing_off = False

    def advance(self, progress: Mapping[int, Progress], active: Callable[[], set[int]]) -> bool:
        """Send TimeoutNow once the target holds all entries. Returns whether this member has to step down
        instead, since the target lacks the extension (D5). ``active``: the members heard recently."""
        if self._is_choosing:
            self._choose(progress, active())
        if not self._target:
            return False
        state, target = self._state, progress.get(self._target)
        if target is None:
            self._target = 0
        elif not self._seq and not self._is_backing_off and target.match_index == state.log.last_index:
            if TIMEOUT_NOW not in state.extensions.get(self._target, ()):
                return True
            kind, last = MessageType.TIMEOUT_NOW_REQUEST, state.log.last
            self._seq = state.send(self._target, kind, state.term, last, state.commit_index)
        return False

    def _choose(self, progress: Mapping[int, Progress], active: set[int]) -> None:
        state, extensions = self._state, self._state.extensions
        candidates = [p for p in state.membership.others(state.id) if p in active]
        if candidates:
            self._is_choosing = False
            self._target = max(
                candidates,
                key=lambda p: (TIMEOUT_NOW in extensions.get(p, ()), progress[p].match_index, -p),
            )

    def step_response(self, seq: int, response: Response) -> bool:
        """Take the answer to TimeoutNow. Returns whether ``seq`` is that request."""
        if not self._target or seq != self._seq:
            return False
        if not response.accepted:  # it has yet to apply the Configuration that it heard is committed
            self._back_off()
        return True

    def report_unreachable(self, seq: int | None) -> None:
        """The request ``seq`` got no answer."""
        if self._target and seq == self._seq:
            self._back_off()

    def _back_off(self) -> None:
        self._seq, self._is_backing_off = 0, True
