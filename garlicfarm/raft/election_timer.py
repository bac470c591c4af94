"""When a follower misses its leader: the election timeout, and the lease that a living leader has."""

from __future__ import annotations

from garlicfarm.raft.state import RaftState

__all__ = ["ElectionTimer"]


class ElectionTimer:
    """The timeout is drawn at the tick after the leader was heard, so that the time in which this process
    stood still does not count. From then on the lease lasts for the lower election timeout (thesis
    4.2.3)."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._deadline_ms: int | None = None  # None: the next tick draws it
        self._lease_end_ms: int | None = None  # until when the leader counts as alive
        self._is_retry = False  # a timeout passed since the last leader was heard

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do; None: never, since this server has no leader and is no
        member."""
        state = self._state
        if self._deadline_ms is None:
            return state.now_ms
        if self._lease_end_ms is not None:
            return self._lease_end_ms
        is_waiting = state.leader_id or state.id in state.membership
        return self._deadline_ms if is_waiting else None

    @property
    def has_lease(self) -> bool:
        """Whether the leader was heard within the lower election timeout."""
        return bool(self._state.leader_id) and (self._lease_end_ms is not None or self._deadline_ms is None)

    def tick(self) -> bool:
        """Take note of the time. Returns whether the timeout has passed; the next one then runs."""
        now_ms = self._state.now_ms
        if self._deadline_ms is None:
            self.draw()
            return False
        if self._lease_end_ms is not None and now_ms >= self._lease_end_ms:
            self._lease_end_ms = None
        if now_ms < self._deadline_ms:
            return False
        self._state.leader_id = 0
        self._is_retry = True
        self.draw()
        return True

    def draw(self, extra_ms: int = 0) -> None:
        """Begin a new timeout, ``extra_ms`` longer than drawn."""
        state, config = self._state, self._state.config
        low, high = config.election_timeout_min_ms, config.election_timeout_max_ms
        # Priority is for the first attempt: two members with narrow ranges could keep colliding.
        span = (high - low) // (1 if self._is_retry else config.priority)
        self._deadline_ms = state.now_ms + state.randint(low, low + span) + extra_ms
        self._lease_end_ms = state.now_ms + low if state.leader_id else None

    def restart(self) -> None:
        """Have the next tick begin a new timeout."""
        self._deadline_ms = None

    def on_leader(self) -> None:
        """A leader is known: the next timeout is the first attempt again."""
        self._is_retry = False
