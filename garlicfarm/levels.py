"""The levels of a farm (D26): what its members may write, and what each program can.

A farm's level is a number in its Configuration, so it is in the log and in every snapshot. It only rises, by
an administrator's order, once every member's program can. A new kind of entry, version of the algorithm or
format of stores belongs to a level, and is written only from that level on. So until a level is raised, one
can return to the programs of the one before.
"""

from __future__ import annotations

import re

import msgspec

from garlicfarm._version import __version__

LOWEST = 0
"""What 0.2.0 and JRaft write."""
HIGHEST = 4

LEASES = 2
"""From here on leases ride on heartbeats (D24)."""
OUTSIDE = 3
"""From here on what other members measure of a service decides (D25)."""
COMPARING = 4
"""From here on members compare what they hold (D26)."""
FORGETTING = 4
"""From here on a farm removes members that stay silent, if it is ordered to (D28)."""

FIRST_ALGORITHM = 2
"""The version of the common algorithm at level 0."""

BRINGS = {
    1: "the log records who raises a level, and stores say which program they need",
    2: "leases ride on heartbeats, so a dead machine is replaced within the time of a lease",
    3: "a publisher that the others cannot reach is replaced, what nobody measures has no weight, and "
    "clients can be banned",
    4: "members compare what they hold, and one that most others contradict neither publishes nor leads; a "
    "farm can be ordered to remove members that stay silent",
}
"""What each level above `LOWEST` brings, as the rest of a sentence."""

_NUMBER = r"(0|[1-9][0-9]{0,8})"
_WORD = r"([!-+\--~]{0,64})"  # printable, without spaces and commas
_NO_WORD = re.compile(r"[^!-+\--~]")
_HEADER = re.compile(
    rf"version={_WORD}, revision={_WORD}, application={_WORD}, levels={_NUMBER}-{_NUMBER}, level={_NUMBER}"
)


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What a member's process says of itself when it logs in, or is logged in to.

    ``version`` and ``revision`` (the commit that it was built from) are "" where they are not known.
    ``lowest`` … ``highest``: the levels that it can. ``level``: the one in force in the farm, as far as it
    knows. ``application``: what it takes the farm's to be, "": not said.
    """

    version: str = ""
    revision: str = ""
    application: str = ""
    lowest: int = 0
    highest: int = 0
    level: int = 0

    def header(self) -> str:
        """The value of the header ``Garlic-Farm-Program``."""
        version, revision, application = map(_word, (self.version, self.revision, self.application))
        return (
            f"version={version}, revision={revision}, application={application}, "
            f"levels={self.lowest}-{self.highest}, level={self.level}"
        )

    @property
    def name(self) -> str:
        """Which program it is, for people."""
        if not self.version:
            return "a program that names no levels (garlicfarm 0.2, or JRaft)"
        return f"garlicfarm {self.version}" + (f" ({self.revision})" if self.revision else "")

    @property
    def range(self) -> str:
        """The levels that it can, for people."""
        one = self.lowest == self.highest
        return f"level {self.highest}" if one else f"levels {self.lowest} to {self.highest}"


def _word(text: str) -> str:
    """``text`` as a header takes it, whatever a packager or an application's author has called theirs."""
    return _NO_WORD.sub("_", text)[:64]


SAYS_NOTHING = Program()
"""garlicfarm 0.2.0, and JRaft."""
THIS = Program(version=__version__, lowest=LOWEST, highest=HIGHEST)
"""This program, in no farm yet."""


def parse_program(header: str | None) -> Program:
    """The reverse of `Program.header`; without that header, `SAYS_NOTHING`. Raises `ValueError` (the peer's
    fault): it is malformed, or contradicts itself."""
    if header is None:
        return SAYS_NOTHING
    match = _HEADER.fullmatch(header)
    if match is None:
        raise ValueError("Garlic-Farm-Program is malformed")
    version, revision, application = match.group(1, 2, 3)
    lowest, highest, level = map(int, match.group(4, 5, 6))
    if lowest > highest or level > highest:
        raise ValueError("Garlic-Farm-Program contradicts itself")
    return Program(
        version=version,
        revision=revision,
        application=application,
        lowest=lowest,
        highest=highest,
        level=level,
    )


def algorithm_of(level: int) -> int:
    """The version of the common algorithm at a level: the validity rule, the score and the fold together."""
    return FIRST_ALGORITHM + level


def level_of(algorithm: int) -> int:
    """The reverse of `algorithm_of`."""
    return algorithm - FIRST_ALGORITHM


def unknown_algorithm(version: int) -> str:
    """Which other version of the common algorithm this is, in words; "" for those of this program."""
    if LOWEST <= level_of(version) <= HIGHEST:
        return ""
    most = algorithm_of(HIGHEST)
    return f"version {version} of the common algorithm; this program has {algorithm_of(LOWEST)} to {most}"


def beyond(level: int) -> str:
    """Why this program cannot follow a farm at ``level``, and what to do; "" if it can."""
    if LOWEST <= level <= HIGHEST:
        return ""
    return (
        f"the farm is at level {level}, and this program, garlicfarm {__version__}, can levels {LOWEST} to "
        f"{HIGHEST}: install the program of the other members, which `garlicfarm status` shows there"
    )


def cannot_follow(member: int, program: Program, level: int, application: str) -> str:
    """Why ``member``, which runs ``program``, cannot be a member of a farm at ``level`` with
    ``application``, and what to do; "" if it can."""
    if program.application not in ("", _word(application)):
        return (
            f"member {member} runs the application {program.application}, and the farm's is {application}: "
            "correct its configuration"
        )
    if program.lowest <= level <= program.highest:
        return ""
    return (
        f"member {member} runs {program.name}, which can {program.range}, and the farm is at level {level}: "
        "upgrade it"
    )
