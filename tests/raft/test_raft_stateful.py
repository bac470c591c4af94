"""The core under whatever Hypothesis thinks of: three members, any order of deliveries, losses, writes
and crashes, checked by the invariants after each step. It shrinks what it finds to a short script."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft import Role
from garlicfarm.wire.messages import MessageType, Request
from tests.raft.playbook import ALL, Player, Stage

MEMBERS = st.integers(1, 3)


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage([], [], [], batch_bytes=20, max_inflight_messages=2)
        self.tokens = 0
        self.asked: dict[int, tuple[int, int]] = {}  # reads: whom, and what was committed then
        self.answers: list[tuple[int, Player, int, int, int]] = []  # asker, answerer, its token, seq, start
        for player in self.stage.players.values():
            player.slow_disk = True

    @initialize(knowing=st.sets(MEMBERS))
    def extend(self, knowing: set[int]) -> None:
        """These members, and no others, speak the extensions among each other."""
        for member in knowing:
            player = self.stage[member]
            for peer in player.extensions:
                player.extensions[peer] = ALL if peer in knowing else frozenset()
                player.node.set_extensions(peer, player.extensions[peer])

    @rule(member=MEMBERS, to=MEMBERS)
    def hand_over(self, member: int, to: int) -> None:
        with suppress(ProposalDropped):
            self.stage[member].transfer(to)

    @rule(member=MEMBERS, to=MEMBERS)
    def tell_to_leave(self, member: int, to: int) -> None:
        """A leader tells another member to leave, which it does not remove in the end."""
        leader = self.stage[member].node
        if leader.role is Role.LEADER and to != member:
            self.stage[to].take(Request(MessageType.LEAVE_CLUSTER_REQUEST, member, to, leader.term))

    @invariant()
    def nobody_stands_who_is_leaving(self) -> None:
        for player in self.stage.players.values():
            assert not player.node.is_leaving or player.node.role is Role.FOLLOWER

    @rule(member=MEMBERS)
    def read(self, member: int) -> None:
        """Whatever was committed anywhere by now, the read sees."""
        self.tokens += 1
        committed = max(player.commit for player in self.stage.players.values())
        with suppress(ProposalDropped):
            self.stage[member].read(self.tokens)
            self.asked[self.tokens] = (member, committed)

    @invariant()
    def reads_see_what_was_committed(self) -> None:
        for token, (member, committed) in self.asked.items():
            index = self.stage[member].reads.get(token)
            assert index is None or index >= committed

    @rule(member=MEMBERS)
    def stand_for_election(self, member: int) -> None:
        player = self.stage[member]
        if player.node.role is not Role.LEADER and player.node.deadline_ms is not None:
            player.wait(player.node.deadline_ms - player.now)

    @rule(member=MEMBERS, other=MEMBERS, earlier=st.integers(0, 1))
    def take_for_gone(self, member: int, other: int, earlier: int) -> None:
        """Right or wrong: it may lead, have led before, or be no leader at all."""
        player = self.stage[member]
        player.miss(other, player.node.term - earlier)

    @rule(member=MEMBERS)
    def beat(self, member: int) -> None:
        if self.stage[member].node.role is Role.LEADER:
            self.stage[member].wait(50)

    @rule(member=MEMBERS, value=st.binary(max_size=3))
    def post(self, member: int, value: bytes) -> None:
        self.stage[member].post(value)

    @rule(member=MEMBERS, steps=st.integers(1, 3))
    def write(self, member: int, steps: int) -> None:
        for _ in range(min(steps, len(self.stage[member].disk.pending))):
            self.stage[member].sync()

    @precondition(lambda self: any(player.requests for player in self.stage.players.values()))
    @rule(data=st.data(), keep=st.booleans())
    def deliver(self, data: st.DataObject, keep: bool) -> None:
        """Any request at all, in any order; sometimes it comes again later."""
        waiting = [(p, item) for p in self.stage.players.values() for item in p.requests]
        sender, item = data.draw(st.sampled_from(waiting))
        if not keep:
            sender.requests.remove(item)
        peer, seq, request = item
        receiver = self.stage[peer]
        receiver.take(request)
        self.answers.append((sender.id, receiver, receiver.token, seq, id(sender.node)))

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), lost=st.booleans())
    def answer(self, data: st.DataObject, lost: bool) -> None:
        answer = data.draw(st.sampled_from(self.answers))
        asker, answerer, token, seq, process = answer
        sender = self.stage[asker]
        response = answerer.responses.get(token)
        if response is None and not lost:
            return  # it has to wait still
        if lost:
            sender.node.report_unreachable(answerer.id, seq)
            sender.turn()
        elif response is not None and process == id(sender.node):
            sender.hear(seq, response)
        self.answers.remove(answer)

    @rule(member=MEMBERS, other=MEMBERS, rounds=st.integers(1, 4))
    def talk(self, member: int, other: int, rounds: int) -> None:
        """A pair for whom, for once, all goes well."""
        sender, receiver = self.stage[member], self.stage[other]
        for player in (sender, receiver):
            player.sync_all()
        for _ in range(rounds):
            for _, seq, request in sender.sent(other):
                receiver.take(request)
                receiver.sync_all()
                response = receiver.responses.get(receiver.token)
                if response is not None:
                    sender.hear(seq, response)
                else:
                    self.answers.append((sender.id, receiver, receiver.token, seq, id(sender.node)))

    @rule(member=MEMBERS, other=MEMBERS)
    def campaign(self, member: int, other: int) -> None:
        if self.stage[member].node.role is not Role.LEADER:
            self.stand_for_election(member)
            self.talk(member, other, 1)

    @rule(member=MEMBERS, writes=st.integers(0, 3))
    def crash(self, member: int, writes: int) -> None:
        player = self.stage[member]
        self.answers = [a for a in self.answers if a[0] != member and a[1] is not player]
        player.crash(min(writes, len(player.disk.pending)))

    def teardown(self) -> None:
        """Whatever happened: all that runs agrees in the end."""
        players = self.stage.players.values()
        for player in players:
            player.slow_disk = False
            player.sync_all()
            player.requests.clear()
        newest = max(player.node.term for player in players)
        best = max(players, key=lambda player: (player.terms[-1:], len(player.terms)))
        others = [player.id for player in players if player is not best]
        if best.node.is_leaving:
            best.crash()  # so it may stand
        for player in players:
            player.ask_vote(newest + 1, (0, 0), source=player.id % 3 + 1)  # all of them in one term
        self.stage.elect(best.id, *others)
        self.stage.settle(best.id, *others)
        assert {tuple(player.terms) for player in players} == {tuple(best.terms)}
        assert {player.commit for player in players} == {len(best.terms)}


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
