"""A new farm that begins with the state of a saved snapshot.

It is not the old farm: it has another id and secret, so members of the old one cannot log in (D10), and the
two cannot mix. All its stores hold the state after one more entry, in the next term: the Configuration
with the new members. They may have ids of old ones; what the state says of these ids then continues.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from garlicfarm.application import StateMachine
from garlicfarm.errors import ConfigError, StorageError, StorageVersion
from garlicfarm.levels import LOWEST, algorithm_of, unknown_algorithm
from garlicfarm.raft.state import MAX_TERM
from garlicfarm.setup.provision import FarmPlan, Founding, MadeFarm, MemberPlan, create_farm
from garlicfarm.storage import Genesis, Saved, Snapshot
from garlicfarm.transport import Endpoint
from garlicfarm.wire.messages import ClusterServer, Configuration


def check_state(path: Path, snapshot: Snapshot, application: StateMachine) -> None:
    """Bring the new ``application`` to the state of the saved ``snapshot`` in the file ``path``.

    Raises `StorageVersion`, `StorageDamaged`: it cannot be restored.
    """
    if unknown := unknown_algorithm(snapshot.algorithm):
        raise StorageVersion(f"{path} is of {unknown}. Use the program of the farm that it was saved from")
    try:
        application.restore(snapshot.state)
    except StorageError as error:
        raise type(error)(f"{path}: {error}") from error


def restore_farm(
    out: Path,
    members: Mapping[int, MemberPlan],
    plan: FarmPlan,
    snapshot: Snapshot,
    saved: Saved,
    application: StateMachine,
) -> MadeFarm:
    """Make all nodes of a farm that continues ``snapshot``, each in its own directory ``out/node-<id>``, as
    `create_farm` does. ``plan``: what a snapshot does not say; name, application and length of the epochs are
    the snapshot's. ``application`` is in its state (`check_state`). Raises as `create_farm`."""

    def found(
        farm: FarmPlan, members: Mapping[int, MemberPlan], servers: tuple[ClusterServer, ...]
    ) -> Founding:
        index, term = snapshot.index + 1, snapshot.term + 1
        before = snapshot.configuration
        if term >= MAX_TERM:
            raise StorageError(f"the snapshot has term {snapshot.term}, which no other can follow")
        if before.level > LOWEST and any(Endpoint.parse(each.endpoint).scheme == "jraft" for each in servers):
            raise ConfigError(
                [f"the snapshot is of level {before.level}, and JRaft can be a member at level {LOWEST} only"]
            )
        configuration = Configuration(index, before.log_index, servers, before.level)
        application.configure(index, configuration)
        algorithm, farm_id = algorithm_of(before.level), secrets.token_bytes(16)
        known = {server.id: server for server in (*snapshot.all_members, *servers)}
        begins = Snapshot(
            farm_id,
            snapshot.application,
            algorithm,
            index,
            term,
            configuration,
            tuple(known[member] for member in sorted(known)),
            snapshot.application_entries,
            application.snapshot(),
        )
        genesis = Genesis(farm.name, farm_id, farm.application, algorithm, None, farm.epoch_length)
        return Founding(genesis, configuration, begins=begins)

    plan = msgspec.structs.replace(
        plan, name=saved.farm, application=snapshot.application, epoch_length=saved.epoch_length
    )
    return create_farm(out, members, plan, found)
