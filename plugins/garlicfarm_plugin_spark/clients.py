"""Connections to nodes, shared by all farms that a process reads there.

Imported only where a connection is opened: importing httpx would make a worker start too slowly.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import httpx

from garlicfarm.client.trust import client_tls, node_address
from garlicfarm.credentials.private_files import read_private_file

__all__ = ["Login", "NodeClients"]

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0  # shorter than the listener's


@dataclass(frozen=True, slots=True)
class Login:
    """A user of a node, and how the node's certificate is checked: by ``pin``, else by ``ca``, else by the
    system's authorities."""

    user: str
    password_file: Path
    pin: str | None
    ca: Path | None


class NodeClients:
    """HTTP clients, one for each node and login. Their owner closes them; feeds that share them do not."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, Login], httpx.Client] = {}

    def client(self, url: str, login: Login) -> tuple[str, httpx.Client]:
        """The node's address without a pin, and the client for it.

        :param url: ``https://host:port``, with or without its own pin.
        :raises ConfigError: an unusable URL, pin, authority or password file.
        """
        address, pin = node_address(url)
        if (url, login) not in self._clients:
            self._clients[url, login] = httpx.Client(
                auth=FilePassword(login.user, login.password_file),
                verify=client_tls(pin=pin or login.pin, ca=login.ca),
                timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
                trust_env=False,
            )
        return address, self._clients[url, login]

    def close(self) -> None:
        """Close all connections."""
        while self._clients:
            self._clients.popitem()[1].close()


class FilePassword(httpx.Auth):
    """Digest authentication with a password from a file. When a node refuses the password, the file is read
    again, and if it has changed, the request is repeated once: a query can run for longer than a password is
    valid."""

    def __init__(self, user: str, file: Path) -> None:
        """Raises `ConfigError`: the file cannot be read, or others can read it."""
        self._user = user
        self._file = file
        self._password = read_private_file(file).strip()
        self._digest = httpx.DigestAuth(user, self._password)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        used = self._password
        answer = yield from self._ask(request)
        if answer.status_code != httpx.codes.UNAUTHORIZED:
            return
        if self._password == used:
            self._password = read_private_file(self._file).strip()
            self._digest = httpx.DigestAuth(self._user, self._password)
        if self._password != used:
            request.headers.pop("Authorization", None)
            yield from self._ask(request)

    def _ask(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, httpx.Response]:
        """Run the steps of Digest; returns the last response."""
        steps = self._digest.auth_flow(request)
        asked = next(steps)
        while True:
            answer = yield asked
            try:
                asked = steps.send(answer)
            except StopIteration:
                return answer
