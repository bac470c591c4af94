"""A log whose farm loses publishers, and gets them back: what `rank whatif` is tested with."""

from __future__ import annotations

import random

from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.ranking import Row
from tests.publishing.posting import INTERVAL_MS, WORST, Posting, noisy
from tests.publishing.scripted_log import T0, configuration


def recorded(seed: int, rounds: int = 6, margin: int = 20_000) -> list[Row]:
    """Rows of four members, of which one after the other dies and returns; the third reports no key."""
    chance = random.Random(seed)
    posting = Posting(
        range(1, 5), seed, noisy(chance, WORST), lambda member: None if member == 3 else True, keep=True
    )
    first = configuration(1, 2, 3, 4, index=1)
    order = encode_admin("farm", T0, 1, None, "publisher", "alice", {"margin": margin})
    posting.farm = PublisherFold("farm")
    posting.farm.configure(1, first)
    posting.farm.apply(2, 1, order)
    posting.index = 2
    for _ in range(rounds):
        dead = chance.randrange(1, 5)
        posting.run(chance.randrange(3, 20) * INTERVAL_MS)
        posting.alive.discard(dead)
        posting.run(chance.randrange(1, 20) * INTERVAL_MS)
        posting.revive(dead)
    values = [order, *posting.entries]
    application = int(ValueType.APPLICATION)
    return [
        (1, 1, int(ValueType.CONFIGURATION), encode_configuration(first)),
        *((index, 1, application, value) for index, value in enumerate(values, 2)),
    ]
