"""A process that writes to a store and can be killed: ``storage_child.py DIRECTORY SEED [OPTION=N]…``.

Prints ``durable TOKEN`` for each report, ``StorageError`` if the writer ends with one. Which steps it
takes follows from SEED alone (`steps`), so that a test can say what must be in the store.
Options: ``steps`` (else for ever), ``segment_bytes``, ``file_limit`` (bytes, RLIMIT_FSIZE).
"""

from __future__ import annotations

import os
import random
import resource
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import trio

from garlicfarm.errors import StorageError
from garlicfarm.raft.types import Entry, HardState, Persist
from garlicfarm.storage import LogStore, Writer, appender
from garlicfarm.wire import ValueType


def steps(seed: int, last: int, state: HardState) -> Iterator[Persist]:
    """Steps that a core could take on a log that ends at ``last``: appends, truncations, hard states."""
    rnd = random.Random(seed)
    token = 0
    while True:
        first = None
        if rnd.random() < 0.2 and last > state.commit:
            first = rnd.randint(state.commit + 1, last)
            last = first - 1
        term = state.term + rnd.randint(0, 1)
        entries = tuple(
            Entry(last + 1 + i, term, ValueType.APPLICATION, rnd.randbytes(rnd.choice((0, 200, 200, 3000))))
            for i in range(rnd.randint(0, 6))
        )
        last += len(entries)
        state = HardState(term, rnd.randint(0, 3), rnd.randint(state.commit, last))
        yield Persist(token, state, first, entries)
        token += 1


def contents(store: LogStore) -> tuple[HardState, list[Entry]]:
    last = store.last_index()
    return store.initial_state()[0], list(store.entries(1, last + 1, 1 << 40)) if last else []


def applied(state: HardState, log: list[Entry], step: Persist) -> tuple[HardState, list[Entry]]:
    kept = log if step.truncate_from is None else log[: step.truncate_from - 1]
    return step.hard_state or state, [*kept, *step.entries]


async def main(directory: Path, seed: int, options: dict[str, int]) -> None:
    appender.SEGMENT_BYTES = options.get("segment_bytes", appender.SEGMENT_BYTES)
    durable = trio.Event()

    def on_durable(token: int) -> None:
        os.write(1, b"durable %d\n" % token)
        durable.set()

    with closing(LogStore.open(directory, farm="farm")) as store:
        writing = Writer(store, on_durable)
        state, log = contents(store)
        if "file_limit" in options:
            resource.setrlimit(resource.RLIMIT_FSIZE, (options["file_limit"], resource.RLIM_INFINITY))
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: writing.run(task_status=task_status))
            for step in islice(steps(seed, len(log), state), options.get("steps")):
                durable = trio.Event()
                writing.submit(step)
                if step.token % 3:  # so that some batches hold several steps
                    await durable.wait()
            await durable.wait()
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    try:
        given = {name: int(number) for name, number in (option.split("=") for option in sys.argv[3:])}
        trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), given)
    except* StorageError as group:
        print("StorageError", group.exceptions[0], flush=True)
