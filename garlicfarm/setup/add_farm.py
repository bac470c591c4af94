"""Adding a farm to an existing node: its secret, its store, and its table in the configuration.

The node must be stopped. Its other farms are not changed. The table is written last: a store without a table
is ignored.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from garlicfarm.config import Config
from garlicfarm.config.files import rewrite
from garlicfarm.config.model import PRESETS
from garlicfarm.config.toml import to_toml
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.join_token import JoinToken
from garlicfarm.errors import ConfigError, StorageError
from garlicfarm.regular_files import read_text
from garlicfarm.setup.provision import (
    FarmPlan,
    MadeFarm,
    MemberPlan,
    check_endpoints,
    farm_table,
    first_entries,
    founding_configuration,
    joining_genesis,
    make_store,
    new_genesis,
    pinned,
    plan_of,
)
from garlicfarm.storage import DataDirectory, Genesis
from garlicfarm.transport import Endpoint
from garlicfarm.wire.messages import ClusterServer, Configuration


def add_farm(config: Config, endpoint: str, farm: FarmPlan) -> MadeFarm:
    """Make a farm whose only member is the node of ``config``. Others dial it at ``endpoint``; "": where they
    dial its first farm.

    Mints farm id and farm secret. Raises `StorageInUse`: the node runs; `ConfigError`: it has a farm of that
    name, or the plan makes no valid configuration; `StorageError`. After an error nothing was made.
    """
    dialled = _dialled(config, endpoint)
    server = ClusterServer(config.node.id, str(dialled))
    configuration = founding_configuration((server,))
    genesis = new_genesis(farm, configuration)
    entries = first_entries(farm, {config.node.id: MemberPlan(endpoint=str(dialled))}, configuration)
    _add(config, dialled, farm, secrets.token_bytes(32), genesis, entries)
    return MadeFarm(genesis.farm_id, configuration, {config.node.id: config.base_dir})


def add_joining_farm(config: Config, endpoint: str, token: JoinToken) -> None:
    """Prepare the node of ``config`` to join the farm that ``token`` is for. Raises as `add_farm`, and
    `ConfigError` if the token is for another id."""
    if token.id != config.node.id:
        raise ConfigError(
            [
                f"the token is for node {token.id}, and {config.path} is of node {config.node.id}: make one "
                f"with member token --farm {token.farm} --id {config.node.id}, or name a new directory"
            ]
        )
    _add(config, _dialled(config, endpoint), plan_of(token), token.farm_secret, joining_genesis(token))


def remove_farm(config: Config, name: str, text: str) -> None:
    """Undo `add_joining_farm` of a farm that was never joined; ``text`` is the previous configuration. Raises
    `ConfigError`, `StorageError`."""
    with DataDirectory.open(config.node.data_dir) as directory:
        rewrite(config.path, text)
        _clear(_files(directory, name))


def _dialled(config: Config, endpoint: str) -> Endpoint:
    if not endpoint:
        first = config.farm[0]
        return Endpoint.parse(first.endpoint, first.default_transport)
    check_endpoints({config.node.id: MemberPlan(endpoint=endpoint)})
    dialled = Endpoint.parse(endpoint)
    if dialled.scheme != "ssl":
        return dialled
    certificate = config.transport.get("ssl", {}).get("certificate")
    if not isinstance(certificate, str):
        raise ConfigError([f"{config.path.name}: transport.ssl.certificate is missing"])
    return pinned(dialled, pin_of_file(config.base_dir / certificate))


def _add(
    config: Config,
    dialled: Endpoint,
    farm: FarmPlan,
    secret: bytes,
    genesis: Genesis,
    entries: tuple[bytes | Configuration, ...] = (),
) -> None:
    if farm.name in [section.name for section in config.farm]:
        raise ConfigError([f"{config.path} has a farm {farm.name} already; nothing was changed"])
    if farm.preset != config.node.preset:  # members of a farm may differ
        farm = msgspec.structs.replace(farm, raft={**PRESETS[farm.preset], **farm.raft})
    data = config.node.data_dir
    named = data.relative_to(config.base_dir) if data.is_relative_to(config.base_dir) else data
    table = farm_table(farm, dialled, str(named), MemberPlan(endpoint=str(dialled)))
    with DataDirectory.open(data) as directory, _all_or_nothing(_files(directory, farm.name)):
        make_store(data, farm, secret, genesis, entries)
        rewrite(config.path, f"{read_text(config.path).rstrip()}\n{to_toml({'farm': [table]})}")


def _files(directory: DataDirectory, name: str) -> tuple[Path, ...]:
    """A farm's files in a data directory. Raises `LocalProtocolError`: not a farm's name."""
    store, kept = directory.farm_directory(name), directory.path / "secrets"
    return store, kept / f"{name}.secret", kept / f"{name}.master.key"


@contextmanager
def _all_or_nothing(paths: tuple[Path, ...]) -> Iterator[None]:
    there = [str(path) for path in paths if path.exists()]
    if there:
        raise ConfigError(
            [f"{', '.join(there)} would be overwritten: of an earlier farm? Move it away first"]
        )
    try:
        yield
    except BaseException:
        _clear(paths)
        raise


def _clear(paths: tuple[Path, ...]) -> None:
    try:
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {error.filename}: {error.strerror}") from error
