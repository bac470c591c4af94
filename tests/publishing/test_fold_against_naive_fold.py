"""The fold against `naive_fold`, an implementation that shares nothing with it: same log, same bytes.

After every entry the snapshots are compared, which hold all that is decided by, and what the Meta LeaseSet
would list. The logs have what goes wrong in farms: silence, death, wrong clocks, statuses sent twice and
late, publishers that do not publish, parameters changed and members removed on the way, and nonsense.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import OUTSIDE
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.naive_fold import NaiveFold
from tests.publishing.scripted_log import T0, configuration, destination

MALFORMED = [
    (b"", "not JSON"),
    (b"\xff", "not UTF-8"),
    (b"[1]", "not an object"),
    (b"[" * 33, "nested too deep"),
    (b'{"cluster":"farm","id":1}', "missing"),
    (b'{"cluster":"other","date":1,"id":1}', "another cluster"),
    (b'{"cluster":"farm","date":1.0,"id":1}', "not an integer"),
    (b'{"cluster":"farm","date":9223372036854775808,"id":1}', "out of range"),
    (b'{"cluster":"farm","date":4294967296000,"id":1}', "out of range"),
    (b'{"cluster":"farm","date":1,"id":1,"id":2}', "duplicate key"),
    (
        b'{"cluster":"farm","date":1,"id":1,"config":{"admin":{"action":"x","by":"a","args":{}}}}',
        "unknown action",
    ),
]
LEAVES = [destination(seed) for seed in range(20)]
HASHES = [encode(destination_hash(leaf)) for leaf in LEAVES]
CLIENTS = [encode(bytes([number]) * 32) for number in range(3)]
BOTH_WAYS = [("configuredTunnels", 0), ("currentTunnels", 0)]
WEIGHTS = ["router_uptime", "job_lag", "tunnel_health", "bandwidth_headroom", "destination_health"]


def whats(naive: NaiveFold) -> list[str]:
    return [found["what"] for found in naive.contradicted.values()]


class Script:
    """Writes a log, entry by entry, by what ``chance`` says and the state that it has led to.
    ``most``: ids are up to that; at most one less are members at the beginning. ``senses``: most of them say
    what they have measured, from the first entry on."""

    def __init__(self, chance: random.Random, length: int, most: int = 6, *, senses: bool = False) -> None:
        self.chance = chance
        self.most = most
        self.length = length
        self.naive = NaiveFold("farm")
        self.farm = PublisherFold("farm")
        self.index = self.level = 0
        self.term = 1
        self.began = chance.choice([T0] * 9 + [86_400_000])  # all clocks show 1970
        self.clocks = {member: chance.choice([0, 0, 0, 300, -10_000_000]) for member in range(1, most + 1)}
        self.sequences = dict.fromkeys(range(most + 1), 0)
        self.authors: list[int] = []
        self.honest = chance.random()
        self.quality = {member: chance.randrange(101) for member in range(1, most + 1)}
        self.keyless = chance.random() < 0.2
        self.equals = chance.random() < 0.2  # all have the same figures
        self.boots = {member: chance.choice([0, 1, 1, 7]) for member in range(most + 1)}
        self.senses = senses
        self.sensing = 0.95 if senses else chance.choice([0, 0.5, 0.95])
        self.outage = 3  # how many tests have failed in a row, most members say
        self.held: dict[int, tuple[int, int]] = {}
        self.origins: dict[int, int | None] = {}
        self.bootless = chance.random() < 0.1
        self.rates: dict[str, float] = {}  # how often a figure is reported, if less than usually
        if chance.random() < 0.7:
            self.rates = {name: chance.choice([0, 0.1, 0.9]) for name, _ in [*self.router(1), *BOTH_WAYS]}
        self.seen: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """Compares the two after each of ``length`` entries; tells what has happened, and how often."""
        count = self.chance.choice([1, 2, 3, 3, 4, 5] if self.most == 6 else range(6, self.most))
        self.level = OUTSIDE if self.senses else self.chance.choice([0, 0, 0, 1, 2, 3, 3, 4, 4])
        self.configure(sorted(self.chance.sample(range(1, self.most), count)))
        found, wrong = 0, list[str]()
        for _ in range(self.length):
            before = self.naive.publisher, self.naive.due_since
            counting = self.naive.counting() if self.level >= 3 else []
            was_held = len(self.naive.holders)
            self.step()
            snapshot, naive = self.farm.snapshot(), self.naive.snapshot()
            if snapshot != naive:
                assert json.loads(snapshot) == json.loads(naive)
            assert snapshot == naive
            if self.chance.random() < 0.05:
                self.farm = PublisherFold("farm")
                self.farm.restore(snapshot)
            assert self.farm.contents() == self.naive.contents()
            assert self.farm.eligible() == self.naive.eligible()
            if before[0] != self.naive.publisher:
                self.seen[self.naive.because] += 1
            if before[1] is None and self.naive.due_since not in (None, self.naive.since):
                self.seen["handed over"] += 1
            self.seen["released"] += len(self.naive.holders) < was_held
            if lease := self.naive.lease:
                gone = [one for one in self.naive.holders if one not in self.naive.members]
                silent = [one for one in self.naive.holders if not self.naive.recent(one)]
                self.seen["removed, and held at level 2"] += bool(gone)
                self.seen["silent, and held at level 2"] += bool(silent)
                self.seen["lost"] += any(map(self.naive.lost_index, self.naive.members))
                self.seen["a longer lease may run"] += lease["before_ms"] > 0
            self.seen["contradicted chain"] += "chain" in whats(self.naive)
            self.seen["contradicted state"] += "state" in whats(self.naive)
            self.seen["disagreeing"] += bool(self.naive.disagreeing)
            self.seen["no longer contradicted"] += bool(wrong and not whats(self.naive))
            wrong = whats(self.naive)
            self.seen["other figures count"] += bool(counting) and counting != self.naive.counting()
            if self.naive.level >= 3:
                unreached = self.naive.unreached
                self.seen["unreached"] += (
                    before[0] != self.naive.publisher and self.naive.because == "unreached"
                )
                self.seen["unreached again"] += max(unreached.values(), default=0) > 1
                self.seen["reached again"] += len(unreached) < found and before[0] == self.naive.publisher
            found = len(self.naive.unreached)
            self.seen["three recent"] += sum(map(self.naive.recent, self.naive.members)) == 3
            self.seen["sanctioned"] += any(map(self.naive.sanction, self.naive.members))
        return self.seen + Counter(self.naive.skipped)

    def step(self) -> None:
        """One entry more, for both."""
        self.index += 1
        self.term += self.chance.random() < 0.05
        what = self.chance.random()
        if what < 0.01:
            self.level = max(self.level, self.chance.choice([0, 1, 2, 3, 4]))
            self.configure([*self.naive.members])
        elif what < 0.03:
            self.configure(self.another_membership())
        else:
            entry, malformed = self.entry()
            self.naive.apply(self.index, entry, malformed, self.term)
            self.farm.apply(self.index, self.term, entry)

    def configure(self, members: list[int]) -> None:
        self.naive.configure(self.index, members, self.level)
        shuffled = self.chance.sample(members, len(members))
        in_force = configuration(*shuffled, index=self.index)
        self.farm.configure(self.index, msgspec.structs.replace(in_force, level=self.level))
        self.authors = (
            self.chance.choices(range(1, self.most + 1), k=1) + 9 * members
        )  # and now and then a stranger

    def another_membership(self) -> list[int]:
        one = self.chance.randrange(1, self.most + 1)
        members = {*self.naive.members} ^ {one}
        return sorted(members or {one})

    def entry(self) -> tuple[bytes, str | None]:
        """An entry, and why it is malformed."""
        what = self.chance.random()
        if what < 0.02:
            return self.chance.choice(MALFORMED)
        if what < 0.08:
            return self.written(self.admin()), None
        if what < 0.13:
            return self.written(self.finding(), has_sequence=0.1), None
        if what < 0.16:
            by = self.chance.choice(["alice", "bob"])
            return self.written({"id": 0, "date": self.date(0), "config": {"by": by}}), None
        return self.written(self.status()), None

    def written(self, entry: dict[str, Any], has_sequence: float = 0.7) -> bytes:
        author = entry["id"]
        self.sequences[author] += self.chance.choice([1, 1, 1, 1, 1, 1, 1, 0, -1])
        if self.chance.random() < has_sequence:
            entry["sequence"] = max(self.sequences[author], 0)
        return json.dumps({"cluster": "farm"} | entry, separators=(",", ":")).encode()

    def date(self, member: int) -> int:
        now = self.began + self.index * 300 + self.clocks.get(member, 0)
        now = max(now + self.chance.choice([0, 0, 100, -200]), 0)
        return self.chance.choice([now] * 60 + [0, T0, T0 + 400_000_000_000, 2**32 * 1000 - 1])

    def admin(self) -> dict[str, Any]:
        chance = self.chance
        parts = chance.sample(WEIGHTS, 2)
        weights = dict.fromkeys([*WEIGHTS, "remote_sensing", "luck"], 0) | {parts[0]: 70, parts[1]: 30}
        orders: list[tuple[str, dict[str, Any]]] = [
            ("interval", {"ms": chance.choice([1000, 3000])}),
            ("staleness", {"R": chance.choice([3, 4])}),
            (
                "override",
                {
                    "member": chance.randrange(1, self.most + 1),
                    "mode": chance.choice(["on", "off", "auto"]),
                },
            ),
            ("override", {"member": chance.randrange(1, self.most + 1), "mode": None}),
            ("exclude", {"hash": chance.choice(HASHES[:6])}),
            ("include", {"hash": chance.choice(HASHES[:6])}),
            ("weights", weights),
            ("publisher", {"margin": chance.choice([0, 0, 20_000])}),
            ("publisher", {"lifetime_ms": 600_000, "margin": None}),
            ("remove", {"member": chance.randrange(1, self.most + 1)}),
            ("publish", {}),
            ("level", {"to": 1}),
            ("lease", {"ms": chance.choice([1000, 5000, 9000, 600_000])}),
            ("lease", {"ms": chance.choice([1000, 5000, 9000, 600_000])}),
        ]
        client, until_ms = (
            chance.choice([*CLIENTS, HASHES[0]]),
            chance.choice([None, 0, min(self.date(0) + 3_000, 2**32 * 1000 - 1)]),
        )
        for_clients: list[tuple[str, dict[str, Any]]] = [
            ("ban", {"hash": client, "until_ms": until_ms}),
            *((action, {"hash": client}) for action in ("ban", "unban", "allow", "disallow", "disallow")),
            ("control", {"ms": chance.choice([10_000, 3_600_000])}),
            ("forget", chance.choice([{}, {"after_ms": 3_600_000, "min_members": chance.choice([None, 4])}])),
        ]
        action, args = chance.choice([*orders, *for_clients])
        return self.order(action, "alice", args)

    def order(self, action: str, by: str, args: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.chance.choice(self.authors),
            "date": self.date(0),
            "config": {"admin": {"action": action, "by": by, "args": args}},
        }

    def finding(self) -> dict[str, Any]:
        """Most often one that is true, of a member that holds."""
        chance, lease = self.chance, self.naive.lease
        term = max(self.term - chance.choice([0] * 9 + [1]), 1)
        if chance.random() < 0.2:
            changed = chance.choice([lease["changed"] if lease else 1] * 4 + [self.index - 1])
            return self.order("settled", "leader", {"index": max(changed, 1), "term": term})
        if chance.random() < 0.2:
            timeouts = {
                "election_ms": chance.choice([10, 20_000, 40_000, 3_600_000]),
                "lease_ms": chance.choice([1000, 4000, 60_000, 600_000]),
            }
            return self.order("timeouts", "leader", timeouts | {"term": term})
        strangers = range(1, self.most + 1)
        member = chance.choice([*self.naive.holders] * 3 + [chance.choice(strangers)])
        since = self.naive.since if member == self.naive.publisher else self.naive.holders.get(member, 0)
        index = chance.choice([since] * 8 + [self.naive.since, self.index - 1])
        return self.order("lost", "leader", {"member": member, "index": max(index, 1), "term": term})

    def status(self) -> dict[str, Any]:
        chance, member = self.chance, self.chance.choice(self.authors)
        applied = self.index - chance.choice([1, 1, 1, 1, 2, 5, 30, -30])
        node: dict[str, Any] = {"applied": max(applied, 0)} if chance.random() < 0.95 else {}
        if chance.random() < 0.9:
            node |= {"interval_ms": chance.choice([1000, 1000, 1000, 3000]), "R": chance.choice([3, 3, 4])}
        self.boots[member] += chance.choice([0] * 30 + [1, 2])
        boot = max(self.boots[member] - chance.choice([0] * 30 + [1]), 0)
        if not self.bootless and chance.random() < 0.98:
            node["boot"] = chance.choice([boot] * 20 + [None])
        if chance.random() < self.sensing:
            node["outside"] = self.outside()
        if chance.random() < 0.3:
            node["control"] = HASHES[19]
        if self.level >= 4 and chance.random() < 0.9:
            node["digests"] = self.digests(member)
        publishing: bool | None = self.naive.publisher == member and self.naive.due_since is not None
        if chance.random() > self.honest:
            publishing = chance.choice([True, False])
        if self.keyless or chance.random() < 0.02:
            publishing = None
        meta: dict[str, Any] = {"publishConfig": chance.choice(["auto"] * 12 + ["on", "off", None])}
        meta["lastPublishedTime"] = chance.choice([None, 0, self.date(member) + chance.choice([0, 600_000])])
        entry: dict[str, Any] = {
            "id": member,
            "date": self.date(member),
            "config": {"node": node, "unknown": [1.5, "x"]},
            "meta": meta | ({} if publishing is None else {"publishing": publishing}),
            "router": {name: one for name, one in self.router(member) if self.is_reported(name, 0.9)},
            "destinations": [
                self.leaf(one) for one in chance.sample(LEAVES, chance.choice([0, 1, 1, 2, 18]))
            ],
        }
        if self.equals:
            entry |= {"router": {}, "destinations": [{"destination": LEAVES[member]}]}
        elif chance.random() < 0.2:
            entry["remoteRouters"] = [
                {"member": one, "connectTest": {"ms": 5, "ok": chance.random() < 0.5}} for one in (1, 2, 3)
            ]
            entry["remoteDestinations"] = [{"hash": HASHES[0], "fetchTimeMs": 4}]
            entry["remoteMeta"] = {"hash": HASHES[1], "connectTest": {"ms": 1, "ok": True}}
        if chance.random() < 0.3:
            node["tests"] = [[one, chance.choice([-1, 0, 5])] for one in chance.choice([(), (1,), (2, 3, 9)])]
        if chance.random() < 0.05:
            self.quality[member] = chance.randrange(101)
        return entry

    def digests(self, member: int) -> dict[str, Any]:
        """What a member says that it holds; a few hold something else, or have restored another's state."""
        chance = self.chance
        if chance.random() < 0.02:
            self.held[member] = chance.choice([(0, 0), (0, 0), (0, 1), (1, 1)])
        if chance.random() < 0.01:
            self.origins[member] = chance.choice([None, None, None, member, 1, 3])
        agreed = [0, *(self.naive.agreed or [])][-1]
        state, chain = self.held.get(member, (0, 0))
        claim: dict[str, Any] = {"index": chance.choice([agreed] * 12 + [agreed + 1, 0])}
        claim |= {"state": f"{state:032x}", "chain": f"{chain:032x}"}
        return claim | ({"origin": self.origins[member]} if self.origins.get(member) else {})

    def is_reported(self, name: str, usually: float) -> bool:
        return self.chance.random() < min(self.rates.get(name, 1), usually)

    def outside(self) -> dict[str, Any] | None:
        """Most often one about the present publisher."""
        chance = self.chance
        about = chance.choice([self.naive.publisher] * 9 + [1]) or 2
        since = chance.choice([self.naive.due_since] * 15 + [self.index - 1]) or 0
        failed = chance.choice([self.outage] * 9 + [0, 2, 3, 2**63 - 1])
        control = chance.choice([HASHES[about]] * 15 + [None])
        if chance.random() < 0.1:
            self.outage = chance.choice([0, 1, 3, 40])
        report: dict[str, Any] = {"publisher": about, "since": since, "failed": failed}
        return report if control is None and chance.random() < 0.5 else report | {"control": control}

    def router(self, member: int) -> Iterator[tuple[str, Any]]:
        chance, quality = self.chance, self.quality[member]
        yield "uptime", chance.choice([quality * 500_000, 2**63 - 1, 0])
        yield "jobLag", chance.choice([1000 - 9 * quality] * 5 + [2**63 - 1])
        yield "exploratoryTunnels", chance.randrange(6)
        yield "participatingTunnels", 5 * quality
        yield "configuredBandwidth", {"in": 1000, "out": chance.choice([1000, 1000, 1000, 0, 77])}
        yield "currentBandwidth", {"in": 1000 - 10 * quality, "out": chance.choice([0, 30, 2**63 - 1])}

    def leaf(self, leaf: str) -> dict[str, Any]:
        chance = self.chance
        both: list[dict[str, Any]] = [
            {"in": chance.choice([0, 3, 3, 3]), "out": chance.choice([2, 3, 7])} for _ in range(2)
        ]
        if self.level >= 3:
            for tunnels in both:
                tunnels.pop(chance.choice(["in", "out", None, None]), None)
        ends = max(self.date(0) + chance.choice([-1000, 0, 999, 60_000, 10**10]), 0)
        said = {
            "configuredTunnels": both[0],
            "currentTunnels": both[1],
            "configuredBandwidth": {"in": 1000, "out": chance.choice([1000, 0])},
            "currentBandwidth": {"in": chance.randrange(1200), "out": 0},
            "leaseSetExpires": ends,
            "uptime": None,
        }
        return {"destination": leaf} | {
            name: one for name, one in said.items() if self.is_reported(name, 0.6)
        }


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_fold_and_naive_fold_have_the_same_bytes(chance: random.Random, length: int) -> None:
    Script(chance, length).run()


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(20, 120))
def test_fold_and_naive_fold_have_the_same_bytes_with_many_members(seed: int, length: int) -> None:
    Script(random.Random(seed), length, most=19).run()


HAPPENS = {
    *("vacant", "ineligible", "group", "margin", "handed over", "three recent", "sanctioned"),
    *("repeated", "not a member", "years ahead", *(reason for _, reason in MALFORMED)),
    *("lost", "released", "removed, and held at level 2", "silent, and held at level 2"),
    "other figures count",
    *("unreached", "unreached again", "reached again"),
    *("contradicted", "contradicted chain", "contradicted state", "disagreeing", "no longer contradicted"),
    *("not banned", "not on the access list", "in the past", "the farm's own"),
    *("a longer lease may run", "former process", "another term", "another naming", "another change"),
}


@pytest.mark.slow
def test_fold_and_naive_fold_have_the_same_bytes_over_long_logs_with_all_that_happens() -> None:
    seen: Counter[str] = Counter()
    for seed in range(25):
        seen += Script(random.Random(seed), 130).run()
    for seed in range(8):
        seen += Script(random.Random(seed), 700, senses=True).run()
    assert {what for what in HAPPENS if not seen[what]} == set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_fold_and_naive_fold_have_the_same_bytes_over_long_logs_of_many_members(seed: int) -> None:
    Script(random.Random(seed), 400, most=19).run()
