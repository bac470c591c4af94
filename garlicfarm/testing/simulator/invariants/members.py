"""What holds of each member: its disk, its indexes, and who is a member."""

from __future__ import annotations

from collections.abc import Mapping

from garlicfarm.raft import Entry, HardState, Persist, Ready, Role, Status
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, MessageType, ValueType


class DurableQuorum:
    """Committed means durable at a majority: when an entry is first known as committed, it is on the *disks*
    of a majority of the members in force, as far as the leader knows (`CommittedIsDurable` of etcd's TLA+
    model)."""

    def __init__(self, members: Mapping[int, ObservedMember]) -> None:
        self._members = members
        self._steps = 0

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        if self._steps == len(history.steps):
            return
        self._steps = len(history.steps)
        upto, term, in_force = history.steps[-1]
        while (held := self._held(in_force, upto, history)) < upto:
            # A Configuration among the new entries is in force for those that follow.
            after = history.in_force(held)
            if after.log_index <= in_force.log_index:
                ids = [server.id for server in in_force.servers]
                raise Violation(
                    "committed is durable",
                    f"{upto}, committed in term {term}; most disks of {ids} hold no more than {held}",
                )
            in_force = after

    def _held(self, in_force: Configuration, upto: int, history: History) -> int:
        """What a majority holds, of the entries up to ``upto``."""
        held = sorted(self._agreed(server.id, upto, history) for server in in_force.servers)
        return held[(len(held) - 1) // 2]

    def _agreed(self, member_id: int, upto: int, history: History) -> int:
        member = self._members.get(member_id)
        if member is None:
            return 0
        index = min(upto, len(member.disk.entries))
        while not member.disk.agrees(history.chain, index):
            index -= 1
        return index


class PersistentVote:
    """Votes and terms survive crashes: a member votes once per term, and never returns to a term before one
    in which it sent a message (Raft §5.1, §5.2)."""

    def __init__(self) -> None:
        self._latest_term: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        latest_term = self._latest_term.get(member.id, 0)
        if status.term < latest_term:
            raise Violation(
                "a member keeps its vote and its term",
                f"member {member.id} is back at term {status.term}; it sent messages in term {latest_term}",
            )
        for answer in ready.responses:
            response = answer.response
            if response is None:
                continue
            latest_term = max(latest_term, response.term)
            if response.type is MessageType.REQUEST_VOTE_RESPONSE and response.accepted:
                self._vote(member.id, response.term, response.destination)
        for request in [sent.request for sent in ready.requests]:
            # A pre-vote asks about a term that had not begun, or (a RequestVote) names one that is over.
            is_pre_vote = request.type is MessageType.PRE_VOTE_REQUEST
            if request.term == status.term and not is_pre_vote:
                latest_term = max(latest_term, request.term)
                if request.type is MessageType.REQUEST_VOTE_REQUEST:
                    self._vote(member.id, request.term, member.id)
        self._latest_term[member.id] = latest_term

    def _vote(self, voter: int, term: int, candidate: int) -> None:
        first = self._votes.setdefault((voter, term), candidate)
        if first != candidate:
            raise Violation(
                "a member keeps its vote and its term",
                f"member {voter} votes for {first} and {candidate} in term {term}",
            )


class Monotonic:
    """Term, vote within a term, commit and applied index of a member never fall while it runs, nor do those
    on its disk across crashes (Raft §5.1, figure 2); nor does the level in force (D26)."""

    def __init__(self) -> None:
        self._durable: dict[int, HardState] = {}

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        before = member.before
        if before is None:
            kept = self._durable.get(member.id, HardState())
            fell = status.term < kept.term or status.commit < kept.commit
        else:
            fell = (
                status.term < before.term
                or status.commit < before.commit
                or status.applied < before.applied
                or status.configuration.level < before.configuration.level
                or (status.term == before.term and before.vote not in (0, status.vote))
            )
        if fell:
            raise Violation("nothing goes back", f"member {member.id}: {before}, then {status}")

    def on_durable(self, member_id: int, persist: Persist) -> None:
        """A write is on a member's disk."""
        new, old = persist.hard_state, self._durable.get(member_id, HardState())
        if new is None:
            return
        changed = new.term == old.term and old.vote not in (0, new.vote)
        if new.term < old.term or new.commit < old.commit or changed:
            raise Violation("nothing goes back", f"the disk of member {member_id}: {old}, then {new}")
        self._durable[member_id] = new


def check_indexes(member_id: int, status: Status) -> None:
    """Purged ≤ snapshot ≤ applied ≤ commit ≤ last in the core (Raft §7). Raises `Violation`."""
    if not (
        status.applied <= status.commit <= status.last_index
        and status.first_index - 1 <= status.commit
        and status.stable <= status.last_index
    ):
        raise Violation("indexes are in order", f"member {member_id}: {status}")


def check_floor(member: ObservedMember, first_index: int, snapshot_index: int) -> None:
    """Check the beginning of its store. Raises `Violation`."""
    status = member.status
    if not first_index - 1 <= snapshot_index <= len(member.disk.entries) or (
        status is not None and snapshot_index > status.commit
    ):
        raise Violation(
            "indexes are in order",
            f"the store of member {member.id} begins at {first_index}, its snapshot is of {snapshot_index}",
        )


class MatchIndexes:
    """Entries that the newest leader counts as replicated are durable at the follower, and equal there
    (`MatchIndexLowerBound`; thesis 10.2.1)."""

    def __init__(self, members: Mapping[int, ObservedMember]) -> None:
        self._members = members
        self._newest = 0

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        # The entries that an older leader knows may be overwritten by now.
        if status.role is not Role.LEADER or status.term < self._newest:
            return
        self._newest = status.term
        for peer, progress in status.peers.items():
            match = progress.match_index
            if match and (
                peer not in self._members or not self._members[peer].disk.agrees(member.log, match)
            ):
                raise Violation(
                    "match indexes are durable",
                    f"leader {member.id} of term {status.term} thinks that {peer} holds all up to {match}",
                )


class Configurations:
    """One change at a time, of one server (thesis 4.1; D7: a Configuration takes effect when it is
    committed).

    A leader appends a changing Configuration only when those before it are committed and an entry of its
    term is, and it makes a commit index durable with it that covers them. Each names the one before it.
    The Configuration in force at a member is the newest that it knows as committed."""

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        before = member.before
        changed = before is None or before.configuration is not status.configuration
        # A joining server has no members until a Configuration is committed there.
        if changed and status.configuration.servers:
            expected = history.in_force(status.commit)
            if status.configuration != expected:
                raise Violation(
                    "configurations", f"member {member.id} holds {status.configuration}, not {expected}"
                )
        if ready.persist is None:
            return
        for entry in ready.persist.entries:
            if entry.value_type is ValueType.CONFIGURATION:
                appended_here = status.role is Role.LEADER and entry.term == status.term
                _check(member, entry, ready.persist, history, appended_here)


def _check(
    member: ObservedMember, entry: Entry, persist: Persist, history: History, appended_here: bool
) -> None:
    new, old = decode_configuration(entry.value), _before(member, entry.index, history)
    where = f"member {member.id} at {entry.index}, term {entry.term}: {old}, then {new}"
    if (new.log_index, new.last_log_index) != (entry.index, old.log_index):
        raise Violation("configurations", f"misnumbered, {where}")
    was, now = {s.id: s for s in old.servers}, {s.id: s for s in new.servers}
    differing = sum(was.get(i) != now.get(i) for i in was.keys() | now.keys())
    if differing > 1 or not now:
        raise Violation("configurations", f"more than one server changed, {where}")
    if not differing or not appended_here:
        return
    commit = 0 if persist.hard_state is None else persist.hard_state.commit
    if commit < old.log_index or not commit or member.log.entries[commit - 1].term != entry.term:
        raise Violation("configurations", f"changed while {commit} was the durable commit, {where}")


def _before(member: ObservedMember, index: int, history: History) -> Configuration:
    known = len(history.chain.entries)
    for entry in reversed(member.log.entries[known : index - 1]):
        if entry.value_type is ValueType.CONFIGURATION:
            return decode_configuration(entry.value)
    if member.log.agrees(history.chain, min(known, index - 1)):
        return history.in_force(index - 1)
    for entry in reversed(member.log.entries[: index - 1]):
        if entry.value_type is ValueType.CONFIGURATION:
            return decode_configuration(entry.value)
    return history.configurations[0]


class RemovedMembers:
    """A server outside the newest Configuration that it knows as committed neither leads nor
    campaigns: a removed one, and one that is joining (thesis 4.2.2; D6 lists what each may send)."""

    def on_ready(self, member: ObservedMember, status: Status, ready: Ready, history: History) -> None:
        if status.role is not Role.FOLLOWER and all(
            server.id != member.id for server in status.configuration.servers
        ):
            raise Violation(
                "only members lead",
                f"{member.id} is {status.role.value} in term {status.term} under {status.configuration}",
            )
