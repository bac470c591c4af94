"""Why a member refuses what it is asked: one word per reason, from the core to the exit code."""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """A reason to refuse a proposal, a read or a change of the members. Its value is the word that programs
    and logs see.

    ``number``: its number on the wire, from 1 to 12 (D8); 0 if the wire has none. Some reasons share one.
    ``advice``: what to do next where it does not help to try again in a moment; else "".
    """

    number: int
    advice: str

    def __new__(cls, word: str, number: int = 0, advice: str = "") -> Refusal:
        self = str.__new__(cls, word)
        self._value_ = word
        self.number = number
        self.advice = advice
        return self

    @classmethod
    def of_client_request(cls, number: int) -> Refusal:
        """The reason that a refused ClientRequest has in ``next_index``; `REFUSED` if it is unknown here."""
        return _OF_CLIENT_REQUEST.get(number, cls.REFUSED)

    @classmethod
    def of_change(cls, number: int) -> Refusal:
        """The reason that a refused AddServerRequest or RemoveServerRequest has in ``next_index``; `REFUSED`
        if it is unknown here."""
        return _OF_CHANGE.get(number, cls.REFUSED)

    REFUSED = "refused"
    NOT_LEADER = "not-leader"
    LEADERSHIP_IN_TRANSFER = "leadership-in-transfer", 4
    DISK_HANGS = "disk-hangs", 4

    # entries and reads
    ENTRY_TOO_LARGE = "entry-too-large", 1
    ENTRY_REFUSED = "entry-refused", 2
    TOO_MUCH_UNCOMMITTED = "too-much-uncommitted", 3
    ROLE_MISSING = "role-missing", 5
    DISK_FULL = "disk-full", 12
    TOO_MANY_POSTS = "too-many-posts"
    TOO_MANY_READS = "too-many-reads"

    # changes of the members
    NO_SUCH_MEMBER = "no-such-member", 2, "See `garlicfarm member list`."
    A_MEMBER_ALREADY = (
        "a-member-already",
        6,
        "See `garlicfarm member list`; its endpoint is changed with `garlicfarm member set`.",
    )
    ID_USED_BEFORE = (
        "id-used-before",
        6,
        "Ids are used once: let it join under an id that was never a member's.",
    )
    NOTHING_COMMITTED_YET = "nothing-committed-yet", 7
    ANOTHER_CHANGE_IN_FLIGHT = (
        "another-change-in-flight",
        7,
        "Try again when that change is done; see `garlicfarm member list`.",
    )
    CANNOT_BE_DIALLED = (
        "cannot-be-dialled",
        8,
        "It must be running and listening there, where the leader can reach it.",
    )
    ENDPOINT_OF_ANOTHER_MEMBER = (
        "endpoint-of-another-member",
        9,
        "Each member has an endpoint of its own; see `garlicfarm member list`.",
    )
    CANNOT_FOLLOW_LEVEL = (
        "cannot-follow-the-level",
        11,
        "Let every member run a program that can that level: see `garlicfarm node upgrade-check`.",
    )
    LEVEL_REACHED = "level-reached", 0, "Levels only rise; see `garlicfarm farm level show`."
    THE_LAST_MEMBER = "the-last-member", 10, "A farm needs at least one member: stop its node instead."
    TOO_FEW_MEMBERS_HEARD = (
        "too-few-members-heard",
        10,
        "Too few of the members that would remain can be reached to be a majority: bring some back first, or "
        "use force and risk that nothing can be committed any more.",
    )

    # repairing a member
    LEADS_ITSELF = (
        "leads-itself",
        0,
        "Let another member lead first, one that is right: `garlicfarm leader stepdown`.",
    )
    NOT_COMPARED = (
        "not-compared",
        0,
        "Members compare what they hold from level 4 on: see `garlicfarm farm level show`.",
    )

    # handing over
    ANOTHER_TOOK_OVER = (
        "another-member-took-over",
        0,
        "A JRaft server cannot be told to campaign: it leads when it wins an election by itself. See "
        "`garlicfarm leader show`.",
    )

    # a new server that the leader has agreed to add
    JOINER_REFUSES = (
        "the-new-server-refuses-to-join",
        0,
        "It belongs to another farm: let it join with a new directory.",
    )
    JOINER_DOES_NOT_ANSWER = (
        "the-new-server-does-not-answer",
        0,
        "Check that it still runs, and repeat `garlicfarm node join` there.",
    )
    JOINER_DOES_NOT_CATCH_UP = (
        "the-new-server-does-not-catch-up",
        0,
        "Its disk or the network is slower than entries are posted.",
    )
    LEADERSHIP_LOST_MEANWHILE = (
        "leadership-was-lost-before-the-new-server-had-caught-up",
        0,
        "Try again: it continues where it stopped.",
    )


_OF_CLIENT_REQUEST = {
    reason.number: reason
    for reason in (
        Refusal.LEADERSHIP_IN_TRANSFER,
        Refusal.ENTRY_TOO_LARGE,
        Refusal.ENTRY_REFUSED,
        Refusal.TOO_MUCH_UNCOMMITTED,
        Refusal.ROLE_MISSING,
        Refusal.DISK_FULL,
    )
}
_OF_CHANGE = {
    reason.number: reason
    for reason in (
        Refusal.LEADERSHIP_IN_TRANSFER,
        Refusal.NO_SUCH_MEMBER,
        Refusal.ID_USED_BEFORE,
        Refusal.ANOTHER_CHANGE_IN_FLIGHT,
        Refusal.CANNOT_BE_DIALLED,
        Refusal.ENDPOINT_OF_ANOTHER_MEMBER,
        Refusal.CANNOT_FOLLOW_LEVEL,
        Refusal.TOO_FEW_MEMBERS_HEARD,
    )
}
