"""One tree of errors. ``Local…`` is our caller's fault, ``Remote…`` the peer's.

Foreign exceptions are mapped to these once, where they occur. Messages say what happened, where, and
what to do next; they never contain secrets. The CLI maps the tree to exit codes in one place
(``garlicfarm.cli``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

from garlicfarm.refusals import Refusal

__all__ = [
    "AuthError",
    "Compacted",
    "ConfigError",
    "DiskHangs",
    "EntryRefused",
    "FarmReplaced",
    "FeedError",
    "FellBehind",
    "GarlicFarmError",
    "LocalProtocolError",
    "NoQuorum",
    "NotLeader",
    "NotListening",
    "NotSupported",
    "OutcomeUnknown",
    "PluginError",
    "ProposalDropped",
    "PublisherError",
    "RankingConflict",
    "RankingNotStored",
    "RemoteProtocolError",
    "Removed",
    "RouterError",
    "StorageDamaged",
    "StorageError",
    "StorageInUse",
    "StorageMissing",
    "StorageVersion",
    "TransportError",
    "UnreachableError",
    "cause_of",
    "first_error",
]


class GarlicFarmError(Exception):
    """The root of all errors that this package raises on purpose."""


class ConfigError(GarlicFarmError):
    """The configuration is invalid; ``problems`` holds every problem found, one sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class LocalProtocolError(GarlicFarmError):
    """Our own caller requested something that the protocol does not allow."""


class RemoteProtocolError(GarlicFarmError):
    """The peer violated the protocol. ``what`` names the rule, ``where`` the part of the message."""

    def __init__(self, what: str, where: str = "") -> None:
        self.what = what
        self.where = where
        super().__init__(f"{what} ({where})" if where else what)


class AuthError(GarlicFarmError):
    """Wrong credentials, a missing role, or a peer that could not prove that it knows the secret."""


class TransportError(GarlicFarmError):
    """A transport failed. ``hint`` says what to do next."""

    def __init__(self, cause: str, hint: str = "") -> None:
        self.cause = cause
        self.hint = hint
        super().__init__(f"{cause}; {hint}" if hint else cause)


class UnreachableError(TransportError):
    """Nothing answers at the endpoint."""


class NotListening(UnreachableError):
    """The member's own machine refused the connection: no process listens at the endpoint."""


class RouterError(GarlicFarmError):
    """The I2P router could not be queried, or its answer was unusable."""


class PublisherError(GarlicFarmError):
    """A publisher could not publish, stop or get ready. The message says why, for the operator."""


class FeedError(GarlicFarmError):
    """A feed could not pass entries on. The message says why, for the operator."""


class NotSupported(RouterError):
    """This router plugin does not support the operation, now or ever."""


class StorageError(GarlicFarmError):
    """A durable store failed. A failed write or fsync is never retried."""


class StorageMissing(StorageError):
    """There is no store here. ``node start`` never creates one."""


class StorageInUse(StorageError):
    """Another process holds the store."""


class StorageVersion(StorageError):
    """The store has a format version that this program does not know."""


class StorageDamaged(StorageError):
    """The store's contents fail their checks. Nothing was overwritten."""


class NotLeader(GarlicFarmError):
    """This member is not the leader; ``leader_id`` and ``endpoint`` name the leader if known."""

    def __init__(self, leader_id: int | None = None, endpoint: str | None = None) -> None:
        self.leader_id = leader_id
        self.endpoint = endpoint
        where = f"member {leader_id}" + (f" at {endpoint}" if endpoint else "")
        super().__init__(f"the leader is {where}" if leader_id else "no leader is known")


class NoQuorum(GarlicFarmError):
    """No leader, or a leader that cannot reach a majority. Nothing was appended."""


class Removed(GarlicFarmError):
    """This node was removed from ``farm``, permanently: it can return only under a new id. ``is_told``: in an
    earlier run its leader told it to leave, and it may not have heard of the commit."""

    def __init__(self, farm: str, is_told: bool = False) -> None:
        self.farm = farm
        what = f"this node was removed from the farm {farm}; it can return only under a new id"
        if is_told:
            what = (
                f"the leader of the farm {farm} told this node to leave: it can return only under a new id; "
                "if the other members still count it in, run `garlicfarm node start --stay`"
            )
        super().__init__(what)


class ProposalDropped(GarlicFarmError):
    """The leader refused a proposal; it was certainly not appended. ``detail``: more about the ``reason``,
    for people, or ""."""

    def __init__(self, reason: Refusal, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"proposal refused: {self.full_reason}")

    @property
    def full_reason(self) -> str:
        """The word of the reason, with the detail behind a colon."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason.value


class DiskHangs(ProposalDropped):
    """A node's disk completes no writes: nothing is appended or confirmed there until it does."""

    def __init__(self, text: str = "the disk does not respond") -> None:
        super().__init__(Refusal.DISK_HANGS)
        self.args = (text,)


class OutcomeUnknown(GarlicFarmError):
    """A request was sent and got no response: it may or may not take effect."""


class EntryRefused(GarlicFarmError):
    """The application refuses this entry: ``field`` is a JSON path ("" for the whole entry).

    ``reason`` is a fixed phrase, by which servers count. ``hint`` says what to do next, where there is more
    to say than to correct the entry.
    """

    def __init__(self, field: str, reason: str, hint: str = "") -> None:
        self.field = field
        self.reason = reason
        self.hint = hint
        text = f"{field}: {reason}" if field else reason
        super().__init__(f"{text}; {hint}" if hint else text)


class Compacted(GarlicFarmError):
    """The requested entries were deleted; the log now starts at ``first_index``."""

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        super().__init__(f"the log starts at index {first_index}")


class FarmReplaced(ConfigError):
    """The farm was deleted, and the nodes have another one of its name."""


class FellBehind(GarlicFarmError):
    """A reader was slower than the retention of the log: entries were deleted before it read them."""


class RankingConflict(GarlicFarmError):
    """A ranking contradicts one that the node keeps, or would be one of too many. Nothing was stored."""


class RankingNotStored(GarlicFarmError):
    """The node's disk did not take, or does not give, a ranking of a query. It may be sent again."""


class PluginError(GarlicFarmError):
    """A plugin cannot be used. ``distribution`` names the package it came from, "" if unknown."""

    def __init__(self, message: str, distribution: str = "") -> None:
        self.distribution = distribution
        super().__init__(message)


_E = TypeVar("_E", bound=BaseException)


@overload
def first_error(error: BaseExceptionGroup[_E]) -> _E: ...
@overload
def first_error(error: BaseException) -> BaseException: ...
def first_error(error: BaseException) -> BaseException:
    """The first error in an exception group, however deep; an error that is no group is its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def cause_of(error: BaseException) -> str:
    """Why a connection failed, in the words of the system: the innermost cause, and of several addresses that
    of the first."""
    error = first_error(error)
    # httpcore passes errors on with "from None".
    while cause := error.__cause__ or (error.__context__ if error.__suppress_context__ else None):
        error = first_error(cause)
    text = error.strerror if isinstance(error, OSError) else None
    # Trio begins with "Error connecting to ('127.0.0.1', 7654): ".
    return (text or str(error) or type(error).__name__).rpartition("): ")[2]
