"""Incoming connections: the handshake, then a session with the farm that it names."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

import trio

from garlicfarm.config import ListenerSection
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import ConfigError, OutcomeUnknown, first_error
from garlicfarm.http.upgrade import FarmCredentials
from garlicfarm.logs import EventLogger, place_of
from garlicfarm.metrics import NodeMetrics
from garlicfarm.net.handshake import (
    Established,
    HandshakeLimiter,
    respond,
    without_handshake,
)
from garlicfarm.net.link import CONNECTION_ERRORS, close
from garlicfarm.node.hosted_farm import HostedFarm
from garlicfarm.node.session import Principal
from garlicfarm.node.transports import Transports
from garlicfarm.transport import Endpoint, Peer, listener_problems

HANDSHAKE_TIMEOUT_S = 10.0
SESSIONS_PER_USER = 16
JRAFT_SESSIONS = 256  # in all: there are no users to count them by


class Listeners:
    """Serves the incoming connections of a node. ``farms``: the running ones, by name."""

    def __init__(
        self,
        transports: Transports,
        farms: Mapping[str, HostedFarm],
        users: UserStore,
        metrics: NodeMetrics,
        log: EventLogger,
    ) -> None:
        self._transports = transports
        self._farms = farms
        self._users = users
        self._metrics = metrics
        self._log = log
        self._sessions: dict[tuple[str, str], deque[trio.CancelScope]] = {}

    def of_farms(self, listeners: Sequence[ListenerSection]) -> list[ListenerSection]:
        """Those that serve a farm: a farm that this node was told to leave is not there."""
        return [listener for listener in listeners if self._names(listener) or not self._farms]

    def _names(self, listener: ListenerSection) -> tuple[str, ...]:
        return tuple(name for name in listener.farms or self._farms if name in self._farms)

    def check(self, listener: ListenerSection) -> None:
        """Raises `ConfigError` if this listener is not allowed."""
        url = Endpoint.parse(listener.url)
        farms = self._names(listener)
        if problems := listener_problems(self._transports.get(url.scheme), url, farms):
            raise ConfigError(problems)

    async def listen(self, listener: ListenerSection, *, task_status: trio.TaskStatus[Endpoint]) -> NoReturn:
        """Listen until cancelled; reports the bound address. Raises `TransportError` if it cannot listen."""
        url = Endpoint.parse(listener.url)
        names = self._names(listener)
        credentials = {name: self._farms[name].credentials for name in names}
        # How long members that dial us wait to be admitted (D3 bounds what strangers cost).
        patience_s = [self._farms[name].replica.section.raft.rpc_timeout_s for name in names]
        limiter = HandshakeLimiter(
            admission=self._transports.admission,
            deadline_s=max(HANDSHAKE_TIMEOUT_S, *patience_s),
            longest_delay_s=min(patience_s) / 2,
            on_rejected=partial(self._transports.on_rejected, url.scheme),
        )
        handler = partial(self._serve_stream, url.scheme, credentials, limiter)
        await self._transports.get(url.scheme).serve(url, handler, task_status=task_status)

    async def _serve_stream(
        self,
        scheme: str,
        credentials: Mapping[str, FarmCredentials],
        limiter: HandshakeLimiter,
        stream: trio.abc.Stream,
        peer: Peer,
    ) -> None:
        """Serve one incoming connection. A peer's fault ends here, and affects only its connection."""
        connections = self._metrics.listener_connections.labels(scheme, "open")
        connections.inc()
        try:
            established: Established | None
            if self._transports.get(scheme).handshake:
                established = await respond(stream, credentials, limiter, peer)
            else:
                established = without_handshake(stream, next(iter(credentials)))
            if established is not None:
                await self._serve_session(established, peer)
        except* (*CONNECTION_ERRORS, OutcomeUnknown) as group:
            lost = first_error(group)
            self._metrics.listener_rejected.labels(scheme, "broken").inc()
            cause = str(lost) or type(lost).__name__
            self._log.warning("connection-lost", address=peer.address, cause=cause)
        except* Exception as group:  # noqa: BLE001
            # A defect of ours, or a damaged users file. It must not end other connections, nor go unnoticed.
            # Log where, not what: the text may quote the peer.
            error = first_error(group)
            self._metrics.listener_rejected.labels(scheme, "defect").inc()
            self._log.error("connection-defect", error=type(error).__name__, where=place_of(error))
        finally:
            connections.dec()
            await close(stream)

    async def _serve_session(self, established: Established, peer: Peer) -> None:
        farm = self._farms.get(established.farm)
        if farm is None:
            return
        principal = self._principal(established, peer)
        if principal is None:
            return
        user = established.user
        scopes = self._sessions.setdefault((established.farm, user), deque())
        with trio.CancelScope() as scope:
            scopes.append(scope)
            if len(scopes) > (SESSIONS_PER_USER if user else JRAFT_SESSIONS):
                scopes.popleft().cancel()  # the oldest is most likely to be half open
            try:
                await farm.replica.serve(established.stream, principal, established.leftover)
            finally:
                if scope in scopes:
                    scopes.remove(scope)
                if principal.member_id:  # it was there until now
                    self._transports.admission.welcome(peer)

    def _principal(self, established: Established, peer: Peer) -> Principal | None:
        """The principal that logged in; None: a user that was removed since."""
        user = established.user
        if user.isdigit():
            self._transports.admission.welcome(peer)
            name, program = f"member {user}", established.program
            return Principal(name, int(user), True, established.extensions, program=program)
        if not user:
            return Principal("a JRaft peer", 0, True, is_jraft=True)
        login = self._users.login(user)
        if login is None:
            return None
        return Principal(f"user {user}", 0, False, established.extensions, login=login)
