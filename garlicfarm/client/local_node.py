"""Finds the node of this machine from its configuration alone.

::

    async with from_config("garlicfarm.toml") as client:
        index, term = await client.post("farm", b"an entry")
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from garlicfarm.client.trust import NodeAccess
from garlicfarm.config import Config, find_config, load
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.users import LOCAL_USER
from garlicfarm.errors import ConfigError, StorageMissing, UnreachableError
from garlicfarm.transport import Endpoint

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address on this machine of a listener that is bound to all addresses."""


def from_config(
    path: Path | str | None = None, *, user: str = LOCAL_USER, password_file: Path | str | None = None
) -> AdminClient:
    """An `AdminClient` for the node of this machine, as the command line makes one.

    The configuration names the data directory. That holds the admin URL (``admin.url``, written while the
    node runs), the certificate, whose pin is checked, and the password of the user ``local``, an admin.
    The process must run as the node's user to read it, or name another user.

    :param path: the node's ``garlicfarm.toml``. None: the one that the command line would use
        (``$GARLICFARM_CONFIG``, the current directory, ``~/.config/garlicfarm``, ``/etc/garlicfarm``).
    :param user: log in as this user of the node.
    :param password_file: a file of mode 0600 with that user's password. None: that of ``local``.
    :raises ConfigError: there is no such configuration, or it or a file that it names is not usable.
    :raises StorageMissing: the data directory is missing.
    :raises UnreachableError: the node does not run, and chooses another port at each start.
    """
    if (user == LOCAL_USER) != (password_file is None):
        raise ConfigError([f"give user and password_file together, or neither, to be {LOCAL_USER}"])
    given = None if path is None else Path(path)
    from garlicfarm.client.admin import client_of

    found = local_node(load(find_config(given, os.environ, Path.cwd()), os.environ))
    if password_file is not None:
        found = replace(found, user=user, password_file=Path(password_file))
    return client_of(found)


def local_node(config: Config) -> NodeAccess:
    """The node of this configuration, on this machine, as its user ``local``. Raises as `from_config`."""
    data_dir = config.node.data_dir
    return NodeAccess((admin_url(config),), LOCAL_USER, data_dir / "local.password", node_pin(config))


def node_pin(config: Config) -> str:
    """The pin of the node's certificate, ``sha256-BASE64URL``. Raises `ConfigError`, `StorageMissing`."""
    check_data_directory(config)
    return pin_of_file(config.node.data_dir / "tls" / "node.crt")


def admin_url(config: Config) -> str:
    """The node's admin URL, ``https://HOST:PORT``, as this machine reaches it.

    :raises StorageMissing: the data directory is missing.
    :raises UnreachableError: the node does not run, and chooses another port at each start.
    """
    bound = _bound(config)
    return str(replace(bound, host=_LOOPBACK.get(bound.host, bound.host)))


def remote_admin_url(config: Config) -> str:
    """The same for other machines: where the node listens on all addresses, it is at the host of its first
    farm's endpoint. Raises as `admin_url`."""
    bound, farm = _bound(config), config.farm[0]
    host = Endpoint.parse(farm.endpoint, farm.default_transport).host
    return str(replace(bound, host=host if bound.host in _LOOPBACK else bound.host))


def _bound(config: Config) -> Endpoint:
    """The bound endpoint of the admin listener."""
    check_data_directory(config)
    try:
        url = (config.node.data_dir / "admin.url").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        url = config.admin.url
    bound = Endpoint.parse(url.rstrip("/"))
    if bound.port == 0:  # any free port: only the running node knows it
        raise UnreachableError(f"no node runs in {config.node.data_dir}", "start it: garlicfarm node start")
    return bound


def check_data_directory(config: Config) -> None:
    """Raises `StorageMissing`: the configuration names a data directory that is missing."""
    data_dir = config.node.data_dir
    if not data_dir.is_dir():
        raise StorageMissing(
            f"there is no data directory {data_dir}. Is its disk mounted, and is node.data_dir in "
            f"{config.path} right?"
        )
