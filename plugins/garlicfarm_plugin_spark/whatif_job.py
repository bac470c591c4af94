"""Replays a recorded log under many settings in Spark, for `garlicfarm rank whatif`.

Each setting is a Spark job of its own, as many at a time as Spark has cores: its outcome arrives once it is
known, and is kept if the rest is cancelled. The log goes to each of Spark's Python processes once, and is
decoded there once; the process keeps the `Recording` for its next settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import trio

from garlicfarm.errors import GarlicFarmError
from garlicfarm_plugin_spark.grid import Setting
from garlicfarm_plugin_spark.recorded_log import RecordedLog
from garlicfarm_plugin_spark.runner import query_error
from garlicfarm_plugin_spark.session import Session
from garlicfarm_plugin_spark.whatif import Outcome, Recording

__all__ = ["Answer", "Question", "compare", "outcome_of", "ranked"]


@dataclass(frozen=True)
class Question:
    """What to replay, and where. ``settings``: beside history, which is always compared. ``scratch``: an
    empty directory that outlives the comparison."""

    log: RecordedLog
    settings: Sequence[Setting]
    scratch: Path
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    verbosity: int = 0


@dataclass(frozen=True)
class Answer:
    """An outcome. ``is_current``: it is history."""

    setting: Setting
    outcome: Outcome

    @property
    def is_current(self) -> bool:
        return self.setting == Setting()


async def compare(question: Question, tell: Callable[[Answer], None]) -> None:
    """Replay the log under every setting, history first, and ``tell`` each outcome as it is known; also those
    before it is cancelled.

    :raises ConfigError: Java, Spark or a setting is not usable. :raises GarlicFarmError: Spark fails, or the
        log has nothing to compare. :raises StorageError: the state that the log begins with is unusable.
    """
    session = await trio.to_thread.run_sync(
        partial(
            Session,
            question.scratch,
            master=question.master,
            conf={"spark.app.name": "garlicfarm rank whatif", **question.conf},
            verbosity=question.verbosity,
        )
    )
    try:
        spark = session.spark.sparkContext
        log = await trio.to_thread.run_sync(spark.broadcast, question.log)
        run = partial(_run, session, partial(outcome_of, uuid4().hex, log))
        limiter = trio.CapacityLimiter(1)

        async def ask(setting: Setting) -> None:
            # A call that is cancelled is left alone: it ends with the session.
            found, cores = await trio.to_thread.run_sync(
                run, setting, limiter=limiter, abandon_on_cancel=True
            )
            limiter.total_tokens = cores  # may grow: executors of a cluster register by and by
            tell(Answer(setting, found))

        await ask(Setting())
        async with trio.open_nursery() as nursery:
            for setting in question.settings:
                nursery.start_soon(ask, setting)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(session.close)


def _run(session: Session, task: Callable[[Setting], Outcome], setting: Setting) -> tuple[Outcome, int]:
    """The outcome, and how many cores Spark has now."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    spark = session.spark.sparkContext
    try:
        found: list[Outcome] = spark.parallelize([setting], 1).map(task).collect()
        return found[0], max(1, spark.defaultParallelism)
    except (Py4JError, PySparkException, OSError) as error:
        if not session.alive:
            raise GarlicFarmError("Spark's Java process ended: start again, -v shows what it says") from error
        raise query_error(error) from error


_recordings: dict[str, Recording] = {}


def outcome_of(run: str, log: Any, setting: Setting) -> Outcome:
    """The outcome of one setting, in a process of Spark's. ``log``: the broadcast `RecordedLog` of this
    ``run``, decoded when the process sees the run for the first time."""
    if run not in _recordings:
        _recordings.clear()
        recorded: RecordedLog = log.value
        _recordings[run] = Recording(recorded.farm, recorded.rows())
    return _recordings[run].outcome(setting)


def ranked(answers: Sequence[Answer]) -> list[Answer]:
    """The answers by score lost, then changes; without those that repeat history."""
    current = [each for each in answers if each.is_current]
    others = [
        each
        for each in answers
        if not each.is_current and all(_figures(each) != _figures(one) for one in current)
    ]
    return sorted(
        [*current, *others],
        key=lambda each: (*_cost(each.outcome), not each.is_current),
    )


def _cost(outcome: Outcome) -> tuple[object, ...]:
    return (outcome.score_lost, outcome.changes, outcome.margin, outcome.R, [*outcome.weights.values()])


def _figures(answer: Answer) -> dict[str, object]:
    """All but the time that it took."""
    found: dict[str, object] = msgspec.structs.asdict(answer.outcome)
    del found["cpu_us"]
    return found
