"""A server outside the newest Configuration that it knows as committed neither leads nor
campaigns: a removed one, and one that is joining (thesis 4.2.2; D6 lists what each may send)."""

from __future__ import annotations

from garlicfarm.raft import Ready, Role
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation

__all__ = ["RemovedMembers"]


class RemovedMembers:
    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        status = member.status
        if (
            status is not None
            and status.role is not Role.FOLLOWER
            and all(server.id != member.id for server in status.configuration.servers)
        ):
            raise Violation(
                "only members lead",
                f"{member.id} is {status.role.value} in term {status.term} under {status.configuration}",
            )
