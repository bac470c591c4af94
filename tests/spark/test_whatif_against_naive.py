"""What `rank whatif` says of a log, against `naive_whatif`, which shares nothing with it."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import Configuration, ValueType
from garlicfarm_plugin_spark.grid import Setting
from garlicfarm_plugin_spark.ranking import STATE, Fold, Row
from garlicfarm_plugin_spark.whatif import Recording
from tests.publishing.naive_fold import DEFAULTS, NaiveFold
from tests.publishing.scripted_log import T0, configuration, destination
from tests.spark.naive_whatif import Step, figures

INTERVAL_MS = 1000
TICK_MS = 250  # so coarse that limits are met exactly
WEIGHTS = {**dict.fromkeys(DEFAULTS["weights"], 0), "job_lag": 60, "bandwidth_headroom": 40}
PINS: list[dict[str, Any]] = [{}, {"margin": 0}, {"R": 6, "margin": 30_000}, {"weights": WEIGHTS}]


class Log:
    """Members that post, fall silent, lie, are removed and return, as ``chance`` says."""

    def __init__(self, chance: random.Random, length: int) -> None:
        self.chance, self.naive = chance, NaiveFold("farm")
        self.level = chance.choice([0, 2, 3])
        self.boots = dict.fromkeys(range(6), 1)
        self.steps: list[Step] = []
        self.members = [*range(1, chance.choice([2, 3, 3, 4]) + 1)]
        self.quality = {member: chance.randrange(101) for member in range(1, 6)}
        self.silent: set[int] = set()
        self.now_ms, self.sequences = T0, Counter[int]()
        likely = chance.choice([0, 0.8, 0.8, 0.8])
        self.keyed = {member for member in range(1, 6) if chance.random() < likely}
        self.worthless = chance.choice([0, 0, 1])  # a member with the score 0
        self.honest = chance.choice([1, 1, 0.7])
        self.take([*self.members])
        self.take(self.order("publisher", {"margin": chance.choice([0, 0, 20_000])}))
        self.take(self.order("interval", {"ms": INTERVAL_MS}))
        while len(self.steps) < length:
            self.now_ms += TICK_MS * chance.randrange(2 * INTERVAL_MS // TICK_MS // len(self.members) + 1)
            self.take(self.step())

    def take(self, step: Step) -> None:
        self.steps.append(step)
        if isinstance(step, list):
            self.naive.configure(len(self.steps), step, self.level)
        else:
            self.naive.apply(len(self.steps), *step)

    def step(self) -> Step:
        chance, what = self.chance, self.chance.random()
        if what < 0.04:
            one = chance.randrange(1, 6)
            self.members = sorted({*self.members} ^ {one}) or self.members
            return [*self.members]
        if what < 0.06:
            mode = chance.choice(["off", "on", None])
            return self.order("override", {"member": chance.choice(self.members), "mode": mode})
        if what < 0.07:
            return self.order("interval", {"ms": chance.choice([2000, 3000])})
        if what < 0.08:
            return self.order("weights", WEIGHTS)
        if what < 0.09:
            return b"[1]", "not an object"
        if what < 0.12 and (holders := [*self.naive.holders]):
            return self.lost(chance.choice([one for one in holders if one in self.silent] or holders))
        if what < 0.16:
            one = chance.choice(self.members)
            self.silent ^= {one}
            self.boots[one] += chance.choice([0, 1])
        if what < 0.25:
            self.quality[chance.choice(self.members)] = chance.randrange(101)
        return self.status(chance.choice([one for one in self.members if one not in self.silent] or [1]))

    def order(self, action: str, args: dict[str, Any]) -> Step:
        return self.entry({"id": 1, "config": {"admin": {"action": action, "by": "alice", "args": args}}})

    def lost(self, member: int) -> Step:
        since = self.naive.since if member == self.naive.publisher else self.naive.holders[member]
        index = since - self.chance.choice([0, 0, 0, 1])
        return self.order("lost", {"member": member, "index": max(index, 1), "term": 1})

    def status(self, member: int) -> Step:
        chance, quality = self.chance, self.quality[member]
        publishing = self.naive.publisher == member and self.naive.due_since is not None
        if chance.random() > self.honest:
            publishing = not publishing
        meta = {"publishing": publishing} if member in self.keyed else {}
        used = {"in": 1000 - 10 * quality, "out": 0}
        applied = len(self.steps) - chance.choice([0, 0, 0, 1, 2, 9, -3])
        node: dict[str, Any] = {"applied": max(applied, 0)} | chance.choice(
            [{}, {}, {"interval_ms": 2000, "R": 4}]
        )
        node["boot"] = self.boots[member]
        router: dict[str, Any] = {"jobLag": chance.choice([10, 1000 - 9 * quality])}
        leaf: dict[str, Any] = {"destination": destination(member)}
        if member == self.worthless:
            router = {"uptime": 0, "jobLag": 2**63 - 1, "exploratoryTunnels": 0, "participatingTunnels": 0}
            leaf |= {"configuredTunnels": {"in": 2**31, "out": 2**31}, "currentTunnels": {"in": 1, "out": 1}}
            used, node = {"in": 1000, "out": 1000}, node | {"tests": [[1 + member % 4, -1]]}
        router |= {"configuredBandwidth": {"in": 1000, "out": 1000}, "currentBandwidth": used}
        return self.entry(
            {
                "id": member,
                "config": {"node": node if member == self.worthless or chance.random() < 0.9 else {}},
                "meta": meta | {"publishConfig": chance.choice(["auto"] * 15 + ["off"])},
                "router": router,
                "destinations": [leaf],
            }
        )

    def entry(self, said: dict[str, Any]) -> Step:
        self.sequences[said["id"]] += self.chance.choice([1] * 15 + [0])
        date = self.now_ms + TICK_MS * self.chance.choice([0, 0, 0, -2, 1])
        whole = {"cluster": "farm", "sequence": self.sequences[said["id"]], "date": date} | said
        return json.dumps(whole, separators=(",", ":")).encode(), None

    def rows(self) -> list[Row]:
        """Level 0 is raised to 1 on the way, which decides nothing of what `rank whatif` says."""
        kinds = int(ValueType.CONFIGURATION), int(ValueType.APPLICATION)
        return [
            (index, 1, kinds[0], encode_configuration(self.configuration(index, step)))
            if isinstance(step, list)
            else (index, 1, kinds[1], step[0])
            for index, step in enumerate(self.steps, 1)
        ]

    def configuration(self, index: int, members: list[int]) -> Configuration:
        level = self.level or int(2 * index > len(self.steps))
        return msgspec.structs.replace(configuration(*members, index=index), level=level)


def compare(log: Log, first_index: int = 1) -> Counter[str]:
    """What has happened under the settings, and how often."""
    rows = log.rows()
    if first_index > 1:
        fold = Fold("farm")
        fold.apply(rows[:first_index])
        rows = [(first_index, 0, STATE, fold.snapshot()), *rows[first_index:]]
    seen: Counter[str] = Counter()
    recording: Recording | None = None
    for pins in PINS:
        expected = figures(log.steps, pins, first_index, log.level)
        if not expected:
            return seen
        recording = recording or Recording("farm", rows)
        setting = Setting(**{**pins, "weights": tuple(pins.get("weights", {}).items())})
        found = msgspec.structs.asdict(recording.outcome(setting))
        assert {name: found[name] for name in expected} == expected, (pins, first_index)
        seen.update({name: 1 for name, value in expected.items() if value})
    seen["lost"] += len(log.naive.found_lost)
    return seen


@settings(max_examples=15)
@given(st.randoms(use_true_random=False), st.integers(5, 60), st.sampled_from([1, 1, 20]))
def test_figures_are_those_of_the_naive_computation(
    chance: random.Random, length: int, first_index: int
) -> None:
    compare(Log(chance, length), min(first_index, length - 1))


def test_figures_are_those_of_the_naive_computation_in_logs_with_all_that_happens() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        seen += compare(Log(random.Random(seed), 50), first_index=1 + 20 * (seed % 3 == 0))
    assert {"flaps", "handover_mean_ms", "unserved_ms", "score_lost", "lost"} <= {*seen}


SLOW_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3, 4, 5, 6, 7)]


@pytest.mark.parametrize("seed", [1, *SLOW_SEEDS])
def test_figures_are_those_of_the_naive_computation_over_long_logs(seed: int) -> None:
    """In that of seed 1, it matters that `meta.publishing` is as recorded where the roles are history's."""
    compare(Log(random.Random(seed), 300))
