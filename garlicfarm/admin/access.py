"""Access to the admin API: Digest users with roles, and a Bearer token for the scraper.

Each role includes those before it (`garlicfarm.credentials.roles.ROLES`). Wrong passwords are
delayed by the rule of the farm's listener (`garlicfarm.credentials.login_attempts.LoginAttempts`).
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import os

import trio
from starlette.requests import HTTPConnection

from garlicfarm.admin.contract import NodeView
from garlicfarm.admin.problems import Problem
from garlicfarm.credentials.login_attempts import LoginAttempts
from garlicfarm.credentials.roles import UserRole
from garlicfarm.errors import ConfigError
from garlicfarm.http.digest import ALGORITHMS, REALM, DigestVerifier, Verified
from garlicfarm.transport import Peer

LOGGED_IN = "garlicfarm.logged_in"
"""Key in the state of a request's scope: a function of the server, called with each `Login` on the
connection."""


class Authenticator:
    """Authenticates requests. ``metrics_token`` is required of a scraper that does not come over loopback;
    "" refuses all of these."""

    def __init__(self, node: NodeView, metrics_token: str) -> None:
        self._users = node.users
        self._failures = node.metrics.auth_failures.labels("")
        self._token = metrics_token.encode()
        self._attempts = LoginAttempts()
        # A key of this process: after a restart clients get `stale` and log in again at once.
        self._digest = DigestVerifier(REALM, ALGORITHMS, os.urandom(32), node.users.lookup)

    async def user(self, request: HTTPConnection, role: UserRole) -> str:
        """The name of the user, with at least ``role``. Raises `Problem` 401 or 403."""
        origin = request.headers.get("origin")
        if origin is not None and origin != f"https://{request.headers.get('host')}":
            # A browser that is logged in here would lend its login to any page that it shows.
            raise Problem(
                403, "forbidden", "sent by a page of another site", "Use the API itself, or the command line."
            )
        query = request.scope["query_string"]
        target = (request.scope["raw_path"] + (b"?" + query if query else b"")).decode("ascii", "replace")
        method = request.scope.get("method", "GET")  # a WebSocket begins as a GET
        peer = Peer(request.client.host if request.client is not None else "", True, None)
        now_s = trio.current_time()
        try:
            answer, wait_s = self._attempts.judge(
                self._digest, peer, method, target, request.headers.get("authorization"), now_s
            )
            login = self._users.login(answer.user) if isinstance(answer, Verified) else None
        except ConfigError as error:
            raise Problem(
                503,
                "users-unusable",
                "the users file of this node cannot be read, so no user can log in",
                "The node's log says what is wrong with the file. So does `garlicfarm user list` on its "
                "machine, run as the node's user.",
            ) from error
        if answer is None:
            raise Problem(
                429,
                "too-soon",
                "wrong passwords were tried for this user from this address: this one was not checked",
                "Try again in a moment. On the node's machine, `local` can always log in.",
                headers=[("Retry-After", str(math.ceil(wait_s)))],
            )
        if not isinstance(answer, Verified):
            if answer.failed:
                self._failures.inc()
                await trio.sleep(wait_s)
            challenges = self._digest.challenges(now_s, os.urandom(16), stale=answer.stale)
            raise Problem(
                401,
                "unauthorized",
                "the user or the password is wrong" if answer.failed else "a user of this node must log in",
                "Log in with Digest, as a user from `garlicfarm user list`.",
                headers=[("WWW-Authenticate", challenge) for challenge in challenges],
            )
        if login is not None and (logged_in := request.scope.get("state", {}).get(LOGGED_IN)) is not None:
            logged_in(login)
        if login is None or not login.has_role(role):
            has = "none" if login is None else login.role or "none"
            raise Problem(
                403,
                "forbidden",
                f"this needs the role {role}; {answer.user} has {has}",
                "Log in as another user, or have the role changed with `garlicfarm user add`.",
            )
        return answer.user

    def scraper(self, request: HTTPConnection) -> None:
        """Admit a scraper on loopback or with the token. Raises `Problem` 401."""
        server = request.scope.get("server")
        if server is not None and ipaddress.ip_address(server[0]).is_loopback:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode()
        if scheme.lower() == "bearer" and self._token and hmac.compare_digest(given, self._token):
            return
        raise Problem(
            401,
            "unauthorized",
            "not over loopback: this needs the Bearer token of metrics_token_file",
            "Send `Authorization: Bearer …` with the contents of that file.",
            headers=[("WWW-Authenticate", "Bearer")],
        )
