"""A client on the Raft wire: ClientRequests straight to the leader, many at a time.

::

    async with open_farm_client(endpoints, farm="farm", user="alice", password=…) as client:
        index, term = await client.post([b"an entry"])
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

import trio

from garlicfarm.errors import (
    AuthError,
    ConfigError,
    EntryRefused,
    GarlicFarmError,
    NoQuorum,
    OutcomeUnknown,
    PluginError,
    ProposalDropped,
    RemoteProtocolError,
    TransportError,
    UnreachableError,
)
from garlicfarm.extensions import LEADER_HINT
from garlicfarm.http.digest import ALGORITHMS, ChallengeCache
from garlicfarm.net.handshake import DialCredentials, Established, dial
from garlicfarm.net.link import Backoff, LinkConfig, RpcClient, close
from garlicfarm.plugins import make_transport
from garlicfarm.refusals import Refusal
from garlicfarm.transport import Endpoint, Transport
from garlicfarm.wire import Limits, encoded_size
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType

REDIRECT_PAUSE_S = 0.05
PATIENCE = 0.05
"""The share of a post's time after which another server is asked where no connection is up yet, or asked who
leads where one is up and silent"""
ROUND_TRIPS = 3
"""A server is not called silent sooner than that many of its quickest answers take"""
QUESTIONS = 5
"""So many questions who leads are asked in the time after which the first one is"""
MAX_SERVERS = 64
MAX_ENTRY_BYTES = Limits().max_entry_bytes
MAX_MESSAGE_BYTES = 1 << 20
"""A server's limit for a client's message in bytes, unless configured otherwise"""


class FarmClient:
    """Posts entries and follows the leader. Made by `open_farm_client`; any number of tasks may post
    at a time: their requests share one connection, and simultaneous ones one write.

    ``follow(id, endpoint)`` is called with the leader; it adds it to ``rpc_clients``.

    A server that owes an answer and is silent may be slow, or its process may be stopped. So `_watch` asks
    the others, one at a time, who leads. Only one that says of itself that it leads, in a later term than the
    silent one's last answer, proves that the silent one leads no more: what waits for that one then ends as
    `OutcomeUnknown`. While there is no such server there is no better one to wait for.
    """

    def __init__(
        self,
        rpc_clients: MutableMapping[int, RpcClient],
        timeout_s: float,
        follow: Callable[[int, str], None] = lambda server, endpoint: None,
    ) -> None:
        self._rpc_clients = rpc_clients
        self._follow = follow
        self._timeout_s = timeout_s
        self._target = next(iter(rpc_clients))
        self._sent_on = False  # a leader named in a 101 was tried since the last post succeeded
        self._committed = (self._target, 0)  # where the last post was, and in which term

    async def post(self, entries: Sequence[bytes]) -> tuple[int, int]:
        """Append entries, all or nothing; (index, term) of the last one after their commit.

        These errors say that the entries were certainly not appended: `EntryRefused` (by the application; or
        an entry over 1 MiB, or several that are together larger than a message of 1 MiB, which would end the
        connection and other posts on it), `AuthError` (wrong credentials, or the user may not post),
        `ProposalDropped` (the leader has too much uncommitted), `NoQuorum` (no leader within the deadline,
        or one that hands over until then).
        `OutcomeUnknown`: sent, not answered; a repetition may append them twice. Cancelled: as
        `OutcomeUnknown`.
        """
        deadline = trio.current_time() + self._timeout_s
        request = _request(entries)
        reason = "none is known"
        while True:
            target = self._target
            try:
                response = await self._rpc_clients[target].call(request, deadline)
            except trio.TooSlowError:
                self._turn(target)  # this server may hang
                raise OutcomeUnknown(f"no answer within {self._timeout_s:g} s") from None
            except (TransportError, RemoteProtocolError) as error:
                reason = str(error)
                self._turn(target)
            else:
                if response.accepted:
                    self._sent_on = False
                    self._committed = target, response.term
                    return response.next_index - 1, response.term
                reason = self._redirected(target, response) or reason
            if trio.current_time() + REDIRECT_PAUSE_S >= deadline:
                await trio.sleep_until(deadline)
                raise NoQuorum(f"no leader took the entry within {self._timeout_s:g} s: {reason}")
            await trio.sleep(REDIRECT_PAUSE_S)

    def _redirected(self, asked: int, response: Response) -> str:
        """Aim the next request at the leader that an answer names. Raises the reason of a refusal, unless it
        passes by itself: then it is returned."""
        if response.destination == response.source and response.next_index:
            match Refusal.of_client_request(response.next_index):
                case Refusal.ROLE_MISSING:
                    raise AuthError("this user may not post")
                case Refusal.ENTRY_TOO_LARGE:
                    raise EntryRefused("", "too large")
                case Refusal.ENTRY_REFUSED:
                    raise EntryRefused("", "refused by the application")
                case Refusal.LEADERSHIP_IN_TRANSFER as passing:
                    return passing
                case reason:
                    raise ProposalDropped(reason)
        leader = self._named(response)
        if leader not in (None, asked):
            self._target = leader
        else:
            self._turn(asked)
        return ""

    def _named(self, response: Response) -> int | None:
        """The leader that an answer names; None if it cannot be asked."""
        for server in response.hint.servers if response.hint is not None else ():
            if server.id == response.destination:
                self._follow(server.id, server.endpoint)
        return response.destination if response.destination in self._rpc_clients else None

    async def _watch(self) -> NoReturn:
        """Leave a silent server once another one leads."""
        turn = self._target
        named: int | None = None  # the leader that the last one in turn named
        while True:
            target, now = self._target, trio.current_time()
            silent, patience_s = self._rpc_clients[target], self._patience_s(target)
            since = silent.silent_since
            if since is None or now < since + patience_s:
                await trio.sleep_until((now if since is None else since) + patience_s)
                continue
            others = sorted(self._rpc_clients.keys() - {target})
            if not others:
                await trio.sleep(patience_s)
                continue
            asked, named = named, None
            follows = asked in others
            if asked is None or not follows:
                asked = turn = next((server for server in others if server > turn), others[0])
            leader, term = await self._who_leads(asked, now + (now - since))
            if leader == asked and self._is_later(target, term) and silent.silent_since == since:
                if self._target == target:
                    self._target = asked
                silent.give_up(f"member {target} is silent, and member {asked} leads")
            elif not follows:
                named = leader
            await trio.sleep(REDIRECT_PAUSE_S if named in others else patience_s / QUESTIONS)

    def _patience_s(self, server: int) -> float:
        """How long this server may owe an answer before the others are asked who leads."""
        rtt_s = self._rpc_clients[server].least_rtt_s
        return max(PATIENCE * self._timeout_s, 0.0 if math.isinf(rtt_s) else ROUND_TRIPS * rtt_s)

    async def _who_leads(self, asked: int, deadline: float) -> tuple[int | None, int]:
        """The leader according to this server, and its term; (None, 0): it names none that can be asked."""
        try:
            response = await self._rpc_clients[asked].call(_WHO_LEADS, deadline)
        except (GarlicFarmError, trio.TooSlowError):
            return None, 0
        return self._named(response), response.term

    def _is_later(self, silent: int, term: int) -> bool:
        """Whether the leader of this term is a later one than the silent server can be."""
        committed_by, committed_term = self._committed
        return term > committed_term if silent == committed_by else term >= committed_term

    def _leaves(self, server: int, leader: int, endpoint: str) -> bool:
        """Whether to leave ``server``, whose 101 names another ``leader``, without asking it. Only once
        between two successful posts: the hint may be stale, and two servers may name each other. And not
        where it is only asked who leads."""
        if leader == server or self._sent_on or self._target != server:
            return False
        self._follow(leader, endpoint)
        if leader not in self._rpc_clients:
            return False
        self._sent_on = True
        self._target = leader
        return True

    def _turn(self, failed: int) -> None:
        """Ask the next server, unless another task already did so."""
        if self._target == failed:
            servers = list(self._rpc_clients)
            self._target = servers[(servers.index(failed) + 1) % len(servers)]


_WHO_LEADS = Request(MessageType.CLIENT_REQUEST, 0, 0)
"""It is answered at once, and appends nothing (D8)"""


def _request(entries: Sequence[bytes]) -> Request:
    """The ClientRequest. Raises `EntryRefused` if a server would end the connection over its size."""
    for entry in entries:
        if len(entry) > MAX_ENTRY_BYTES:
            raise EntryRefused("", f"larger than {MAX_ENTRY_BYTES} bytes")
    values = tuple([LogEntry(0, ValueType.APPLICATION, entry) for entry in entries])
    request = Request(MessageType.CLIENT_REQUEST, 0, 0, entries=values)
    if len(entries) > 1 and encoded_size(request) > MAX_MESSAGE_BYTES:
        raise EntryRefused("", f"together larger than {MAX_MESSAGE_BYTES} bytes: post fewer at a time")
    return request


@asynccontextmanager
async def open_farm_client(
    endpoints: Mapping[int, str],
    *,
    farm: str,
    user: str,
    password: str,
    transport: Callable[[str], Transport] | None = None,
    farm_id: bytes | None = None,
    timeout_s: float = 10.0,
    default_transport: str = "ssl",
    algorithms: Sequence[str] = ALGORITHMS,
) -> AsyncIterator[FarmClient]:
    """A `FarmClient` for as long as the block lasts.

    :param endpoints: id → endpoint of the servers to begin with, as in the Configuration; others are
        found when these name one as the leader, in their 101 or in an answer (D5, leader-hint).
    :param transport: scheme → transport; None: the installed ones, without options of their own.
    :param farm_id: refuse servers of any other farm; None: accept any farm of this name.
    :param timeout_s: for each connection, and for each `FarmClient.post` as a whole.
    :param default_transport: the transport of an endpoint ``tcp://…`` (D1).
    :param algorithms: of Digest, as in the configuration of the farm: a server that offers others is refused.
    """
    transport = transport or cache(lambda scheme: make_transport(scheme, {}, Path()))
    credentials = DialCredentials(
        farm, user, password, ChallengeCache(algorithms), farm_id, extensions={LEADER_HINT: "1"}
    )

    async def connect(server: int, endpoint: Endpoint) -> Established:
        established = await dial(transport(endpoint.scheme), endpoint, credentials)
        if established.leader is not None and client._leaves(server, *established.leader):
            await close(established.stream)
            raise UnreachableError(f"{endpoint.authority} does not lead, and names {established.leader[1]}")
        return established

    rpc_clients: dict[int, RpcClient] = {}
    places: dict[int, Endpoint] = {}
    async with trio.open_nursery() as nursery:

        def add(server: int, endpoint: Endpoint) -> None:
            config = LinkConfig(
                connect=partial(connect, server, endpoint),
                server_id=server,
                timeout_s=timeout_s,
                backoff=Backoff(random.random, longest_s=1.0),
                lazy=True,
            )
            rpc_clients[server] = RpcClient(config, unsent_timeout_s=PATIENCE * timeout_s)
            places[server] = endpoint
            nursery.start_soon(rpc_clients[server].run)

        def follow(server: int, text: str) -> None:
            try:
                endpoint = Endpoint.parse(text, default_transport)
                transport(endpoint.scheme)
            except (ConfigError, PluginError):
                return  # this client cannot dial that endpoint; another server may lead again
            if server not in places and len(places) < MAX_SERVERS:
                add(server, endpoint)

        for server, text in endpoints.items():
            add(server, Endpoint.parse(text, default_transport))
        client = FarmClient(rpc_clients, timeout_s, follow)
        nursery.start_soon(client._watch)
        yield client
        nursery.cancel_scope.cancel()
