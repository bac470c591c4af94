"""Replays a recorded log under many settings, each in one of several processes, for `garlicfarm rank whatif`.

The log is decoded and judged once, here. A process of ``python -m garlicfarm_plugin_spark.replays`` gets that
`Recording` on stdin, then settings, all pickled, and answers each with its `Outcome` in a line of JSON. It
ends when stdin does, so none outlives this process, and a comparison that is cancelled ends them at once.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import trio

from garlicfarm.errors import GarlicFarmError
from garlicfarm_plugin_spark.grid import Setting
from garlicfarm_plugin_spark.whatif import Outcome, Recording


@dataclass(frozen=True)
class Answer:
    """An outcome. ``is_current``: it is history."""

    setting: Setting
    outcome: Outcome

    @property
    def is_current(self) -> bool:
        return self.setting == Setting()

    def row(self) -> dict[str, Any]:
        """What a row or an object of it shows."""
        return {"current": self.is_current, **msgspec.structs.asdict(self.outcome)}


async def compare(
    recording: Recording, settings: Sequence[Setting], workers: int, tell: Callable[[Answer], None]
) -> None:
    """Replay the log under every setting and as it was, and ``tell`` each outcome as it is known; also those
    before it is cancelled.

    :param workers: the most processes, 1 or more.
    :raises ConfigError: the weights of a setting do not add up; nothing is replayed.
    :raises GarlicFarmError: a process ended, as for want of memory.
    """
    for setting in settings:
        setting.pinned(recording.history.farm.policy)
    log = await trio.to_thread.run_sync(pickle.dumps, recording, abandon_on_cancel=True)
    send, receive = trio.open_memory_channel[Setting](0)
    async with trio.open_nursery() as nursery, send:
        for _ in range(min(workers, len(settings) + 1)):
            nursery.start_soon(_replay, log, receive, tell)
        for setting in (Setting(), *settings):
            await send.send(setting)


async def _replay(
    log: bytes, settings: trio.MemoryReceiveChannel[Setting], tell: Callable[[Answer], None]
) -> None:
    """Have one process answer settings until there are no more."""
    async with trio.open_nursery() as nursery:
        start = partial(
            trio.run_process,
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            check=False,
            process_group=0,  # Ctrl-C is for this process, which ends the others
        )
        process: trio.Process = await nursery.start(start)
        assert process.stdin is not None
        assert process.stdout is not None
        async with process.stdin as stdin, process.stdout as stdout:
            with suppress(trio.BrokenResourceError):  # told below
                await stdin.send_all(log)
            async for setting in settings:
                with suppress(trio.BrokenResourceError):
                    await stdin.send_all(pickle.dumps(setting))
                line = b""
                while not line.endswith(b"\n"):
                    piece = await stdout.receive_some()
                    if not piece:
                        raise GarlicFarmError(
                            "a process that replays the log ended with the status"
                            f" {await process.wait()}: --workers 1 needs the least memory"
                        )
                    line += piece
                tell(Answer(setting, msgspec.json.decode(line, type=Outcome)))


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


def varied_parts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parts whose weights are not the same in all rows."""
    return [part for part in rows[0]["weights"] if len({row["weights"][part] for row in rows}) > 1]


def _cost(outcome: Outcome) -> tuple[object, ...]:
    return (outcome.score_lost, outcome.changes, outcome.margin, outcome.R, [*outcome.weights.values()])


def _figures(answer: Answer) -> Outcome:
    """All but the time that it took."""
    return msgspec.structs.replace(answer.outcome, cpu_us=0)


def _main() -> None:
    recording: Recording = pickle.load(sys.stdin.buffer)
    with suppress(EOFError):
        while True:
            outcome = recording.outcome(pickle.load(sys.stdin.buffer))
            sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
