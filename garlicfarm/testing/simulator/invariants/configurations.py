"""One change at a time, of one server (thesis 4.1; D7: a Configuration takes effect when it is committed).

A leader appends a changing Configuration only when those before it are committed and an entry of its
term is, and it makes a commit index durable with it that covers them. Each names the one before it.
The Configuration in force at a member is the newest that it knows as committed.
"""

from __future__ import annotations

from garlicfarm.raft import Entry, Persist, Ready, Role
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, ValueType

__all__ = ["Configurations"]


class Configurations:
    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        status, before = member.status, member.before
        if status is None:
            return
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
