"""When a follower misses its leader: the election timeout, and the lease that a living leader has."""

from __future__ import annotations

from garlicfarm.raft.state import RaftState

PATIENT_AFTER = 2
"""So many timeouts without a leader, and the configured ones are in force, also where shorter ones are set:
these may be what keeps the members from electing one."""

SPREAD_DIVISOR = 10
"""Of the lower election timeout: how long members that learn together that their leader is gone may wait."""


class ElectionTimer:
    """The timeout is drawn at the tick after the leader was heard, so that the time in which this process
    stood still does not count. From then on the lease lasts for the lower election timeout (thesis
    4.2.3). Evidence that the leader is gone ends both early (`on_leader_gone`)."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._deadline_ms: int | None = None  # None: the next tick draws it
        self._lease_end_ms: int | None = None  # until when the leader counts as alive
        self._is_leader_gone = False  # the next tick cuts the timeout short
        self._passed = 0  # timeouts since the last leader was heard

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do; None: never, since this server has no leader and is no
        member."""
        state = self._state
        if self._deadline_ms is None or self._is_leader_gone:
            return state.now_ms
        if self._lease_end_ms is not None:
            return self._lease_end_ms
        is_waiting = state.leader_id or state.id in state.membership
        return self._deadline_ms if is_waiting else None

    @property
    def has_lease(self) -> bool:
        """Whether the leader was heard within the lower election timeout and is not reported gone."""
        if not self._state.leader_id or self._is_leader_gone:
            return False
        return self._lease_end_ms is not None or self._deadline_ms is None

    def tick(self) -> bool:
        """Take note of the time. Returns whether the timeout has passed; the next one then runs."""
        now_ms = self._state.now_ms
        if self._is_leader_gone:
            self._cut_short()
            return False
        if self._deadline_ms is None:
            self.draw()
            return False
        if self._lease_end_ms is not None and now_ms >= self._lease_end_ms:
            self._lease_end_ms = None
        if now_ms < self._deadline_ms:
            return False
        self._state.leader_id = 0
        self._passed += 1
        self.draw()
        return True

    def draw(self, extra_ms: int = 0) -> None:
        """Begin a new timeout, ``extra_ms`` longer than drawn."""
        state, config = self._state, self._state.config
        low, high = state.election_timeout_ms
        if self._passed >= PATIENT_AFTER:
            low, high = config.election_timeout_min_ms, config.election_timeout_max_ms
        # Priority is for the first attempt: two members with narrow ranges could keep colliding.
        span = (high - low) // (1 if self._passed else config.priority)
        self._deadline_ms = state.now_ms + state.randint(low, low + span) + extra_ms
        self._lease_end_ms = state.now_ms + low if state.leader_id else None

    def _cut_short(self) -> None:
        """End the lease now, and the timeout after a short random time, so that few members campaign at
        once. Drawn at a tick, as each timeout is: this process may have stood still."""
        state, config = self._state, self._state.config
        spread_ms = config.election_timeout_min_ms // SPREAD_DIVISOR // config.priority
        soon_ms = state.now_ms + state.randint(0, spread_ms)
        self._deadline_ms = soon_ms if self._deadline_ms is None else min(self._deadline_ms, soon_ms)
        self._lease_end_ms, self._is_leader_gone = None, False

    def restart(self) -> None:
        """Have the next tick begin a new timeout."""
        self._deadline_ms, self._is_leader_gone = None, False

    def on_leader_gone(self) -> None:
        """The leader does not count as alive any more, and the next tick cuts the timeout short. A message
        of a leader undoes both."""
        self._is_leader_gone = True

    def on_leader(self) -> None:
        """A leader is known: the next timeout is the first attempt again."""
        self._passed = 0
