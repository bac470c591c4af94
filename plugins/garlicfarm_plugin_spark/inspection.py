"""What a checkpoint says about its farms, without the query that wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.checkpoint import newest_batch
from garlicfarm_plugin_spark.directory import Directory, HadoopDirectory, LocalDirectory, is_uri, location
from garlicfarm_plugin_spark.node_reader import NodeReader
from garlicfarm_plugin_spark.session import Session
from garlicfarm_plugin_spark.stored_state import StoredFold, stored_folds

POLICY = ("interval_ms", "R", "margin", "lifetime_ms", "weights", "overrides", "excluded")


def inspect(
    checkpoint: str, scratch: Path, conf: Mapping[str, str], nodes: NodeAccess | None, verbosity: int = 0
) -> list[dict[str, Any]]:
    """A row for each farm, by name, as of the newest batch that is done. Blocks, for half a minute.

    :param checkpoint: a path or a URI.
    :param scratch: an empty directory.
    :param conf: settings of Spark.
    :param nodes: tell the lag.
    :raises ConfigError: there is no such state, or Java or Spark is not usable.
    :raises UnreachableError, AuthError: of the nodes, or of the file system.
    """
    if not is_uri(checkpoint):
        _require_batch(LocalDirectory(Path(checkpoint)))  # before Spark starts
    commits = {}
    if nodes is not None:
        with closing(NodeReader(nodes)) as reader:
            commits = {head.farm_id: head.commit_index for head in reader.heads().values()}
    session = Session(scratch, master="local[1]", conf=conf, verbosity=verbosity)
    try:
        where = location(checkpoint)
        batch = _require_batch(HadoopDirectory(where, session.spark))
        folds = stored_folds(session.spark, where)
    finally:
        session.close()
    rows = [described(fold, batch, commits.get(fold.farm_id)) for fold in folds]
    return sorted(rows, key=lambda row: (row["farm"], row["farm_id"]))


def described(fold: StoredFold, batch: int, commit_index: int | None) -> dict[str, Any]:
    """The row of one farm. ``commit_index``: according to a node; None: unknown."""
    # By its words, not by this program's rules: the checkpoint may be of others.
    state = json.loads(fold.snapshot)
    return {
        "farm": state["farm"],
        "farm_id": fold.farm_id,
        "index": fold.index,
        "publisher": state["publisher"],
        "policy": {name: state["policy"][name] for name in POLICY},
        "algorithm": state["algorithm"],
        "batch": batch,
        "lag": None if commit_index is None else max(0, commit_index - fold.index),
    }


def _require_batch(checkpoint: Directory) -> int:
    batch = newest_batch(checkpoint, "commits")
    if batch is None:
        raise ConfigError(
            [f"{checkpoint.name} is not a checkpoint with a finished batch: name the one of --checkpoint"]
        )
    return batch
