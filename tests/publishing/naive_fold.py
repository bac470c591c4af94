"""The common algorithm a second time, written from its description and without regard for speed.

It shares no code with `garlicfarm.publishing`: it keeps all that was ever said and goes over it again for
every question, so it has none of the fold's counters that could be wrong. It takes entries as decoded JSON
and does not judge their form; who calls it knows which are malformed, and why. Its snapshot is written with
`json` alone. Where the two differ, one of them, or the description, is wrong.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from typing import Any

DEFAULTS: dict[str, Any] = {
    "interval_ms": 30_000,
    "R": 3,
    "margin": 50_000,
    "lifetime_ms": 3_600_000,
    "weights": {
        "router_uptime": 20,
        "job_lag": 15,
        "tunnel_health": 15,
        "bandwidth_headroom": 25,
        "destination_health": 20,
        "remote_sensing": 5,
    },
}
FINDINGS = ("lost", "settled", "timeouts")
CLIENTS = ("ban", "unban", "allow", "disallow")
SINCE = {"level": 1, "lease": 2, "lost": 2, "settled": 2, "timeouts": 2, "control": 3, "forget": 4}
SINCE |= dict.fromkeys(CLIENTS, 3)
MILLION = 1_000_000
YEAR_2020_MS = 1_577_836_800_000
TEN_YEARS_MS = 315_576_000_000


def part_of(numerator: int, denominator: int) -> int:
    return 0 if denominator == 0 else max(0, min(MILLION, MILLION * numerator // denominator))


def saturating(figure: int, half: int) -> int:
    return MILLION * figure // (figure + half)


def score_parts(entry: dict[str, Any]) -> dict[str, int | None]:
    """The table of the publisher's page; None: not reported."""
    router = entry.get("router") or {}
    uptime, lag = router.get("uptime"), router.get("jobLag")
    exploratory, participating = router.get("exploratoryTunnels"), router.get("participatingTunnels")
    tunnels = None
    if exploratory is not None or participating is not None:
        first = 500_000 if exploratory is None else part_of(exploratory, 4)
        second = 500_000 if participating is None else saturating(participating, 50)
        tunnels = (first + second) // 2
    limit, used = router.get("configuredBandwidth"), router.get("currentBandwidth")
    headroom = None
    if limit is not None and used is not None:
        headroom = min(part_of(limit[way] - used[way], limit[way]) for way in ("in", "out"))
    leaves: list[int] = []
    reported = False
    for leaf in entry.get("destinations") or []:
        have, want = leaf.get("currentTunnels"), leaf.get("configuredTunnels")
        if have is None or want is None:
            leaves.append(500_000)
        else:
            reported = True
            both = [part_of(have[way], want[way]) for way in have.keys() & want.keys()]
            leaves.append((sum(both) + 500_000 * (2 - len(both))) // 2)
    members = ((entry.get("config") or {}).get("node") or {}).get("tests")
    remote = [] if members is not None else [*(entry.get("remoteRouters") or [])]
    remote += [*(entry.get("remoteDestinations") or [])]
    remote += [entry["remoteMeta"]] if entry.get("remoteMeta") else []
    tests = [one["connectTest"]["ok"] for one in remote if one.get("connectTest")]
    tests += [ms >= 0 for _, ms in members or []]
    return {
        "router_uptime": None if uptime is None else saturating(uptime, 6 * 3_600_000),
        "job_lag": None if lag is None else MILLION - saturating(lag, 250),
        "tunnel_health": tunnels,
        "bandwidth_headroom": headroom,
        "destination_health": sum(leaves) // len(leaves) if reported else None,
        "remote_sensing": part_of(tests.count(True), len(tests)) if tests else None,
    }


def figures(entry: dict[str, Any]) -> dict[tuple[str, str], int | None]:
    """By part and figure, since level 3; None: not reported."""
    parts, router = score_parts(entry), entry.get("router") or {}
    leaves = entry.get("destinations") or []
    exploratory, participating = router.get("exploratoryTunnels"), router.get("participatingTunnels")
    found = {
        (name, "whole"): parts[name]
        for name in ("router_uptime", "job_lag", "bandwidth_headroom", "remote_sensing")
    }
    found["tunnel_health", "exploratory"] = None if exploratory is None else part_of(exploratory, 4)
    found["tunnel_health", "participating"] = None if participating is None else saturating(participating, 50)
    rooms = []
    for leaf in leaves:
        limit, used = leaf.get("configuredBandwidth"), leaf.get("currentBandwidth")
        if limit is not None and used is not None:
            rooms.append(min(part_of(limit[way] - used[way], limit[way]) for way in ("in", "out")))
    if found["bandwidth_headroom", "whole"] is None and rooms:
        found["bandwidth_headroom", "whole"] = min(rooms)
    for way in ("in", "out"):
        shares = []
        for leaf in leaves:
            have = (leaf.get("currentTunnels") or {}).get(way)
            want = (leaf.get("configuredTunnels") or {}).get(way)
            shares.append(None if have is None or want is None else part_of(have, want))
        known = [one for one in shares if one is not None]
        total = sum(known) + 500_000 * (len(shares) - len(known))
        found["destination_health", way] = total // len(shares) if known else None
    return found


def leaf_hash(destination: str) -> bytes:
    return hashlib.sha256(b64decode(destination, altchars=b"-~")).digest()


class Said:
    """A status that was accepted."""

    def __init__(self, index: int, text: str, entry: dict[str, Any], defaults: dict[str, Any]) -> None:
        node = (entry.get("config") or {}).get("node") or {}
        meta = entry.get("meta") or {}
        self.index, self.text, self.entry = index, text, entry
        self.date: int = entry["date"]
        self.applied: int | None = node.get("applied")
        self.boot: int = node.get("boot") or 0
        self.outside: dict[str, Any] | None = None  # since level 3
        self.control: str | None = None  # the same
        self.digests: dict[str, Any] | None = None  # since level 4
        self.interval_ms: int = node.get("interval_ms") or defaults["interval_ms"]
        self.R: int = node.get("R") or defaults["R"]
        self.publishing: bool | None = meta.get("publishing")
        self.mode: str = meta.get("publishConfig") or "auto"
        self.published_ms: int | None = meta.get("lastPublishedTime")
        self.in_use: set[int] = set()
        self.led: bool | None = None  # None: not counted for its own interval
        self.judged = False  # as the publisher that was due

    def usable(self) -> list[tuple[bytes, int | None]]:
        """Hash and end of its usable leaves."""
        return [
            (leaf_hash(leaf["destination"]), leaf.get("leaseSetExpires"))
            for leaf in self.entry.get("destinations") or []
            if 0 not in (leaf.get("currentTunnels") or {}).values()
        ]


class NaiveFold:
    """A farm that remembers everything."""

    def __init__(self, farm: str) -> None:
        self.farm = farm
        self.members: list[int] = []
        self.level = 0
        self.joined: dict[int, int] = {}
        self.said: dict[int, list[Said]] = {}  # of the members, and of removed ones that still hold
        self.sequences: dict[int, int] = {}
        self.orders: list[tuple[int, dict[str, Any], int]] = []  # index, entry, farm time before it
        self.notes: dict[str, int] = {}
        self.skipped: dict[str, int] = {}
        self.publisher: int | None = None
        self.since, self.because = 0, ""
        self.due_since: int | None = None
        self.holders: dict[int, int] = {}
        self.farm_time_ms = 0
        self.last_published_ms = 0
        self.costs: dict[int, int] = {}
        self.sanctions: dict[int, Said] = {}  # member -> the status that brought the last one
        self.behind: dict[int, list[tuple[int, int]]] = {}  # member -> index, and for how many statuses
        self.unreached: dict[int, int] = {}  # member -> how often
        self.since_level_3: int | None = None
        self.found_lost: list[tuple[int, int]] = []  # index, member
        self.agreed: list[int] | None = None  # since level 4: indexes at which members digest what they hold
        self.since_agreed = 0  # statuses
        self.claimed: dict[int, dict[str, Any]] = {}
        self.contradicted: dict[int, dict[str, Any]] = {}
        self.disagreeing: list[list[int]] = []
        self.times: list[tuple[int, int, int]] = []  # index, farm time, and the longest step; since level 4
        self.lease: dict[str, int] | None = None  # since level 2
        self.since_level_2 = 0
        self.known: dict[tuple[int, int], tuple[Said | None, list[Said]]] = {}  # as `counted` tells

    # What is asked of the past

    def policy(self) -> dict[str, Any]:
        """What the orders that were obeyed amount to."""
        policy = json.loads(json.dumps(DEFAULTS)) | {"overrides": {}, "excluded": set(), "orders": {}}
        for index, entry, farm_time_ms in self.orders:
            admin = entry["config"]["admin"]
            args, key, in_force = admin["args"], admin["action"], True
            if key in CLIENTS:
                self.list_client(policy, index, entry, farm_time_ms)
                continue
            if key == "control":
                policy["control_ms"] = args["ms"]
            elif key == "forget":
                policy.pop("forget", None)
                in_force = args.get("after_ms") is not None
                if in_force:
                    least = args.get("min_members") or 3
                    policy["forget"] = {"after_ms": args["after_ms"], "min_members": least}
            elif key == "interval":
                policy["interval_ms"] = args["ms"]
            elif key == "staleness":
                policy["R"] = args["R"]
            elif key == "weights":
                policy["weights"] = {name: args[name] for name in DEFAULTS["weights"]}
            elif key == "publisher":
                policy.update({name: value for name, value in args.items() if value is not None})
            elif key == "override":
                key, in_force = f"override {args['member']}", args.get("mode") is not None
                policy["overrides"].pop(args["member"], None)
                if in_force:
                    policy["overrides"][args["member"]] = args["mode"]
            elif key == "publish":
                pass
            elif key == "remove":
                key = f"remove {args['member']}"
            elif key == "lease":
                pass
            elif key == "level":
                key = f"level {args['to']}"
            else:
                in_force = key == "exclude"
                (policy["excluded"].add if in_force else policy["excluded"].discard)(args["hash"])
                key = f"exclude {args['hash']}"
            policy["orders"].pop(key, None)
            if in_force:
                policy["orders"][key] = {"by": admin["by"], "date": entry["date"], "index": index}
        return policy

    def list_client(
        self, policy: dict[str, Any], index: int, entry: dict[str, Any], farm_time_ms: int
    ) -> None:
        lists = policy.setdefault("clients", {"banned": {}, "allowed": {}})
        lists["banned"] = self.lasting_bans(lists, farm_time_ms)
        admin = entry["config"]["admin"]
        action, hash_ = admin["action"], admin["args"]["hash"]
        of_action = lists["banned" if action in ("ban", "unban") else "allowed"]
        of_action.pop(hash_, None)
        if action in ("ban", "allow"):
            until_ms = admin["args"].get("until_ms") if action == "ban" else None
            listed = {"by": admin["by"], "date": entry["date"], "index": index, "until_ms": until_ms}
            of_action[hash_] = listed

    def lasting_bans(self, lists: dict[str, Any], farm_time_ms: int) -> dict[str, Any]:
        ends = {hash_: listed["until_ms"] for hash_, listed in lists["banned"].items()}
        return {
            hash_: listed
            for hash_, listed in lists["banned"].items()
            if ends[hash_] is None or ends[hash_] > farm_time_ms
        }

    def refuses_client(self, action: str, args: dict[str, Any]) -> str | None:
        """Why an order for clients is not obeyed."""
        lists = self.policy().get("clients", {"banned": {}, "allowed": {}})
        hash_ = args["hash"]
        if action == "unban":
            return None if hash_ in lists["banned"] else "not banned"
        if action == "disallow":
            return None if hash_ in lists["allowed"] else "not on the access list"
        if action == "ban" and args.get("until_ms") is not None and args["until_ms"] <= self.farm_time_ms:
            return "in the past"
        if action == "ban" and hash_ in self.own_hashes():
            return "the farm's own"
        lasting = lists | {"banned": self.lasting_bans(lists, self.farm_time_ms)}
        is_new = hash_ not in lasting["banned" if action == "ban" else "allowed"]
        count = len(lasting["banned"]) + len(lasting["allowed"])
        return "too many" if is_new and count >= 4096 else None

    def own_hashes(self) -> set[str]:
        newest = [said for said in map(self.newest, self.said) if said]
        named = {said.control for said in newest if said.control}
        for said in newest:
            leaves = [leaf["destination"] for leaf in said.entry.get("destinations") or []]
            for destination in [*leaves, (said.entry.get("meta") or {}).get("destination")]:
                if destination is not None:
                    named.add(b64encode(leaf_hash(destination), altchars=b"-~").decode())
        return named

    def newest(self, member: int) -> Said | None:
        said = self.said.get(member)
        return said[-1] if said else None

    def counted(self, author: int, interval_ms: int) -> list[Said]:
        """It is asked for a hundred times between two statuses of an author: what was found is kept."""
        newest = self.newest(author)
        known_at, found = self.known.get((author, interval_ms), (None, []))
        if known_at is newest:
            return found
        found = []
        previous: int | None = None
        for said in self.said[author]:
            if interval_ms not in said.in_use:
                previous = None
            elif previous is None or abs(said.date - previous) * 10 >= interval_ms * 9:
                found.append(said)
                previous = said.date
        self.known[author, interval_ms] = newest, found
        return found

    def silences(self, member: int, judge: int) -> int:
        newest = self.newest(member)
        if newest is None or judge == member:
            return 0
        after = max(newest.index, self.joined[judge])
        count = 0
        for said in reversed(self.counted(judge, newest.interval_ms)):
            if said.index <= after:
                break
            count += said.applied is not None and said.applied >= newest.index
        return count

    def against(self, member: int) -> int:
        newest = self.newest(member)
        return 0 if newest is None else sum(self.silences(member, one) >= newest.R for one in self.members)

    def recent(self, member: int) -> bool:
        others = len([one for one in self.members if one != member])
        return self.newest(member) is not None and not self.against(member) > others / 2

    def mode(self, member: int) -> str:
        newest = self.newest(member)
        override: str | None = self.policy()["overrides"].get(member)
        return override or (newest.mode if newest else "auto")

    def leaves(self, member: int) -> list[tuple[bytes, int | None]]:
        newest, excluded = self.newest(member), self.policy()["excluded"]
        usable = [] if newest is None else newest.usable()
        return [leaf for leaf in usable if b64encode(leaf[0], altchars=b"-~").decode() not in excluded]

    def counting(self) -> list[tuple[str, str]]:
        """The figures that some recent member reports."""
        said = [figures(self.newest(one).entry) for one in self.members if self.recent(one)]
        return [name for name in figures({}) if any(one[name] is not None for one in said)]

    def score(self, member: int, weights: dict[str, int] | None = None) -> int:
        """``weights``: None: those in force."""
        newest, weights = self.newest(member), weights or self.policy()["weights"]
        if self.level >= 3:
            own, values = figures(newest.entry), dict[str, list[int]]()
            for part, figure in self.counting():
                value = own[part, figure]
                values.setdefault(part, []).append(500_000 if value is None else value)
            total = sum(weights[one] for one in values)
            shares = [weights[one] * (sum(values[one]) // len(values[one])) for one in values]
            return sum(shares) // total if total else 500_000
        parts = score_parts(newest.entry)
        return sum(weights[one] * (500_000 if parts[one] is None else parts[one]) for one in weights) // 100

    def eligible(self) -> list[int]:
        recent = [member for member in self.members if self.recent(member)]
        if not any(self.leaves(member) for member in recent):
            return []
        willing = [member for member in recent if self.mode(member) != "off" and not self.lost_index(member)]
        willing = [member for member in willing if member not in self.contradicted]
        able = [member for member in willing if self.newest(member).publishing is not None]
        return able or willing

    def lost_index(self, member: int) -> int:
        """The finding that keeps it from being eligible; 0: none does."""
        if member not in self.members:
            return 0
        found = [at for at, one in self.found_lost if one == member and at > self.joined[member]]
        at = max(found, default=0)
        is_back = any(
            said.index > at and said.applied is not None and said.applied >= at for said in self.said[member]
        )
        return 0 if is_back else at

    def boot(self, member: int, before: int) -> int:
        """The number of its newest process among its statuses before an index; 0: none is known."""
        since = max(self.since_level_2, self.joined[member])
        return max((said.boot for said in self.said[member] if since < said.index < before), default=0)

    def sanction(self, member: int) -> int:
        """For how many statuses more it ranks behind the others."""
        indexes = [said.index for said in self.said[member]]
        left = [length - sum(index > at for index in indexes) for at, length in self.behind.get(member, [])]
        return max([*left, 0])

    def failures(self, member: int) -> int:
        if member != self.publisher:
            return 0
        cause, count = self.sanctions.get(member), 0
        for said in self.said[member]:
            if said.index > max(self.since, cause.index if cause else 0) and said.judged:
                count = 0 if said.publishing else count + 1
        return count

    def lead(self, member: int) -> int:
        count = 0
        for said in self.said[member]:
            if said.index > self.since and said.led is not None:
                count = count + 1 if said.led else 0
        return count

    def group(self, member: int) -> int:
        return 2 * (self.sanction(member) > 0) + (self.mode(member) != "on")

    # What happens

    def configure(self, index: int, members: list[int], level: int = 0) -> None:
        self.level = max(self.level, level)
        self.joined = {one: self.joined.get(one, index) for one in members}
        self.members = sorted(members)
        for member in [one for one in self.said if one not in {*members, *self.holders}]:
            self._forget(member)
        for member in members:
            self.said.setdefault(member, [])
        self.orders = [
            (at, entry, farm_time_ms)
            for at, entry, farm_time_ms in self.orders
            if entry["config"]["admin"]["action"] != "override"
            or entry["config"]["admin"]["args"]["member"] in members
        ]
        if self.level >= 2 and self.lease is None:
            self._begin_leases(index)
        if self.lease and not any(self.said.values()) and "lease" not in self.policy()["orders"]:
            policy = self.policy()
            self.lease["ordered_ms"] = min(3 * (policy["R"] - 1) * policy["interval_ms"] // 4, 600_000)
            self.lease["lasts_ms"] = min(self.lease["ordered_ms"], self.lease["bound_ms"])
        if self.level >= 3 and self.since_level_3 is None:
            self.since_level_3 = index if any(self.said.values()) else 0
        self.unreached = {one: times for one, times in self.unreached.items() if one in members}
        if self.level >= 4 and self.agreed is None:
            self.agreed = []
            self.times = [(index, self.farm_time_ms, 0)]
        self.claimed = {one: claim for one, claim in self.claimed.items() if one in members}
        self.contradicted = {one: found for one, found in self.contradicted.items() if one in members}
        if sum(one in self.contradicted for one in members) >= len(members) / 2:
            self.contradicted.clear()
        self.disagreeing = []
        self._decide(index, None)

    def _begin_leases(self, index: int) -> None:
        def lasts_ms(one: Any) -> int:
            return 3 * (one["R"] - 1) * one["interval_ms"] // 4

        policy = self.policy()
        newest = [vars(one) for one in map(self.newest, self.said) if one]
        longest = max(map(lasts_ms, [policy, *newest])) if self.holders else 0
        self.since_level_2 = index
        ordered_ms = min(lasts_ms(policy), 600_000)
        self.lease = {
            "lasts_ms": ordered_ms,
            "ordered_ms": ordered_ms,
            "bound_ms": 600_000,
            "election_ms": 0,
            "before_ms": longest,
            "changed": index if self.holders else 0,
        }

    def apply(self, index: int, entry_text: bytes, malformed: str | None, term: int = 1) -> None:
        """``malformed``: why it is refused whatever the state."""
        reason = malformed or self._take(index, entry_text, term)
        if reason is not None:
            self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _forget(self, member: int) -> None:
        for kept in (self.said, self.sequences, self.costs, self.sanctions, self.behind):
            kept.pop(member, None)

    def _take(self, index: int, entry_text: bytes, term: int) -> str | None:
        entry = json.loads(entry_text)
        admin = (entry.get("config") or {}).get("admin")
        args = {} if admin is None else admin["args"]
        if admin is not None:
            if self.level < SINCE.get(admin["action"], 0):
                return "unknown action"
            if admin["action"] in FINDINGS and args["term"] != term:
                return "another term"
            if admin["action"] in ("override", "remove") and args["member"] not in self.members:
                return "not a member"
            if admin["action"] in CLIENTS:
                reason = self.refuses_client(admin["action"], args)
                if reason is not None:
                    return reason
            if admin["action"] == "exclude" and len(self.policy()["excluded"] | {args["hash"]}) > 1024:
                return "too many"
        elif self._years_ahead(entry):
            return "years ahead"
        sequence = entry.get("sequence")
        if entry["id"] == 0:
            return None if sequence is None else self._note(entry["config"]["by"], sequence)
        author = entry["id"]
        is_founded = admin is not None and not self.members  # before the first Configuration
        if not is_founded and author not in self.members:
            return "not a member"
        said = Said(index, entry_text.decode(), entry, self.policy())
        if admin is None and self.level >= 2 and said.boot < self.boot(author, index):
            return "former process"
        if sequence is not None and not is_founded:
            if sequence <= self.sequences.get(author, -1):
                return "repeated"
            self.sequences[author] = sequence
        if admin is not None and admin["action"] == "lost":
            return self._find_lost(index, args["member"], args["index"])
        if admin is not None and admin["action"] == "settled":
            return self._settle(args["index"])
        if admin is not None and admin["action"] == "timeouts":
            self.lease["election_ms"], self.lease["bound_ms"] = args["election_ms"], args["lease_ms"]
            self._change_lease(index)
            return None
        if admin is not None:
            if admin["action"] == "lease":
                self.lease["ordered_ms"] = args["ms"]
                self._change_lease(index)
            self.orders.append((index, entry, self.farm_time_ms))
            for member in self.said:
                self._reprice(member)
            self._decide(index, None)
        else:
            self.status(said)
        return None

    def _find_lost(self, index: int, member: int, since: int) -> str | None:
        named = self.since if member == self.publisher else self.holders.get(member)
        if named is None or not self.is_found(index, named == since):
            return "another naming"
        self.found_lost.append((index, member))
        self._decide(index, None, gone=member)
        return None

    def is_found(self, index: int, is_right: bool) -> bool:
        return is_right

    def _settle(self, changed: int) -> str | None:
        if not self.lease["before_ms"] or self.lease["changed"] != changed:
            return "another change"
        self.lease["before_ms"] = 0
        return None

    def _change_lease(self, index: int) -> None:
        lasts_ms = min(self.lease["ordered_ms"], self.lease["bound_ms"])
        if lasts_ms != self.lease["lasts_ms"]:
            longest = max(self.lease["before_ms"], self.lease["lasts_ms"])
            self.lease["lasts_ms"], self.lease["changed"] = lasts_ms, index
            self.lease["before_ms"] = longest if self.holders else 0

    def _years_ahead(self, entry: dict[str, Any]) -> bool:
        believed = entry["id"] == 0 or sum(self.recent(one) for one in self.members) >= 3
        return believed and YEAR_2020_MS < self.farm_time_ms < entry["date"] - TEN_YEARS_MS

    def _note(self, by: str, sequence: int) -> str | None:
        if sequence <= self.notes.get(by, -1):
            return "repeated"
        self.notes[by] = sequence
        while len(self.notes) > 1024:
            self.notes.pop(min(self.notes, key=lambda name: (self.notes[name], name)))
        return None

    def _reprice(self, member: int) -> None:
        if self.newest(member) is None:
            return
        score, before = self.score(member), self.costs.get(member)
        # A step is 62,500 points; half of one more on each side is kept.
        lower = None if before is None else MILLION - (before + 1) * 62_500 - 31_250
        if lower is None or not lower <= score <= lower + 125_000:
            self.costs[member] = min((MILLION - score) // 62_500, 15)

    def status(self, said: Said) -> None:
        author = said.entry["id"]
        self.said[author].append(said)
        if self.level >= 3:
            node = (said.entry.get("config") or {}).get("node") or {}
            said.outside, said.control = node.get("outside"), node.get("control")
        said.in_use = {self.newest(one).interval_ms for one in self.said if self.newest(one)}
        if self.agreed is not None:
            self.compare(author, node.get("digests"), said.index)
        self._reprice(author)
        began = said.index - 1 if said.applied is None else said.applied
        due = author == self.publisher and self.due_since is not None and began >= self.due_since
        said.judged = due and said.publishing is not None
        if said.judged and self.failures(author) >= said.R:
            self.sanctions[author] = said
            before = self.behind.get(author, []) if self.level >= 3 else []
            self.behind[author] = [*before, (said.index, 10 * said.R)]
        is_next_process = self.level >= 2 and said.boot > self.boot(author, said.index) > 0
        self._decide(said.index, said, gone=author if is_next_process else 0)
        if said.published_ms is not None and said.published_ms <= self.farm_time_ms + 600_000:
            self.last_published_ms = max(self.last_published_ms, said.published_ms)

    def compare(self, author: int, claim: dict[str, Any] | None, index: int) -> None:
        """What a status says that its author holds, and whether that is what most others hold."""
        if claim is not None and [claim["index"]] == self.agreed[-1:]:
            claim = {name: claim.get(name) for name in ("index", "state", "chain", "origin")}
            self.claimed[author] = {name: value for name, value in claim.items() if value is not None}
            here = {one: own for one, own in self.claimed.items() if own["index"] == claim["index"]}
            for one, own in here.items():
                chains, states = self.rivals(here, own, "chain"), self.rivals(here, own, "state")
                before = self.contradicted.get(one, {"index": claim["index"]})
                if chains[1]:
                    self.contradicted[one] = {"index": before["index"], "what": "chain"}
                elif states[1]:
                    self.contradicted[one] = {"index": before["index"], "what": "state"}
                elif 2 * sum(
                    (it["state"], it["chain"]) == (own["state"], own["chain"]) for it in here.values()
                ) > len(self.members):
                    self.contradicted.pop(one, None)
            if all(one in here for one in self.members if self.recent(one)):
                groups: dict[str, list[int]] = {}
                for one in sorted(here):
                    groups.setdefault(here[one]["state"] + here[one]["chain"], []).append(one)
                decided = all(
                    any(self.rivals(here, own, what)) for what in ("chain", "state") for own in here.values()
                )
                self.disagreeing = [] if decided or len(groups) == 1 else [*groups.values()]
        self.since_agreed += 1
        if self.since_agreed >= 4 * len(self.members):
            self.agreed.append(index)
            self.since_agreed = 0

    def rivals(self, here: dict[int, dict[str, Any]], own: dict[str, Any], what: str) -> tuple[bool, bool]:
        """Whether a majority claims the same as ``own``, and whether one claims something else."""
        voters: dict[str, set[frozenset[int]]] = {}
        for one, claim in here.items():
            voters.setdefault(claim[what], set()).add(self.kin(one))
        most = [value for value, voting in voters.items() if len(voting) > len(self.members) / 2]
        return most == [own[what]], bool(most) and most != [own[what]]

    def kin(self, member: int) -> frozenset[int]:
        """All members that are linked with one by snapshots that were restored."""
        links = [{one, claim["origin"]} for one, claim in self.claimed.items() if "origin" in claim]
        found = {member}
        while more := [link for link in links if link & found and not link <= found]:
            found = found.union(*more)
        return frozenset(found)

    def _decide(self, index: int, said: Said | None, gone: int = 0) -> None:
        """``gone``: the member whose process that held before is no more."""
        dates = sorted(self.newest(one).date for one in self.members if self.recent(one))
        if dates:
            self.farm_time_ms = dates[(len(dates) - 1) // 2]
        if self.level >= 4:
            policy = self.policy()
            self.times.append((index, self.farm_time_ms, policy["R"] * policy["interval_ms"]))
        is_unreached = self.level >= 3 and self._is_unreached(index)
        chosen, because = self._choose(said)
        if is_unreached:
            because = "unreached"
        if chosen != self.publisher:
            if self.publisher is not None:
                self.holders[self.publisher] = index
            if chosen is not None:
                self.holders[chosen] = 0
            self.publisher, self.since, self.because, self.due_since = chosen, index, because, None
        for holder in [one for one in self.holders if one != self.publisher]:
            told = (
                said is not None
                and said.entry["id"] == holder
                and not said.publishing
                and said.applied is not None
                and said.applied >= self.holders[holder]
            )
            if told or holder == gone or (self.releases_silent() and not self.recent(holder)):
                del self.holders[holder]
                if holder not in self.members:
                    self._forget(holder)
        if self.publisher is not None and self.due_since is None and [*self.holders] == [self.publisher]:
            self.due_since = index

    def _is_unreached(self, index: int) -> bool:
        """Whether the publisher is found so at this index, by what the others say of it."""
        publisher, others = self.publisher, [one for one in self.members if one != self.publisher]
        if publisher is None or self.due_since is None or self.policy().get("clients", {}).get("allowed"):
            return False
        says = [self.newest(one).outside for one in others if self.recent(one)]
        about = {"publisher": publisher, "since": self.due_since}
        says = [one for one in says if one is not None and {**one, **about} == one]
        if self._is_majority([one for one in says if one["failed"] == 0], others):
            self.unreached.pop(publisher, None)
        eligible = self.eligible()
        has_better = any(one != publisher and not self.sanction(one) for one in eligible)
        failing = [one for one in says if one["failed"] >= 3 and one.get("control")]
        if publisher not in eligible or not has_better or not self._is_majority(failing, others):
            return False
        times = self.unreached[publisher] = min(self.unreached.get(publisher, 0) + 1, 20)
        newest = self.newest(publisher)
        most = max(10 * newest.R, 3_600_000 // newest.interval_ms)
        length = min(10 * newest.R * 2 ** (times - 1), most)
        self.behind.setdefault(publisher, []).append((index, length))
        return True

    def _is_majority(self, says: list[Any], others: list[int]) -> bool:
        return len(says) > 1 and len(says) > len(others) / 2

    def releases_silent(self) -> bool:
        return self.level < 2

    def _choose(self, said: Said | None) -> tuple[int | None, str]:
        eligible = self.eligible()
        best = min([self.group(one) for one in eligible], default=0)
        front = [one for one in eligible if self.group(one) == best]
        if said is not None and said in self.counted(said.entry["id"], said.interval_ms):
            author = said.entry["id"]
            said.led = (
                self.publisher in front
                and author in front
                and author != self.publisher
                and self.score(author) - self.score(self.publisher) >= self.policy()["margin"]
            )
            if self.lead(author) >= 3:
                return author, "margin"
        if self.publisher in front:
            return self.publisher, self.because
        if not front:
            return None, "ineligible"
        named = max(front, key=lambda one: (self.score(one), -one))
        if self.publisher is None:
            return named, "vacant"
        if self.lost_index(self.publisher):
            return named, "lost"
        if self.publisher in self.contradicted:
            return named, "contradicted"
        return named, "group" if self.publisher in eligible else "ineligible"

    # What it amounts to

    def contents(self) -> bytes:
        """``num u8``, and 40 bytes for each entry."""
        listed: dict[bytes, tuple[int, int]] = {}
        for member in self.members:
            for hash_, expires_ms in self.leaves(member) if self.recent(member) else ():
                end_ms = self.farm_time_ms + self.policy()["lifetime_ms"]
                end_ms = end_ms if expires_ms is None else min(end_ms, expires_ms)
                end_s = min(end_ms // 1000, 2**32 - 1)
                if end_s > self.farm_time_ms // 1000:
                    cost, other_s = listed.get(hash_, (15, 0))
                    listed[hash_] = min(cost, self.costs[member]), max(other_s, end_s)
        cheapest = sorted(listed, key=lambda one: (listed[one][0], one))[:16]
        return bytes([len(cheapest)]) + b"".join(
            hash_ + b"\0\0\x03" + bytes([listed[hash_][0]]) + listed[hash_][1].to_bytes(4, "big")
            for hash_ in sorted(cheapest)
        )

    def snapshot(self) -> bytes:
        """The state as the fold writes it."""
        policy = self.policy()
        policy["excluded"] = sorted(policy["excluded"])
        for name in ("weights", "overrides", "orders"):
            policy[name] = dict(sorted(policy[name].items()))
        if "clients" in policy:
            policy["clients"] = {name: dict(sorted(one.items())) for name, one in policy["clients"].items()}
        # In the order of the fold's fields.
        for name in ("control_ms", "clients", "forget"):
            if name in policy:
                policy[name] = policy.pop(name)
        statuses: list[str] = []
        records = {member: self._record(member, statuses) for member in sorted(self.said)}
        text = json.dumps(
            {
                "schema": "garlicfarm.farm/1",
                "farm": self.farm,
                "algorithm": 2 + self.level,
                "members": self.members,
                "policy": policy,
                "publisher": self.publisher,
                "since": self.since,
                "because": self.because,
                "due_since": self.due_since,
                "holders": dict(sorted(self.holders.items())),
                "farm_time_ms": self.farm_time_ms,
                "last_published_ms": self.last_published_ms,
                "records": records,
                "notes": dict(sorted(self.notes.items())),
                "skipped": dict(sorted(self.skipped.items())),
            }
            | self._leases()
            | self._outside()
            | self._compared()
            | self._served(),
            separators=(",", ":"),
            ensure_ascii=False,
        )
        pieces = text.split('"a status, verbatim"')
        return "".join(part for pair in zip(pieces, [*statuses, ""], strict=True) for part in pair).encode()

    def _leases(self) -> dict[str, Any]:
        if self.lease is None:
            return {}
        boots = {member: self.boot(member, 2**63) for member in self.members}
        lost = {member: self.lost_index(member) for member in self.members}
        maps = {"boots": boots, "lost": lost}
        told = {name: {one: at for one, at in of_each.items() if at} for name, of_each in maps.items()}
        return {"leases": self.lease | told}

    def _outside(self) -> dict[str, Any]:
        if self.since_level_3 is None:
            return {}
        return {"outside": {"since": self.since_level_3, "unreached": dict(sorted(self.unreached.items()))}}

    def _compared(self) -> dict[str, Any]:
        if self.agreed is None:
            return {}
        told = {
            "agreed": [0, *self.agreed][-1],
            "statuses": self.since_agreed,
            "claims": dict(sorted(self.claimed.items())),
            "contradicted": dict(sorted(self.contradicted.items())),
            "disagreeing": self.disagreeing,
        }
        return {"compared": told}

    def served(self, upto: int) -> tuple[int, int]:
        """For how long the farm has served after the entry at that index, and up to which farm time."""
        total, latest = 0, self.times[0][1]
        for index, time_ms, longest_ms in self.times[1:]:
            if index <= upto and not latest - longest_ms <= time_ms <= latest:
                total += min(time_ms - latest, longest_ms) if time_ms > latest else 0
                latest = time_ms
        return total, latest

    def _served(self) -> dict[str, Any]:
        if self.agreed is None:
            return {}
        since = {}
        for one in self.members:
            newest = self.newest(one)
            # The step of the Configuration that makes it a member is after that.
            since[one] = self.served(max(newest.index if newest else 0, self.joined[one] - 1))[0]
        total, latest = self.served(2**63)
        return {"served": {"ms": total, "until_ms": latest, "heard": since}}

    def _record(self, member: int, statuses: list[str]) -> dict[str, Any]:
        newest = self.newest(member)
        statuses.append("null" if newest is None else newest.text)
        figures: dict[str, Any] = {"sequence": self.sequences.get(member, -1)}
        if newest is None:
            figures |= {"index": 0, "interval_ms": 30_000, "R": 3, "counted": {}, "silences": {}}
        else:
            counted = {one: self.counted(member, one)[-1].date for one in sorted(newest.in_use)}
            silences = {one: min(self.silences(member, one), newest.R) for one in self.members}
            figures |= {
                "index": newest.index,
                "interval_ms": newest.interval_ms,
                "R": newest.R,
                "counted": counted,
                "silences": {one: count for one, count in silences.items() if count},
            }
        return figures | {
            "against": self.against(member),
            "cost": self.costs.get(member),
            "lead": self.lead(member),
            "failures": self.failures(member),
            "sanction": self.sanction(member),
            "status": "a status, verbatim",
        }
