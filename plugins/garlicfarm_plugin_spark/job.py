"""What `garlicfarm rank` runs, and whom it tells: a job, its viewer, and the options of its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.node_reader import FarmHead
from garlicfarm_plugin_spark.options import MAX_ENTRIES
from garlicfarm_plugin_spark.ranking import Rows

ROWS_BYTES, MEMBER_BYTES = 1 << 28, 1 << 10
"""What the rows of a batch may take, which the sink holds; what a row takes for each member of its farm."""


@dataclass(frozen=True)
class Job:
    """What to run.

    ``farms``: names; none: all that ``nodes`` have. ``checkpoint``: a path,
    or a URI of any file system that Spark's Hadoop knows. ``scratch``: an empty directory for the lifetime of
    the job. ``sink``: ``console``, ``memory``, ``garlicfarm``, or ``parquet:`` and a path or URI. ``rows``:
    see `rankings`. ``query``: the name by which nodes know the query; the sink ``garlicfarm`` needs it.
    ``once``: end when everything committed at the start is ranked; else a batch begins every ``trigger_ms``
    at most (0: as soon as the one before has ended). ``max_entries``: of a batch; None: see `bounded`.
    ``verify``: compare states with the nodes'. ``metrics``: host and port to serve them.
    """

    nodes: NodeAccess
    farms: tuple[str, ...]
    checkpoint: str
    scratch: Path
    master: str = "local[2]"
    sink: str = "console"
    rows: Rows = "batches"
    query: str | None = None
    once: bool = False
    trigger_ms: int = 5_000
    max_entries: int | None = None
    verify: bool = False
    metrics: tuple[str, int] | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    verbosity: int = 0

    def ranks(self, farm: str, head: FarmHead) -> bool:
        """Whether it is to rank this farm."""
        return farm in self.farms if self.farms else head.application == "publisher"


class Viewer(Protocol):
    """Receives the results. Called on Trio's thread."""

    async def ranking(self, farm: str, text: str, skipped: Mapping[str, int]) -> None:
        """A ranking was emitted (sink ``console`` only): the body of ``GET …/ranking`` at its index, and
        the number of skipped entries up to there, by reason."""

    def progress(self, farm: str, index: int | None, commit_index: int | None) -> None:
        """The last ranked index, and the commit index; None: unknown."""

    def verified(self, count: int) -> None:
        """So many states so far were equal to those of nodes."""

    def note(self, text: str) -> None:
        """A message for the user."""


def ranked_farms(job: Job, heads: Mapping[str, FarmHead]) -> dict[str, FarmHead]:
    """The farms of ``job`` among those of its nodes, by name.

    Raises `ConfigError`: one does not run the application ``publisher``, or none does.
    """
    found = {name: head for name, head in heads.items() if job.ranks(name, head)}
    if not found:
        raise ConfigError(["no farm of these nodes runs the application publisher: no ranking"])
    for name, head in found.items():
        if head.application != "publisher":
            raise ConfigError([f"{name} runs the application {head.application}, not publisher: no ranking"])
    return found


def bounded(job: Job, members: int) -> Job:
    """``job`` with a ``max_entries``. Where each entry can have a row, it depends on the ``members`` of the
    largest farm: more rows than Spark hands to a driver would fail again and again."""
    if job.max_entries is not None:
        return job
    most = MAX_ENTRIES
    if job.rows != "batches":
        most = min(most, ROWS_BYTES // (MEMBER_BYTES * max(1, members)))
    return replace(job, max_entries=max(1, most))


def source_options(job: Job) -> dict[str, str]:
    """The options of ``format("garlicfarm")`` as the source of this job."""
    options = {
        **_access(job),
        "startingIndex": "state",
        "maxEntriesPerTrigger": str(MAX_ENTRIES if job.max_entries is None else job.max_entries),
    }
    if job.farms:
        options["farm"] = " ".join(job.farms)
    else:  # entries that one farm lost must not end the ranking of the others: a state of it stands for them
        options |= {"farm": "*", "application": "publisher", "failOnDataLoss": "false"}
    return options if job.query is None else {**options, "query": job.query}


def sink_options(job: Job) -> dict[str, str]:
    """The options of ``format("garlicfarm")`` as the sink of this job, which has a ``query``."""
    assert job.query is not None
    # Of all farms, one may be deleted or made anew after its rows were read.
    return {**_access(job), "query": job.query, "failOnDataLoss": str(bool(job.farms)).lower()}


def _access(job: Job) -> dict[str, str]:
    nodes = job.nodes
    options = {
        "url": " ".join(nodes.urls),
        "user": nodes.user,
        "passwordFile": str(nodes.password_file.resolve()),
    }
    if nodes.pin is not None:
        options["pin"] = nodes.pin
    if nodes.ca is not None:
        options["ca"] = str(nodes.ca.resolve())
    return options
