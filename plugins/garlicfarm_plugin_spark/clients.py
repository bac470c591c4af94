"""Connections to nodes.

Imported only where a connection is opened: importing httpx would make a worker start too slowly.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import httpx

from garlicfarm.client.trust import NodeAccess, client_tls, node_address
from garlicfarm.credentials.private_files import read_private_file

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0  # shorter than the listener's


def connect(url: str, nodes: NodeAccess) -> tuple[str, httpx.Client]:
    """The node's address without a pin, and a client for it, which the caller closes.

    :param url: that of one of ``nodes``.
    :raises ConfigError: an unusable URL, pin, authority or password file.
    """
    address, pin = node_address(url)
    return address, httpx.Client(
        auth=FilePassword(nodes.user, nodes.password_file),
        verify=client_tls(pin=pin or nodes.pin, ca=nodes.ca),
        timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
        trust_env=False,
    )


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
