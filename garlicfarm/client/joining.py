"""A server's own request to become a member, over the Raft wire.

Source: docs/reference/protocol.md, "What JRaft's bytes settle".
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from garlicfarm.errors import (
    AuthError,
    GarlicFarmError,
    LocalProtocolError,
    NoQuorum,
    OutcomeUnknown,
    RemoteProtocolError,
    TransportError,
    UnreachableError,
)
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import Backoff, LinkConfig, RpcClient
from garlicfarm.refusals import Refusal
from garlicfarm.wire import encode_cluster_server
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    LogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)

MAX_SERVERS = 16
"""How many servers to ask, one after another, in search of the leader."""


class NotYet(Exception):
    """The request may be granted if it is repeated; ``reason`` is the error to raise if it is not."""

    def __init__(self, reason: GarlicFarmError) -> None:
        self.reason = reason
        super().__init__(str(reason))


async def ask_to_join(
    server: ClusterServer,
    endpoints: Mapping[int, str],
    connect: Callable[[str], Awaitable[Established]],
    timeout_s: float,
    connect_timeout_s: float | None = None,
    *,
    is_jraft: bool = False,
) -> int:
    """Find the leader and ask it to make ``server`` a member; the index of its last entry when it agreed.

    From then on the leader connects to ``server`` and sends it the missing entries.

    :param endpoints: id → endpoint of servers to begin with.
    :param connect: opens an authenticated stream to an endpoint, logged in as the future member ``server``.
    :param timeout_s: for each answer of a server that is asked.
    :param connect_timeout_s: for each connection; None: the same.
    :param is_jraft: the servers behave like JRaft's: no handshake, and no reasons for refusals.
    :raises NotYet: no leader was found, or it cannot add a member now, or not connect to ``server``.
    :raises LocalProtocolError: the id is or was another member's, or the endpoint is; or a JRaft leader's
        endpoint is not among ``endpoints`` (the caller's fault).
    :raises AuthError: the farm has another secret.
    :raises RemoteProtocolError: no server of this farm is at these endpoints.

    Cancelled: the request may or may not have been granted.
    """
    known, asked = dict(endpoints), set[int]()
    todo = list(known)
    failures: list[GarlicFarmError] = []
    while todo and len(asked) < MAX_SERVERS:
        target = todo.pop(0)
        if target in asked:
            continue
        asked.add(target)
        if known.get(server.id, server.endpoint) != server.endpoint:
            raise _refused(server, Refusal.ID_USED_BEFORE.number)
        ends = (0, 0) if is_jraft else (server.id, target)  # as JRaft's own client
        answer = await _ask(
            server, target, ends, partial(connect, known[target]), timeout_s, connect_timeout_s
        )
        if isinstance(answer, GarlicFarmError):
            failures.append(answer)
            continue
        if answer.accepted:
            return answer.next_index - 1
        if answer.destination == target and is_jraft:
            why = f"the id {server.id} is a member's, or another change of the members is in progress"
            raise NotYet(LocalProtocolError(f"the leader, member {target}, refuses: {why}"))
        if answer.destination == target:
            raise _refused(server, answer.next_index)
        if answer.hint is not None:
            known.update((member.id, member.endpoint) for member in answer.hint.servers)
        if answer.destination in known:
            todo.insert(0, answer.destination)
        elif is_jraft and answer.destination != NO_LEADER:
            failures.append(LocalProtocolError(f"member {answer.destination} leads: name its endpoint too"))
    if len(failures) == len(asked):
        # The servers that were not reached would refuse us too.
        for failure in failures:
            if isinstance(failure, AuthError):
                raise AuthError(
                    f"{failure}: the token is of another farm, or the farm's secret was rotated since; "
                    "make another with `garlicfarm member token` on a member's machine"
                )
        for failure in failures:
            if isinstance(failure, RemoteProtocolError | LocalProtocolError):
                raise failure
        raise NotYet(UnreachableError("; ".join(map(str, failures)), "does a member run at these endpoints?"))
    raise NotYet(NoQuorum("the farm has no leader now; see `garlicfarm status` on a member's machine"))


async def _ask(
    server: ClusterServer,
    target: int,
    ends: tuple[int, int],
    connect: Callable[[], Awaitable[Established]],
    timeout_s: float,
    connect_timeout_s: float | None,
) -> Response | GarlicFarmError:
    """The answer of ``target``, or the error. If it does not lead, the answer names the leader."""
    config = LinkConfig(
        connect=connect,
        server_id=target,
        timeout_s=timeout_s,
        backoff=Backoff(random.random, longest_s=timeout_s),
        connect_timeout_s=connect_timeout_s,
    )
    client = RpcClient(config)
    entry = LogEntry(0, ValueType.CLUSTER_SERVER, encode_cluster_server(server))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        outcome: Response | GarlicFarmError
        try:
            outcome = await client.call(Request(MessageType.CLIENT_REQUEST, *ends))
            if outcome.destination == target:
                kind = MessageType.ADD_SERVER_REQUEST
                outcome = await client.call(Request(kind, *ends, entries=(entry,)))
        except (AuthError, RemoteProtocolError, TransportError, OutcomeUnknown) as error:
            outcome = error  # raised here, it would be wrapped in a group
        nursery.cancel_scope.cancel()
    return outcome


def _refused(server: ClusterServer, number: int) -> Exception:
    """The error for the leader's refusal; `NotYet` if a repetition may succeed."""
    match Refusal.of_change(number):
        case Refusal.ID_USED_BEFORE:
            return LocalProtocolError(
                f"the id {server.id} is a member's or was one's, and ids are used once: "
                "make a token with a new one, with `garlicfarm member token` on a member's machine"
            )
        case Refusal.ENDPOINT_OF_ANOTHER_MEMBER:
            return LocalProtocolError(
                f"another member has the endpoint {server.endpoint}: name this machine's own with --endpoint"
            )
        case Refusal.CANNOT_BE_DIALLED:
            why = "does that name this machine, and does the firewall let members in?"
            return NotYet(UnreachableError(f"the leader cannot connect to {server.endpoint}", why))
        case Refusal.ANOTHER_CHANGE_IN_FLIGHT | Refusal.LEADERSHIP_IN_TRANSFER:
            return NotYet(
                LocalProtocolError("another change of the members is being made; try again when it is done")
            )
        case Refusal.TOO_FEW_MEMBERS_HEARD:
            return NotYet(NoQuorum("too few members reach the leader; see `garlicfarm status` there"))
    return RemoteProtocolError(f"the leader refuses for the reason {number}, which is not known here")
