"""Runs a store that acknowledges what is not on disk: ``python -m tests.dafka.store_mutant NAME store …``."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable

from garlicfarm.cli import main
from garlicfarm_plugin_dafka.record_files import RecordFiles
from garlicfarm_plugin_dafka.store_core import StoreCore, Unsaved

BEHIND = 20


def acknowledge_before_saving() -> None:
    """Batches are acknowledged at once, and saved once twenty more are: never are all of them saved."""
    save = RecordFiles.save
    waiting: deque[Unsaved] = deque()

    def save_later(self: RecordFiles, batch: Iterable[Unsaved], now_ms: int) -> None:
        waiting.extend(batch)
        while len(waiting) > BEHIND:
            save(self, [waiting.popleft()], now_ms)

    RecordFiles.save = save_later


def acknowledge_what_is_received() -> None:
    """An ACK says what was received, not what was saved."""
    take = StoreCore.take_unsaved

    def take_and_say_saved(self: StoreCore) -> list[Unsaved]:
        self.on_saved(batch := take(self))
        return batch[:0]

    StoreCore.take_unsaved = take_and_say_saved


MUTANTS = {
    "early": acknowledge_before_saving,
    "received": acknowledge_what_is_received,
}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    main(["dafka", *sys.argv[1:]])
