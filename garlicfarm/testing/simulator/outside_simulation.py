"""Farms at level 3, from one seed, whose services are not always reached: what most measure moves the role.

    python -m garlicfarm.testing.simulator --outside --seeds 100 [--first N] [--nodes 3] [--preset NAME]

All of `publisher_simulation` happens. Besides, routers lose I2P while the links of the farm hold, services
answer nobody, controls die, routers cannot test, tests fail for no reason; and in half of the seeds one
member lies: it says that the publisher's service never answers, or that it always does, it measures nothing,
or what it serves answers nobody, as publisher and as control. Each member does what its core decides
(`garlicfarm.publishing.sensing`).

* Never is a publisher found unreached before a member that does not lie has failed to reach it three times in
  a row: one liar moves nothing.

After all faults have ended, but for the liar, one of these follows:

* The publisher's router loses I2P, or its service no longer answers: another member publishes within 300 s
  and ten intervals, if enough of the others do not lie.
* No service answers: the role changes a few times only.
* Nothing: for ten minutes nobody who can be reached is found unreached.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec

from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.levels import OUTSIDE
from garlicfarm.publishing.member_core import Figures
from garlicfarm.publishing.outside import BEHIND_RS, FAILED_TESTS, are_most
from garlicfarm.testing.simulator.clients import MAX_MEMBERS
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.publisher_setting import QUICK, Setting
from garlicfarm.testing.simulator.publisher_simulation import PublisherSimulation

Lie = Literal["never answers", "always answers", "measures nothing", "answers nobody"]

LEFT_MS = 300_000
_DISTURB_MS = 60_000
_LEAVES = {sha256(simulated_destination(member)).digest(): member for member in range(1, MAX_MEMBERS + 1)}
_CONTROLS = {sha256(b"control %d" % member).digest(): member for member in range(1, MAX_MEMBERS + 1)}
_CONTROL_OF = {member: hash_ for hash_, member in _CONTROLS.items()}


class OutsideSimulation(PublisherSimulation):
    """One seed's run."""

    def __init__(self, seed: int, nodes: int = 3, setting: Setting = QUICK) -> None:
        own = self._own = random.Random(f"outside {seed}")
        self._isolated: set[int] = set()  # members whose routers have lost I2P
        self._unserved: set[int] = set()  # whose leaves answer nobody
        self._uncontrolled: set[int] = set()  # whose controls do not
        self._blind: set[int] = set()  # whose routers cannot test
        self._noise = 0.0
        self.liar = own.randint(1, nodes) if own.random() < 0.5 else None
        self.lie: Lie = own.choice(get_args(Lie))
        self._rows: Counter[tuple[int, int]] = Counter()  # (who, whose): tests that have failed in a row
        self._failed_by: dict[int, set[int]] = {}  # whose → who failed three times, and does not lie
        self._judged: set[int] = set()  # indexes
        super().__init__(seed, nodes, setting)
        self.scheduler.at(int(own.expovariate(1 / _DISTURB_MS)), self._disturb)

    def draw_faults(self, rng: random.Random) -> Faults:
        drawn = super().draw_faults(rng)
        self.has_leases, self.genesis_level = True, OUTSIDE
        return msgspec.structs.replace(drawn, rates=(990, 1010), no_extensions=0)

    # ------------------------------------------------------------------ what is tested

    def figures(self, member: SimulatedMember) -> Figures:
        control = encode(_CONTROL_OF[member.id])
        return msgspec.structs.replace(super().figures(member), control=control)

    def can_test(self, member: SimulatedMember, hash_: bytes) -> bool:
        return hash_ in _LEAVES or hash_ in _CONTROLS

    def test_ms(self) -> int:
        return self._own.choice((200, 2_000, 20_000))

    def answers(self, member: SimulatedMember, hash_: bytes) -> bool | None:
        owner, is_leaf = _LEAVES.get(hash_) or _CONTROLS[hash_], hash_ in _LEAVES
        self.counts["tests"] += 1
        if member.id == self.liar and self.lie != "answers nobody":
            self.processes[member.id].core.sensing.can_judge = True  # so it says
            return self._lie(owner)
        if member.id in self._blind:
            return None
        is_up = self._is_up(owner, is_leaf=is_leaf) and member.id not in self._isolated
        if self._own.random() < self._noise:
            is_up = False
        if is_leaf:
            row = self._rows[member.id, owner] = 0 if is_up else self._rows[member.id, owner] + 1
            if row >= FAILED_TESTS:
                self._failed_by.setdefault(owner, set()).add(member.id)
        return is_up

    def _lie(self, owner: int) -> bool | None:
        if self.lie == "measures nothing":
            return None
        is_publisher = self._publisher == owner
        return is_publisher == (self.lie == "always answers") or not is_publisher

    def _is_up(self, owner: int, *, is_leaf: bool) -> bool:
        is_lie = owner == self.liar and self.lie == "answers nobody"
        down = self._unserved if is_leaf else self._uncontrolled
        return owner in self.processes and owner not in self._isolated | down and not is_lie

    def _disturb(self) -> None:
        if self._is_calm:
            return
        own = self._own
        kind = own.choice((self._isolated, self._unserved, self._uncontrolled, self._blind, None))
        if kind is None:
            self._noise = own.choice((0, 0, 0.1, 0.5))
        else:
            kind ^= {own.randint(1, len(self.members))}
        self.scheduler.at(self.scheduler.now + int(own.expovariate(1 / _DISTURB_MS)), self._disturb)

    # ------------------------------------------------------------------ invariants

    def on_applied(self, member: SimulatedMember) -> None:
        fold = self.application(member)
        if fold.state.because == "unreached" and fold.state.since not in self._judged:
            for event in fold.events():
                if event["because"] == "unreached" and event["index"] not in self._judged:
                    self._judge(event)
        super().on_applied(member)

    def _judge(self, event: Mapping[str, Any]) -> None:
        self._judged.add(event["index"])
        self.counts["unreached"] += 1
        if not self._failed_by.get(event["previous"]):
            lie = "" if self.liar is None else f", member {self.liar} {self.lie}"
            raise Violation("one liar moves nothing", f"{event['text']}: all others reached it{lie}")

    # ------------------------------------------------------------------ the course of a run

    def _heal(self) -> None:
        for kind in (self._isolated, self._unserved, self._uncontrolled, self._blind):
            kind.clear()
        self._noise = 0
        self._rows.clear()
        super()._heal()

    def after(self) -> None:
        own = self._own
        own.choice((self._lose_i2p, self._lose_i2p, self._lose_all, self._lose_nothing))()
        self._isolated.clear()
        self._unserved.clear()

    def _lose_i2p(self) -> None:
        """The publisher's router, or its service: it does not keep the role."""
        member = self._publishing()
        assert member is not None
        current = [server.id for server in self.newest.servers]
        honest = [one for one in current if one in self.processes and one not in (member.id, self.liar)]
        is_alone = self.liar is not None and len(honest) < 2  # has no control but the liar
        if not are_most(len(honest), len(current)) or is_alone or not self._others(member):
            return
        intervals = 10 + -(-LEFT_MS // self.setting.interval_ms)
        sensing = [self.processes[one].core.sensing for one in honest]
        self._wait(
            "the others know that it answers", intervals, lambda: all(one.can_judge for one in sensing)
        )
        if self._publishing() is not member:
            return
        self._own.choice((self._isolated, self._unserved)).add(member.id)
        self.counts["lost_i2p"] += 1
        self._wait("another publishes in place of one that is not reached", intervals, self._another(member))

    def _lose_all(self) -> None:
        """No service answers: it is not passed around without end."""
        self._unserved |= {*self.members}
        before = self.counts["unreached"]
        current = len(self.newest.servers)
        self._pass(4 * BEHIND_RS * self.setting.R * self.setting.interval_ms)
        changes = self.counts["unreached"] - before
        self.counts["lost_all"] += 1
        if changes > 2 * current + 2:
            raise Violation("what nobody reaches does not flap", f"{changes} changes")

    def _lose_nothing(self) -> None:
        """All is well, but for the liar."""
        self._failed_by.clear()
        self._pass(600_000)
        self.counts["lost_nothing"] += 1
