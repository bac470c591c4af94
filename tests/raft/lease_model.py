"""A model of three members with leases on heartbeats: all that can happen to the two classes of them.

`LeaseGranter` and `LeaseHolder` are the shipped ones. Around them are a Raft, a fold and a network that are
as small and as hostile as their rules allow. A step is one of:

* time: a tick passes, for all alike;
* an election: a candidate and one voter, whose log is not newer, move to the next term at once, and the
  candidate appends the first entry of its term. A leader that has not heard of it goes on (a *zombie*),
  also after it has read that a member is in a later term;
* an entry appended by a leader: a *move* of the role to any other member, *lost*, *release*, or another
  length of a lease;
* one entry replicated, which is committed once a majority has it in the leader's term; one entry applied,
  at one member;
* a heartbeat sent, received, its answer read; a grant sent, received (its answer follows), the answer read.
  Each may be lost, and a grant received again. A leader may be told that it gets no answer, and read it, or
  have its request received, all the same. Two messages never wait for each other;
* a restart: a member has its log and its term, a new `LeaseHolder`, and has to apply the log again.

A slow, suspended or cut-off member is one that takes no step. Members that reach each other need no state.

A member publishes at the first moment at which it may: the state it has applied names it, and names no
other holder, and it has a lease. What it publishes stands until the lease under which it does is over,
however late the log that it has applied; only its release ends it sooner. So `Model.is_broken` sees
whatever two members could publish at once.

States are finite without a bound on time: times are kept as they are to the present, and no older than a
lease lasts; the numbers of requests and grants are kept by their rank, since only their order matters; what
can no longer be received is forgotten. These are the only reductions. What is left out makes the members
more free, not less: what is committed may be applied by whoever has it, what a member appends to another's
log needs no message, and whom `lost` released may be named again at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec

from garlicfarm.leases import Holding, LeaseGranter, LeaseHolder
from garlicfarm.wire.messages import Grant

MEMBERS = (1, 2, 3)
NOW = 1000
"""The present, on every clock."""

_RENAMINGS = [
    ((0, one, two, three, 4, 5), tuple((one, two, three).index(member) for member in MEMBERS))
    for one, two, three in [(2, 1, 3), (1, 3, 2), (2, 3, 1), (3, 1, 2), (3, 2, 1)]
]

State = tuple[int, ...]
"""Of the farm, of messages under way, then of each member: its log, its process, its part as a leader. Each
is a number of a `_Table`; 0 as a part: none."""
FARM, MESSAGES = 0, 1
NODE, PROCESS, PART = ({member: 3 * member - 1 + at for member in MEMBERS} for at in range(3))
Step = tuple[Any, ...]


class Bounds(NamedTuple):
    """``elections``: after the first one. ``entries``: of a log, after the first one; ``moves`` of them may
    be moves. ``messages``: grants and their answers under way. ``beats``: heartbeats under way of the first
    leader; 0: see above. ``lasts``: how long a lease lasts, in ticks, and what it is changed to, in this
    order. ``of_five``: the third member stands for three of five that do all alike, so that the first two
    make no majority."""

    elections: int = 1
    entries: int = 2
    moves: int = 1
    restarts: int = 0
    messages: int = 1
    beats: int = 0
    lasts: tuple[int, ...] = (2,)
    of_five: bool = False


class Entry(NamedTuple):
    """``kind``: ``first``, ``move``, ``lost``, ``release``, ``lasts``. ``member``: whom it concerns, with
    ``since``. ``target``: who is named, or how long a lease lasts."""

    term: int
    kind: str
    member: int = 0
    since: int = 0
    target: int = 0


Log = tuple[Entry, ...]


class _Farm(NamedTuple):
    committed: int
    restarts: int


class _Node(NamedTuple):
    term: int
    log: int
    applied: int


class _Process(NamedTuple):
    """``stands_under``: the index of the naming of what it publishes, 0: of a former process."""

    term: int = 0
    newest: int = 0
    arrived: tuple[tuple[int, int], ...] = ()
    leased: int = 0
    end: int = 0
    stands_under: int = 0
    stands: int = 0


class _Part(NamedTuple):
    """A `LeaseGranter`, and its heartbeats under way: member, seq, and the term of the answer, 0: none
    yet."""

    member: int
    term: int
    elected: int
    lasts: int
    waits: int
    samples: tuple[tuple[int, int, int], ...]
    reached: tuple[tuple[int, int], ...]
    number: int
    asked: int
    heard: tuple[tuple[int, int, int], ...]
    holdings: tuple[tuple[Holding, int, bool], ...]
    beats: tuple[tuple[int, int, int], ...]


class _Message(NamedTuple):
    """A grant to ``member``, or its answer to the leader of the term."""

    member: int
    term: int
    number: int
    grant: Grant | None


class _Table(list[Any]):
    """Values, each once, and their numbers, which begin at 1."""

    def __init__(self) -> None:
        super().__init__([None])
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self)
            self.append(value)
        return found


def fold(log: Log) -> tuple[tuple[Holding, ...], int, int]:
    """Who holds the role, how long a lease lasts, and how long it takes until every lease is over."""
    holders: dict[int, Holding] = {}
    lasts = [0, 0]
    for index, (_, kind, member, since, target) in enumerate(log, 1):
        if kind in ("lost", "release"):
            held = holders.get(member)
            if held is None or held.index != since or (held.is_named and kind == "release"):
                continue  # void
            del holders[member]
            if not held.is_named:
                continue
        elif kind == "lasts":
            lasts = [lasts[1], target]
            continue
        elif target == 0:
            continue
        else:
            for held in list(holders.values()):
                if held.is_named:
                    holders[held.member] = Holding(held.member, index, is_named=False)
        holders[target] = Holding(target, index, is_named=True)
        if kind == "first":
            lasts = [since, since]
    return tuple(holders[member] for member in sorted(holders)), lasts[1], max(lasts)


class Model:
    """``witnessed``: how often a member began to publish after another one had, by what brought it about."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.witnessed: Counter[str] = Counter()
        self.now = dict.fromkeys(("elected", "sent", "age", "arrived", "heard", "lost"), NOW)
        """What is read from the clock, for each purpose."""
        self._members = (1, 2, 3, 4, 5) if bounds.of_five else MEMBERS
        self._oldest = -max(bounds.lasts)
        self._farms, self._messages, self._nodes = _Table(), _Table(), _Table()
        self._processes, self._parts, self._logs = _Table(), _Table(), _Table()
        self._tidied = lru_cache(200_000)(self._renumber)
        self._names = _RENAMINGS[:1] if bounds.of_five else _RENAMINGS
        self._renamings = [([0], [0], [0], [0]) for _ in self._names]
        # A step changes few tables, and looks at few rows: each is computed once.
        for name in (
            "_renamed_log",
            "_fold",
            "_prefix",
            "_extended",
            "_first_index",
            "_tick_part",
            "_tick_process",
            "_settled",
            "_restarted",
            "_received",
            "_own",
            "_part_ops",
            "_on_part",
            "_told",
            "_reached",
            "_is_reached",
            "_view",
            "_skip",
            "_renumbered_part",
            "_renumbered_process",
            "_process_numbers",
            "_forgotten",
            "_commit",
            "_stands",
        ):
            setattr(self, name, cache(getattr(self, name)))

    # ------------------------------------------------------------------ what states say

    def initial(self) -> list[State]:
        """The role is the leader's, or another member's; all know it."""
        lasts = self.bounds.lasts[0]
        found = []
        for leader, named in itertools.product((1, 3), MEMBERS):
            log = self._logs.number((Entry(1, "first", leader, lasts, named),))
            state = [self._farms.number(_Farm(log, 0)), self._messages.number(())]
            for _ in MEMBERS:
                state += [self._nodes.number(_Node(1, log, 1)), self._processes.number(_Process()), 0]
            state[PART[leader]] = self._told(self._elected(leader, 1), log, 1)
            if self.bounds.messages or leader == named:  # nobody publishes without a grant
                found.append(self._tidy(state))
        return found

    def is_broken(self, state: State) -> bool:
        """Two members publish at once."""
        stands = self._stands
        return stands(state[3]) + stands(state[6]) + stands(state[9]) > 1

    def _stands(self, process: int) -> int:
        return int(self._processes[process].stands > 0)

    def tell(self, step: Step) -> str:
        """The step in words."""
        kind, *rest = step
        return {
            "tick": "a tick passes",
            "elect": "{} is elected with the vote of {}",
            "restart": "{} restarts",
            "replicate": "{} replicates to {}",
            "apply": "{} applies the next entry",
            "append": "{} appends {}",
            "beat": "{} sends a heartbeat to {}",
            "beat received": "{1} receives the heartbeat {2} of {0} and answers",
            "beat read": "{0} reads the answer of {1} to its heartbeat {2}",
            "beat lost": "the heartbeat {2} of {0} to {1}, or the answer, is lost",
            "beat told": "{0} is told that {1} does not answer its heartbeat {2}",
            "grant": "{} sends a grant",
            "grant received": "{0.member} receives: {0.grant}",
            "grant repeated": "{0.member} receives, not for the last time: {0.grant}",
            "grant read": "the leader of term {0.term} reads the answer of {0.member} to grant {0.number}",
            "grant lost": "grant {0.number} of term {0.term} to {0.member}, or its answer, is lost",
            "grant told": "{} is told that its grant is not answered",
        }[kind].format(*rest)

    def show(self, state: State) -> str:
        """All of a state, for whoever debugs the model."""
        lines = [str(self._farms[state[FARM]]), str(self._messages[state[MESSAGES]])]
        for member in MEMBERS:
            node = self._nodes[state[NODE[member]]]
            lines += [
                f"{member}: {node} {self._logs[node.log]}",
                f"   {self._processes[state[PROCESS[member]]]}",
            ]
            lines += [f"   {self._parts[state[PART[member]]]}"]
        return "\n".join(lines)

    # ------------------------------------------------------------------ members are alike

    def canonical(self, state: State) -> State:
        """The least of the states that differ from this one only by who is who."""
        farm, messages, node1, process1, part1, node2, process2, part2, node3, process3, part3 = state
        found = state
        for at, (names, (one, two, three)) in enumerate(self._names):
            members = (node1, process1, part1), (node2, process2, part2), (node3, process3, part3)
            farms, sent, nodes, parts = self._renamings[at]
            first, second, third = members[one], members[two], members[three]
            try:
                renamed = (
                    farms[farm],
                    sent[messages],
                    nodes[first[0]],
                    first[1],
                    parts[first[2]],
                    nodes[second[0]],
                    second[1],
                    parts[second[2]],
                    nodes[third[0]],
                    third[1],
                    parts[third[2]],
                )
            except IndexError:
                self._rename(at, names)
                return self.canonical(state)
            if renamed < found:
                found = renamed
        return found

    def _rename(self, at: int, names: tuple[int, ...]) -> None:
        """Bring the tables of a renaming up to date."""
        farms, sent, nodes, parts = self._renamings[at]
        while len(farms) < len(self._farms):
            farm = self._farms[len(farms)]
            farms.append(
                self._farms.number(farm._replace(committed=self._renamed_log(farm.committed, names)))
            )
        while len(sent) < len(self._messages):
            renamed = [each._replace(member=names[each.member]) for each in self._messages[len(sent)]]
            sent.append(self._messages.number(tuple(sorted(renamed, key=_order))))
        while len(nodes) < len(self._nodes):
            node = self._nodes[len(nodes)]
            nodes.append(self._nodes.number(node._replace(log=self._renamed_log(node.log, names))))
        while len(parts) < len(self._parts):
            part = self._parts[len(parts)]
            reached = [(names[member], at) for member, at in part.reached]
            if len(reached) == 1 and self._is_reached_at_once(part.term):  # whoever it is
                reached = [(1 if names[part.member] != 1 else 2, reached[0][1])]
            parts.append(
                self._parts.number(
                    part._replace(
                        member=names[part.member],
                        samples=tuple(sorted((names[member], *rest) for member, *rest in part.samples)),
                        reached=tuple(sorted(reached)),
                        asked=names[part.asked],
                        heard=tuple(sorted((names[member], *rest) for member, *rest in part.heard)),
                        holdings=tuple(
                            sorted(
                                (
                                    (Holding(names[held.member], held.index, is_named=held.is_named), *rest)
                                    for held, *rest in part.holdings
                                ),
                                key=lambda each: each[0].member,
                            )
                        ),
                        beats=tuple(sorted((names[member], *rest) for member, *rest in part.beats)),
                    )
                )
            )

    def _renamed_log(self, log: int, names: tuple[int, ...]) -> int:
        return self._logs.number(
            tuple(
                entry._replace(
                    member=names[entry.member],
                    target=entry.target if entry.kind == "lasts" else names[entry.target],
                )
                for entry in self._logs[log]
            )
        )

    # ------------------------------------------------------------------ steps

    def successors(self, state: State) -> Iterator[tuple[Step, State]]:
        """Every step that can follow, and where it leads to."""
        yield ("tick",), self._tick(state)
        nodes = [None, *(self._nodes[state[NODE[member]]] for member in MEMBERS)]
        farm = self._farms[state[FARM]]
        committed = self._logs[farm.committed]
        last_term = max(nodes[1].term, nodes[2].term, nodes[3].term)
        logs = [None, *(self._logs[nodes[member].log] for member in MEMBERS)]
        if last_term <= self.bounds.elections:
            for member in MEMBERS:
                log = logs[member]
                if len(log) > self.bounds.entries:
                    continue
                for voter in MEMBERS:
                    other = logs[voter]
                    is_newer = (other[-1].term, len(other)) > (log[-1].term, len(log))
                    if self._is_majority(member, voter) and not is_newer:
                        yield ("elect", member, voter), self._elect(state, member, voter, last_term + 1)
        for member in MEMBERS:
            node, log = nodes[member], logs[member]
            size = node.applied + 1
            if log[:size] == committed[:size] and len(log) >= size:
                yield ("apply", member), self._apply(state, member)
            if farm.restarts < self.bounds.restarts:
                yield ("restart", member), self._restart(state, member)
            if state[PART[member]]:
                yield from self._steps_of_leader(state, member, nodes, logs)
        messages = self._messages[state[MESSAGES]]
        for message in dict.fromkeys(messages):
            yield ("grant lost", message), self._with_message(state, message)
            if message.grant is None:
                leader = next(each for each in MEMBERS if self._leads(state, each) == message.term)
                part = self._on_part(
                    state[PART[leader]],
                    "on_grant_answered",
                    message.member,
                    message.number,
                    self.now["heard"],
                )
                yield ("grant read", message), self._with_message(state, message, leader, part)
            elif nodes[message.member].term == message.term:
                yield ("grant received", message), self._receive(state, message, message)
                if len(messages) < self.bounds.messages:
                    yield ("grant repeated", message), self._receive(state, None, message)

    def _steps_of_leader(
        self, state: State, leader: int, nodes: list[Any], logs: list[Any]
    ) -> Iterator[tuple[Step, State]]:
        number, node = state[PART[leader]], nodes[leader]
        part = self._parts[number]
        for member in MEMBERS:
            if member == leader:
                continue
            other = nodes[member]
            if other.term < node.term or (other.term == node.term and other.log != node.log):
                yield ("replicate", leader, member), self._replicate(state, leader, member)
        for step, after, needs in self._part_ops(number):
            if needs == "room":
                if len(self._messages[state[MESSAGES]]) < self.bounds.messages:
                    member, grant, after = after
                    message = _Message(member, grant.term, grant.number, grant)
                    yield step, self._with_message(state, None, leader, after, message)
            elif needs == "answer":
                member, seq = step[2:]
                if nodes[member].term >= node.term:
                    beats = tuple(
                        (*beat[:2], nodes[member].term) if beat[:2] == (member, seq) else beat
                        for beat in part.beats
                    )
                    yield step, self._with_part(state, leader, self._parts.number(part._replace(beats=beats)))
            else:
                yield step, self._with_part(state, leader, after)
        if len(logs[leader]) <= self.bounds.entries:
            yield from self._appended(state, leader, nodes, logs)

    def _appended(
        self, state: State, leader: int, nodes: list[Any], logs: list[Any]
    ) -> Iterator[tuple[Step, State]]:
        node, number = nodes[leader], state[PART[leader]]
        part, term = self._parts[number], nodes[leader].term
        named = next(
            each.member for each in self._fold(node.log, len(logs[leader]))[0] if each.is_named
        )  # as far as the leader knows
        kinds = Counter(entry.kind for entry in logs[leader])
        entries: list[tuple[Entry, int]] = []
        if kinds["move"] < self.bounds.moves:
            entries += [(Entry(term, "move", target=target), number) for target in MEMBERS if target != named]
        for held in self._granter(part).lost(self.now["lost"]):
            after = self._on_part(number, "on_lost", held)
            for target in MEMBERS if held.is_named else (0,):
                if target != held.member:
                    entries.append((Entry(term, "lost", held.member, held.index, target), after))
        if kinds["lasts"] + 1 < len(self.bounds.lasts):
            entries.append((Entry(term, "lasts", target=self.bounds.lasts[kinds["lasts"] + 1]), number))
        for entry, after in entries:
            yield ("append", leader, entry), self._append(state, leader, entry, after)
        for member in MEMBERS:
            for held in self._fold(nodes[member].log, nodes[member].applied)[0]:
                if held.member == member and not held.is_named:
                    entry = Entry(term, "release", member, held.index)
                    appended = self._append(state, leader, entry, number)
                    yield ("append", leader, entry), self._stopped(appended, member)

    # ------------------------------------------------------------------ steps of the farm

    def _tick(self, state: State) -> State:
        part, process = self._tick_part, self._tick_process
        farm, messages, node1, process1, part1, node2, process2, part2, node3, process3, part3 = state
        after = (
            farm,
            messages,
            node1,
            process(process1),
            part1 and part(part1),
            node2,
            process(process2),
            part2 and part(part2),
            node3,
            process(process3),
            part3 and part(part3),
        )
        return self._tidy(list(after))

    def _elect(self, state: State, member: int, voter: int, term: int) -> State:
        after = list(state)
        for each in (member, voter):
            after[NODE[each]] = self._nodes.number(self._nodes[state[NODE[each]]]._replace(term=term))
            after[PART[each]] = 0
        after[PART[member]] = self._elected(member, term)
        after = list(self._append(tuple(after), member, Entry(term, "first"), after[PART[member]]))
        self._tell_part(after, member)
        return self._tidy(after)

    def _append(self, state: State, leader: int, entry: Entry, part: int) -> State:
        after = list(state)
        node = self._nodes[state[NODE[leader]]]
        log = self._extended(node.log, entry)
        after[NODE[leader]] = self._nodes.number(node._replace(log=log))
        if self._is_majority(leader, leader):
            farm = self._farms[state[FARM]]
            after[FARM] = self._farms.number(
                farm._replace(committed=self._commit(farm.committed, log, node.term))
            )
        after[PART[leader]] = part
        return self._tidy(after)

    def _replicate(self, state: State, leader: int, member: int) -> State:
        after = list(state)
        source, target = self._nodes[state[NODE[leader]]], self._nodes[state[NODE[member]]]
        log = self._prefix(source.log, self._common(source.log, target.log) + 1)
        after[NODE[member]] = self._nodes.number(_Node(source.term, log, target.applied))
        if target.term < source.term:
            after[PART[member]] = 0
        farm = self._farms[state[FARM]]
        if self._is_majority(leader, member):
            committed = self._commit(farm.committed, log, source.term)
            after[FARM] = self._farms.number(farm._replace(committed=committed))
        return self._tidy(after)

    def _commit(self, committed: int, log: int, term: int) -> int:
        """What is committed once a leader and a follower of this term have this log."""
        if len(self._logs[log]) > len(self._logs[committed]) and self._logs[log][-1].term == term:
            assert self._logs[log][: len(self._logs[committed])] == self._logs[committed]
            return log
        return committed

    def _apply(self, state: State, member: int) -> State:
        after = list(state)
        node = self._nodes[state[NODE[member]]]
        node = node._replace(applied=node.applied + 1)
        after[NODE[member]] = self._nodes.number(node)
        self._tell_part(after, member)
        self._settle(after, member)
        return self._tidy(after)

    def _tell_part(self, after: list[int], member: int) -> None:
        node, part = self._nodes[after[NODE[member]]], after[PART[member]]
        if part and self.has_caught_up(node):
            after[PART[member]] = self._told(part, node.log, node.applied)

    def has_caught_up(self, node: _Node) -> bool:
        """A leader has applied the first entry of its term."""
        return node.applied >= self._first_index(node.log, node.term)

    def _restart(self, state: State, member: int) -> State:
        after = list(state)
        node = self._nodes[state[NODE[member]]]
        after[NODE[member]] = self._nodes.number(node._replace(applied=1))
        after[PROCESS[member]] = self._restarted(state[PROCESS[member]])
        after[PART[member]] = 0
        farm = self._farms[state[FARM]]
        after[FARM] = self._farms.number(farm._replace(restarts=farm.restarts + 1))
        return self._tidy(after)

    def _stopped(self, state: State, member: int) -> State:
        after = list(state)
        process = self._processes[state[PROCESS[member]]]
        after[PROCESS[member]] = self._processes.number(process._replace(stands_under=0, stands=0))
        return tuple(after)

    def _with_part(self, state: State, leader: int, part: int) -> State:
        after = list(state)
        after[PART[leader]] = part
        return self._tidy(after)

    def _extend_own(self, after: list[int], leader: int) -> None:
        own = self._own(after[PART[leader]])
        if own is not None:
            after[PROCESS[leader]] = self._received(after[PROCESS[leader]], "extend", *own)

    def _with_message(
        self,
        state: State,
        gone: _Message | None,
        leader: int = 0,
        part: int = 0,
        come: _Message | None = None,
    ) -> State:
        after = list(state)
        messages = list(self._messages[state[MESSAGES]])
        if gone is not None:
            messages.remove(gone)
        if come is not None:
            messages.append(come)
        after[MESSAGES] = self._messages.number(tuple(sorted(messages, key=_order)))
        if leader:
            after[PART[leader]] = part
        return self._tidy(after)

    def _receive(self, state: State, gone: _Message | None, message: _Message) -> State:
        after = list(state)
        member = message.member
        after[PROCESS[member]] = self._received(
            state[PROCESS[member]], "on_grant", message.grant, self.now["arrived"]
        )
        self._settle(after, member)
        return self._with_message(tuple(after), gone, come=message._replace(grant=None))

    def _settle(self, after: list[int], member: int) -> None:
        """The member publishes, if it may."""
        node = self._nodes[after[NODE[member]]]
        index, process = self._settled(after[PROCESS[member]], member, node.log, node.applied)
        after[PROCESS[member]] = process
        if index > 1:
            self._witness(
                self._logs[node.log][: node.applied], member, index, self._farms[after[FARM]].restarts
            )

    def _witness(self, log: Log, member: int, index: int, restarts: int) -> None:
        if self.bounds.beats or log[0].member != log[0].target or member == log[0].target:
            return  # only a leader that is reached at once has certainly published
        self.witnessed[log[index - 1].kind] += 1
        self.witnessed["release"] += any(entry.kind == "release" for entry in log)
        self.witnessed["election"] += log[index - 1].term > 1
        self.witnessed["restart"] += restarts > 0

    def _leads(self, state: State, member: int) -> int:
        """The term that it leads, 0: none."""
        part = state[PART[member]]
        return self._parts[part].term if part else 0

    # ------------------------------------------------------------------ forgetting, and numbers as ranks

    def _tidy(self, after: list[int]) -> State:
        nodes = self._nodes
        term1, term2, term3 = nodes[after[2]].term, nodes[after[5]].term, nodes[after[8]].term
        for leader in MEMBERS:
            part = after[PART[leader]]
            if part:
                if self._is_reached(leader, term1, term2, term3):
                    after[PART[leader]] = self._reached(part)
                self._extend_own(after, leader)
                self._settle(after, leader)
        committed = self._farms[after[FARM]].committed
        for node, part in (2, 4), (5, 7), (8, 10):
            if not after[part]:
                after[node] = self._skip(after[node], node // 3 + 1, committed)
        after[1], after[3], after[4], after[6], after[7], after[9], after[10] = self._tidied(
            after[1], term1, after[3], after[4], term2, after[6], after[7], term3, after[9], after[10]
        )
        return tuple(after)

    def _is_majority(self, leader: int, member: int) -> bool:
        """The two are one. The third one of five is one alone."""
        return 3 in (leader, member) if self.bounds.of_five else leader != member

    def _is_reached(self, leader: int, *terms: int) -> bool:
        term = terms[leader - 1]
        return self._is_reached_at_once(term) and any(
            self._is_majority(leader, member) and terms[member - 1] == term for member in MEMBERS
        )

    def _is_reached_at_once(self, term: int) -> bool:
        return term > 1 or not self.bounds.beats

    def _renumber(self, *rows: int) -> tuple[int, ...]:
        after = [0, *rows]
        messages = self._messages[after[MESSAGES]]
        terms_of = [after[NODE[member]] for member in MEMBERS]
        parts = [self._parts[after[PART[member]]] for member in MEMBERS]
        terms = [part.term for part in parts if part is not None]
        if messages:
            messages = tuple(
                each
                for each in messages
                if (terms_of[each.member - 1] <= each.term if each.grant is not None else each.term in terms)
            )
        numbers: dict[int, set[int]] = {}
        for member in MEMBERS:
            process = self._processes[after[PROCESS[member]]]
            if process.term:
                needed: set[int] = set()
                late = 0
                if process.term == terms_of[member - 1]:
                    for part in parts:
                        if part is not None and part.term == process.term:
                            needed.update(number for at, number, _ in part.heard if at == member)
                    for each in messages:
                        if each.member == member and each.term == process.term:
                            if each.grant is None:
                                needed.add(each.number)
                            else:
                                needed.add(each.grant.answered)
                                late = max(late, process.newest * (each.number <= process.newest))
                after[PROCESS[member]] = self._forgotten(
                    after[PROCESS[member]], tuple(number in needed for number, _ in process.arrived), late
                )
                term, used = self._process_numbers(after[PROCESS[member]])
                if used:
                    numbers.setdefault(term, set()).update(used)
        for part in parts:
            if part is not None:
                inside = numbers.setdefault(part.term, set())
                inside.update(number for _, number, _ in part.heard)
                if part.asked:
                    inside.add(part.number)
        for each in messages:
            inside = numbers.setdefault(each.term, set())
            inside.add(each.number)
            if each.grant is not None:
                inside.add(each.grant.answered)
        for term, inside in numbers.items():
            inside.add(0)
            ranked = tuple(sorted(inside))
            moved = len(inside) <= ranked[-1]
            for member, part in zip(MEMBERS, parts, strict=True):
                if part is not None and part.term == term and (moved or part.number != ranked[-1]):
                    after[PART[member]] = self._renumbered_part(after[PART[member]], ranked)
            if moved:
                for member in MEMBERS:
                    if self._processes[after[PROCESS[member]]].term == term:
                        after[PROCESS[member]] = self._renumbered_process(after[PROCESS[member]], ranked)
                messages = tuple(
                    _renumbered(each, ranked) if each.term == term else each for each in messages
                )
        after[MESSAGES] = self._messages.number(messages)
        return after[1], after[3], after[4], after[6], after[7], after[9], after[10]

    def _process_numbers(self, process: int) -> tuple[int, list[int]]:
        found = self._processes[process]
        return found.term, [each for each in (found.newest, *(number for number, _ in found.arrived)) if each]

    def _renumbered_part(self, part: int, ranked: tuple[int, ...]) -> int:
        found = self._parts[part]
        heard = tuple((member, ranked.index(number), read) for member, number, read in found.heard)
        number = ranked.index(found.number) if found.asked else len(ranked) - 1
        return self._parts.number(found._replace(number=number, heard=heard))

    def _renumbered_process(self, process: int, ranked: tuple[int, ...]) -> int:
        found = self._processes[process]
        arrived = tuple((ranked.index(number), at) for number, at in found.arrived)
        return self._processes.number(found._replace(newest=ranked.index(found.newest), arrived=arrived))

    def _forgotten(self, process: int, kept: tuple[bool, ...], newest: int) -> int:
        found = self._processes[process]
        arrived = tuple(each for each, is_kept in zip(found.arrived, kept, strict=True) if is_kept)
        term = found.term if arrived or newest else 0
        return self._processes.number(found._replace(term=term, newest=newest, arrived=arrived))

    def _view(self, log: int, applied: int, member: int) -> tuple[Holding | None, bool]:
        """What a member that does not lead makes of the state."""
        holdings, _, _ = self._fold(log, applied)
        own = next((held for held in holdings if held.member == member), None)
        return own, own is not None and own.is_named and len(holdings) == 1

    def _skip(self, node: int, member: int, committed: int) -> int:
        """Entries are applied at once that are nothing to the member."""
        found = self._nodes[node]
        log, agreed = self._logs[found.log], self._logs[committed]
        applied = found.applied
        while (
            applied < min(len(log), len(agreed))
            and log[applied].term == agreed[applied].term
            and self._view(found.log, applied, member) == self._view(found.log, applied + 1, member)
        ):
            applied += 1
        return self._nodes.number(found._replace(applied=applied))

    # ------------------------------------------------------------------ logs

    def _fold(self, log: int, applied: int) -> tuple[tuple[Holding, ...], int, int]:
        return fold(self._logs[log][:applied])

    def _prefix(self, log: int, size: int) -> int:
        return self._logs.number(self._logs[log][:size])

    def _extended(self, log: int, entry: Entry) -> int:
        return self._logs.number((*self._logs[log], entry))

    def _common(self, log: int, other: int) -> int:
        pairs = zip(self._logs[log], self._logs[other], strict=False)
        size = min(len(self._logs[log]), len(self._logs[other]))
        return next((at for at, (one, two) in enumerate(pairs) if one.term != two.term), size)

    def _first_index(self, log: int, term: int) -> int:
        return next(index for index, entry in enumerate(self._logs[log], 1) if entry.term == term)

    # ------------------------------------------------------------------ members' processes

    def _tick_process(self, process: int) -> int:
        found = self._processes[process]
        stands = max(0, found.stands - 1)
        return self._processes.number(
            found._replace(
                arrived=tuple((number, max(self._oldest, at - 1)) for number, at in found.arrived),
                end=max(0, found.end - 1),
                stands=stands,
                stands_under=found.stands_under if stands else 0,
            )
        )

    def _received(self, process: int, method: str, *arguments: Any) -> int:
        found = self._processes[process]
        holder = _holder(found)
        getattr(holder, method)(*arguments)
        arrived = ((number, max(self._oldest, at - NOW)) for number, at in holder._arrived_ms.items())
        return self._processes.number(
            found._replace(
                term=holder._term,
                newest=holder._newest,
                arrived=tuple(sorted(arrived)),
                leased=holder._index,
                end=max(0, holder._end_ms - NOW),
            )
        )

    def _restarted(self, process: int) -> int:
        return self._processes.number(_Process(stands=self._processes[process].stands))

    def _settled(self, process: int, member: int, log: int, applied: int) -> tuple[int, int]:
        """What it publishes now. Returns under which index it has just begun to (0: none), and the
        process."""
        found, holder = self._processes[process], _holder(self._processes[process])
        (held, *others), _, _ = self._fold(log, applied)
        index = held.index if held.is_named and held.member == member and not others else 0
        begins = index != found.stands_under
        if not index:
            index, begins = found.stands_under, False
        end = holder.end_ms(index)
        if end is None or end <= NOW:
            return 0, process
        stands = max(found.stands, end - NOW)
        return index * begins, self._processes.number(found._replace(stands_under=index, stands=stands))

    # ------------------------------------------------------------------ leaders' parts

    def _elected(self, member: int, term: int) -> int:
        return self._pack(LeaseGranter(member, term, self.now["elected"]), ())

    def _told(self, part: int, log: int, applied: int) -> int:
        holdings, lasts, waits = self._fold(log, applied)
        granter = self._granter(self._parts[part])
        granter.on_applied(holdings, lasts_ms=lasts, waits_ms=waits, now_ms=NOW)
        return self._pack(granter, self._parts[part].beats)

    def _reached(self, part: int) -> int:
        """A heartbeat is sent, answered, and the answer read, at once."""
        granter = self._granter(self._parts[part])
        granter._reached_ms = {}
        for member in self._members:
            if member != granter._node_id:
                granter.on_sent(member, 1, self.now["sent"])
                granter.on_answered(member, 1, granter.term)
        return self._pack(granter, ())

    def _own(self, part: int) -> tuple[int, int] | None:
        return self._granter(self._parts[part]).own(self._members, NOW)

    def _on_part(self, part: int, method: str, *arguments: Any) -> int:
        granter = self._granter(self._parts[part])
        getattr(granter, method)(*arguments)
        return self._pack(granter, self._parts[part].beats)

    def _part_ops(self, number: int) -> list[tuple[Step, Any, str]]:
        """Steps of a leader, what they make of its part, and what they need."""
        part = self._parts[number]
        leader = part.member
        found: list[tuple[Step, Any, str]] = []
        for member in MEMBERS:
            if member == leader:
                continue
            under_way = [beat for beat in part.beats if beat[0] == member]
            if self._is_reached_at_once(part.term):
                continue
            if len(part.beats) < self.bounds.beats:
                seqs = [seq for at, seq, _ in (*part.beats, *part.samples) if at == member]
                seq = 1 + max(seqs, default=0)
                granter = self._granter(part)
                granter.on_sent(member, seq, self.now["sent"])
                found.append(
                    (("beat", leader, member), self._pack(granter, (*part.beats, (member, seq, 0))), "")
                )
            for beat in under_way:
                _, seq, term = beat
                rest = tuple(each for each in part.beats if each != beat)
                if term:
                    granter = self._granter(part)
                    granter.on_answered(member, seq, term)
                    found.append((("beat read", leader, member, seq), self._pack(granter, rest), ""))
                else:
                    found.append((("beat received", leader, member, seq), None, "answer"))
                granter = self._granter(part)
                found.append((("beat lost", leader, member, seq), self._pack(granter, rest), ""))
            for at, seq, _ in part.samples:
                if at == member:
                    granter = self._granter(part)
                    granter.on_unreachable(member, seq)
                    found.append((("beat told", leader, member, seq), self._pack(granter, part.beats), ""))
        granter = self._granter(part)
        grant = granter.grant(self._members, self.now["age"])
        if grant is not None:
            grant = msgspec.structs.replace(grant, age_ms=min(grant.age_ms, grant.lasts_ms))
            found.append((("grant", leader), (granter.named, grant, self._pack(granter, part.beats)), "room"))
        if part.asked:
            after = self._on_part(number, "on_grant_unanswered", part.asked, part.number)
            found.append((("grant told", leader), after, ""))
        return found

    def _tick_part(self, number: int) -> int:
        part, oldest = self._parts[number], self._oldest
        return self._parts.number(
            part._replace(
                elected=max(oldest, part.elected - 1),
                samples=tuple((member, seq, max(oldest, at - 1)) for member, seq, at in part.samples),
                reached=tuple((member, max(oldest, at - 1)) for member, at in part.reached),
                heard=tuple((member, number, max(oldest, at - 1)) for member, number, at in part.heard),
                holdings=tuple((held, max(oldest, at - 1), lost) for held, at, lost in part.holdings),
            )
        )

    def _granter(self, part: _Part) -> LeaseGranter:
        granter = LeaseGranter(part.member, part.term, NOW + part.elected)
        granter.holdings = tuple(held for held, _, _ in part.holdings)
        granter._lasts_ms, granter._waits_ms = part.lasts, part.waits
        granter._samples = {member: (seq, NOW + at) for member, seq, at in part.samples}
        granter._reached_ms = {member: NOW + at for member, at in part.reached}
        granter._number, granter._asked = part.number, part.asked
        granter._heard = {member: (number, NOW + at) for member, number, at in part.heard}
        granter._since_ms = {held: NOW + at for held, at, _ in part.holdings}
        granter._lost = frozenset(held for held, _, lost in part.holdings if lost)
        return granter

    def _pack(self, granter: LeaseGranter, beats: tuple[tuple[int, int, int], ...]) -> int:
        oldest = self._oldest
        seqs = {
            member: sorted(
                {seq for at, seq, _ in beats if at == member}
                | {sample[0] for at, sample in granter._samples.items() if at == member}
            )
            for member in MEMBERS
        }
        ranks = {(member, seq): rank for member in MEMBERS for rank, seq in enumerate(seqs[member], 1)}

        reached = tuple((member, max(oldest, at - NOW)) for member, at in sorted(granter._reached_ms.items()))
        if len(reached) == 2:  # only the newer one makes a majority
            reached = (max(reached, key=lambda each: each[1]),)
        part = _Part(
            granter._node_id,
            granter.term,
            max(oldest, granter._elected_ms - NOW),
            granter._lasts_ms,
            granter._waits_ms,
            tuple(
                (member, ranks[member, seq], max(oldest, at - NOW))
                for member, (seq, at) in sorted(granter._samples.items())
            ),
            reached,
            granter._number,
            granter._asked,
            tuple(
                (member, number, max(oldest, at - NOW))
                for member, (number, at) in sorted(granter._heard.items())
            ),
            tuple(
                (held, max(oldest, granter._since_ms[held] - NOW), held in granter._lost)
                for held in granter.holdings
            ),
            tuple(sorted((member, ranks[member, seq], term) for member, seq, term in beats)),
        )
        return self._parts.number(part)


def _holder(process: _Process) -> LeaseHolder:
    holder = LeaseHolder()
    holder._term, holder._newest = process.term, process.newest
    holder._arrived_ms = {number: NOW + at for number, at in process.arrived}
    holder._index, holder._end_ms = process.leased, NOW + process.end
    return holder


def _order(message: _Message) -> tuple[Any, ...]:
    return message.term, message.number, message.member, message.grant is None


def _renumbered(message: _Message, ranked: tuple[int, ...]) -> _Message:
    grant = message.grant
    if grant is not None:
        grant = Grant(
            term=grant.term,
            number=ranked.index(grant.number),
            answered=ranked.index(grant.answered),
            age_ms=grant.age_ms,
            lasts_ms=grant.lasts_ms,
            index=grant.index,
        )
    return message._replace(number=ranked.index(message.number), grant=grant)
