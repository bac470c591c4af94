"""The programs that the members of one farm run, and its level (D26)."""

from __future__ import annotations

from typing import Any

import msgspec

from garlicfarm._version import revision
from garlicfarm.errors import RemoteProtocolError
from garlicfarm.levels import BRINGS, HIGHEST, THIS, Program, beyond, cannot_follow
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.hindrances import Hindrances
from garlicfarm.node.peers import Peers


class Programs:
    """What each member said of its program when it last logged in here, or was logged in to."""

    def __init__(self, application: str, core: CoreInbox, peers: Peers, hindrances: Hindrances) -> None:
        self._application = application
        self._this = msgspec.structs.replace(THIS, revision=revision(), application=application)
        self._core = core
        self._peers = peers
        self._hindrances = hindrances
        self._said: dict[int, Program] = {}

    @property
    def level(self) -> int:
        """The farm's level, as far as it is committed here."""
        return self._core.configuration.level

    def own(self) -> Program:
        """What this node says of itself."""
        return msgspec.structs.replace(self._this, level=self.level)

    def of(self, member: int) -> Program | None:
        """The program of a member; None: it was not connected since this node started."""
        return self.own() if member == self._core.node_id else self._said.get(member)

    def judge(self, member: int, program: Program) -> None:
        """A member, or a server that is to become one, has connected.

        Raises `RemoteProtocolError`: it cannot be a member of this farm, which is a hindrance until it
        connects with another program; or the farm is at a level that this node cannot follow, which is one
        from now on.
        """
        servers = {server.id for server in self._core.raw.servers}
        self._said = {each: said for each, said in self._said.items() if each in servers}
        if member in servers:
            self._said[member] = program
        if own := beyond(program.level):
            self._hindrances.on_program(self._core.node_id, own)
            raise RemoteProtocolError(own)
        if all(server.id != member for server in self._core.configuration.servers):
            return
        problem = self.problem(member, program)
        self._hindrances.on_program(member, problem)
        if problem:
            raise RemoteProtocolError(problem)

    def problem(self, member: int, program: Program) -> str:
        """Why a member, or one to be, that runs ``program`` cannot follow the farm; "" if it can."""
        return cannot_follow(member, program, self.level, self._application)

    def hindered_by(self, level: int) -> list[str]:
        """Why the farm cannot be raised to ``level`` now, a sentence for each member that it waits for."""
        found = []
        for server in self._core.configuration.servers:
            program = self.of(server.id)
            if server.id != self._core.node_id and not self._peers.is_connected(server.id):
                found.append(f"member {server.id} is not connected: bring it back, or remove it")
            elif program is None:
                found.append(f"what member {server.id} runs is not known yet: try again in a moment")
            elif program.highest < level:
                found.append(f"member {server.id} runs {program.name}, which can {program.range}: upgrade it")
        return found

    def describe(self) -> dict[str, Any]:
        """The value of ``level`` in ``GET …/status``."""
        above = range(self.level + 1, HIGHEST + 1)
        return {
            "in_force": self.level,
            "highest": HIGHEST,
            "brings": {str(level): BRINGS[level] for level in above},
            "hindered_by": self.hindered_by(HIGHEST) if above else [],
        }
