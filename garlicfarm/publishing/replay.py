"""What a farm would have done with other parameters: its log folded again, in a closed loop.

A log answers the publisher that it had. With other parameters another member may be named, and its statuses
say of ``meta.publishing`` what it did while it was not. Taken verbatim, it would be sanctioned for not
publishing. So a `Replay` judges that key by the index that the author had applied when it began the status
(``config.node.applied``, at most the one before its own):

* Absent: the member could not publish, and it stays absent.
* The replay names the same publisher and has the same holders at that index as history: as recorded, also
  where the publisher failed.
* Otherwise: true if the member is due to start at that index in the replay, else false. It would have
  published, or stopped, as soon as it knew.

Whom a leader found *lost* in history (D24) is lost in a replay too, if it holds there, since whenever it is
named. While the roles of a replay are not those of history, it also releases who is not recent: no leader
looked for that one.

So a replay without other parameters is history itself, bit for bit. All else is as recorded: when members
post, what their routers report, which ones are silent.
"""

from __future__ import annotations

from bisect import bisect_right

from garlicfarm.publishing.entries import Observation, Status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.policy import Pinned
from garlicfarm.wire.messages import Configuration

RoleAt = tuple[int | None, tuple[int, ...]]
"""The publisher, and all holders, ascending. The publisher is due if it is the only holder."""


class RoleLog:
    """Who was named and who held, from index to index: ``indexes`` at which that changed, and ``roles``.
    ``lost``: indexes at which a leader found a member lost that held."""

    def __init__(self) -> None:
        self.indexes: list[int] = [0]
        self.roles: list[RoleAt] = [(None, ())]
        self.lost: set[int] = set()

    def note(self, index: int, role: RoleAt) -> None:
        """``role``: after the entry at ``index``, which is later than all before."""
        if role != self.roles[-1]:
            self.indexes.append(index)
            self.roles.append(role)

    def at(self, index: int) -> RoleAt:
        """After the entry at ``index``."""
        if index >= self.indexes[-1]:
            return self.roles[-1]
        return self.roles[bisect_right(self.indexes, index) - 1]


class Replay:
    """One fold of a recorded log. ``roles``: what it has led to so far."""

    def __init__(self, farm: str, pinned: Pinned | None = None, history: RoleLog | None = None) -> None:
        """``farm``: its name. ``pinned``: the other parameters; None: history itself. ``history``: the roles
        of the replay that is history, at least up to the index before the one folded next; not needed for
        that one itself."""
        self.roles = RoleLog()
        self._history = history or self.roles
        self._farm = PublisherFold(farm, pinned, self._publishing, self._is_recorded, self._is_found)

    @property
    def farm(self) -> PublisherFold:
        """The fold, for its queries."""
        return self._farm

    def restore(self, index: int, snapshot: bytes) -> None:
        """Begin with a state of the farm at ``index``, instead of nothing. Raises as
        `PublisherFold.restore`."""
        self._farm.restore(snapshot)
        self._note(index)

    def configure(self, index: int, members: Configuration) -> None:
        """As `PublisherFold.configure`."""
        self._farm.configure(index, members)
        self._note(index)

    def fold(self, index: int, observation: Observation) -> None:
        """As `PublisherFold.fold`."""
        self._farm.fold(index, observation)
        self._note(index)

    def _note(self, index: int) -> None:
        self.roles.note(index, (self._farm.publisher, self._farm.holders))

    def _is_recorded(self, index: int) -> bool:
        return self.roles.at(index - 1) == self._history.at(index - 1)

    def _is_found(self, index: int, is_right: bool) -> bool:
        if self._history is not self.roles:
            return index in self._history.lost
        if is_right:
            self.roles.lost.add(index)
        return is_right

    def _publishing(self, index: int, status: Status) -> bool | None:
        recorded = status.publishing
        if recorded is None:
            return None
        applied = status.node.applied
        began = index - 1 if applied is None else min(applied, index - 1)
        role = self.roles.at(began)
        if role == self._history.at(began):
            return recorded
        member = status.document.id
        return role == (member, (member,))
