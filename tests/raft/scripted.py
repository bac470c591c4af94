"""Scripts of a cluster, and the transcript of what happens: text in, text out.

A script is lines that begin with ``> ``, each followed by what it led to, and comments (``#``):

====================================  ===============================================================
``farm 1= 2=1,1 3=1,2 jraft k=v``     members and the terms of their logs; without extensions; knobs
``join 4``                            a server with an empty store
``wait 100 [1 2]``                    so many ms pass at all members, or at these
``deliver 1 [2 3]``                   what 1 sent (to these) arrives, and is answered
``settle [1 2]``                      the same among these, or all, until nobody has more to say
``lose 1 [2 3]``                      what 1 sent (to these) is lost
``post 1 x`` ``read 1``               an entry; a linearizable read, of a follower too
``add 1 4`` ``remove 1 4``            1 is asked to change the Configuration by server 4
``set 1 3 tcp://there:1``             … to change the endpoint of 3
``transfer 1 [3]``                    1 is asked to hand over
``leave 1 3``                         1, as its leader, tells 3 to leave
``claim 9 1 4294967300``              9 sends 1 an AppendEntries of that term
``snapshot 1`` ``crash 1``            1 replaces its log by a snapshot; 1 restarts
``slow 1`` ``hang 1`` ``mend 1``      1's disk writes nothing; 1 is told that it hangs; it writes again
``gone 3 1 2``                        3 is told that 1, which led term 2, is gone
``state``                             all members, a line each
====================================  ===============================================================

A transcript has a line per message when it arrives (indexes and terms as ``index/term``), and what it
changes at a member below it. An answer that has to wait arrives as soon as it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from garlicfarm.errors import ProposalDropped, RemoteProtocolError
from garlicfarm.raft import Change, Persist, Ready, Role, Status
from garlicfarm.raft.votes import TRANSFER_CAMPAIGN
from garlicfarm.testing.simulator.invariants import Observer
from garlicfarm.wire import decode_configuration, decode_snapshot_sync_request
from garlicfarm.wire.messages import ClusterServer, MessageType, Request, Response, ValueType
from tests.raft.playbook import ALL, READ, SNAPSHOT, Player


def play(script: str) -> str:
    """The script with the transcript that it leads to now."""
    cluster = _Cluster()
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines += cluster.command(line[2:].split())
        elif not line or line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


class _Narrated(Player):
    """A player that writes down what changes."""

    told: list[str]
    before: Status | None = None
    heard: set[tuple[str, int]]

    def turn(self) -> Ready:
        ready = super().turn()
        before, self.before = self.before, self.node.status()
        if before is not None:
            self._tell(before, self.before, ready)
        for what, known in (("outcome", self.outcomes), ("read", self.reads)):
            for token, value in known.items():
                if (what, token) not in self.heard:
                    self.heard.add((what, token))
                    self._say(f"{what} {token}: {_result(value)}")
        return ready

    def _say(self, text: str) -> None:
        self.told.append(f"  {self.id} {text}")

    def _tell(self, before: Status, status: Status, ready: Ready) -> None:
        if (status.role, status.term, status.leader) != (before.role, before.term, before.leader):
            if status.role is Role.LEADER:
                self._say(f"leads term {status.term}")
            elif status.role is Role.CANDIDATE:
                stands = status.vote == self.id and status.term > before.term
                self._say(f"{'campaigns in' if stands else 'asks for pre-votes in'} term {status.term}")
            elif status.leader:
                self._say(f"follows {status.leader} in term {status.term}")
            elif status.vote not in (0, before.vote if status.term == before.term else 0):
                self._say(f"votes for {status.vote} in term {status.term}")
            else:
                self._say(f"follows nobody in term {status.term}")
        if status.configuration != before.configuration:
            self._say(f"members {_members(status.configuration.servers)}")
        if ready.restore is not None:
            self._say(f"restores a snapshot of {ready.restore.index}/{ready.restore.term}")
        elif status.commit != before.commit:
            self._say(f"commits {status.commit}")


class _Cluster:
    def __init__(self) -> None:
        self.players: dict[int, _Narrated] = {}
        self.told: list[str] = []
        self.tokens = 0
        self.unanswered: list[tuple[int, int, int, int]] = []  # asker, its seq, who is asked, its token

    def command(self, words: Sequence[str]) -> list[str]:
        verb, *rest = words
        if verb == "farm":
            self._farm(rest)
        elif (act := getattr(self, f"do_{verb}", None)) is not None:
            act(*[int(word) for word in rest])
        else:
            self.tokens += 1
            try:
                self._ask(self.players[int(rest[0])], verb, rest[1:])
            except ProposalDropped as error:
                self.told.append(f"  refused: {error.reason}")
        self._deliver_answers()
        told, self.told[:] = list(self.told), []
        return told

    def _farm(self, words: Sequence[str]) -> None:
        options = dict(word.split("=") for word in words if "=" in word)
        logs = {int(k): [int(t) for t in v.split(",") if t] for k, v in options.items() if k.isdigit()}
        config = {k: int(v) for k, v in options.items() if not k.isdigit()}
        extensions = frozenset() if "jraft" in words else ALL
        observer = Observer(list(logs))
        for member, terms in logs.items():
            player = _Narrated(member, terms, members=list(logs), extensions=extensions, **config)
            player.told, player.heard = self.told, set()
            for chain in (observer.members[member].log, observer.members[member].disk):
                chain.write(Persist(0, entries=player.disk.contents))
            player.observer = observer
            player.random = 150 + 10 * member  # whom the script does not wake does not wake by itself
            player.before = player.node.status()
            self.players[member] = player

    def do_join(self, member: int) -> None:
        first = next(iter(self.players.values()))
        player = _Narrated(member, members=())
        player.told, player.heard = self.told, set()
        player.observer, player.before = first.observer, player.node.status()
        player.random = 150 + 10 * member
        self.players[member] = player

    def _ask(self, player: _Narrated, verb: str, rest: Sequence[str]) -> None:
        if verb == "post":
            player.propose(*[word.encode() for word in rest], token=self.tokens)
        elif verb == "read":
            player.read(self.tokens)
        elif verb == "transfer":
            player.transfer(*[int(word) for word in rest])
        else:
            at = rest[1] if verb == "set" else ""
            player.change(Change(verb), int(rest[0]), token=self.tokens, at=at)

    def do_wait(self, duration_ms: int, *members: int) -> None:
        for member in members or self.players:
            self.players[member].wait(duration_ms)

    def do_lose(self, source: int, *destinations: int) -> None:
        player = self.players[source]
        for peer in destinations or self.players:
            for _, seq, request in player.sent(peer):
                self.told.append(f"{_request(request)} is lost")
                player.node.report_unreachable(peer, seq)
        player.turn()

    def do_deliver(self, source: int, *destinations: int) -> None:
        player = self.players[source]
        arriving = [item for item in player.requests if not destinations or item[0] in destinations]
        player.requests = deque(item for item in player.requests if item not in arriving)
        for peer, seq, request in arriving:
            self.told.append(_request(request))
            self.players[peer].take(request)
            self.unanswered.append((source, seq, peer, self.players[peer].token))
            self._deliver_answers()

    def _deliver_answers(self) -> None:
        for waiting in list(self.unanswered):
            source, seq, peer, token = waiting
            response = self.players[peer].responses.get(token)
            if response is not None and waiting in self.unanswered:
                self.unanswered.remove(waiting)
                self.told.append(_response(response, peer, source))
                self.players[source].hear(seq, response)

    def do_settle(self, *members: int) -> None:
        among = members or tuple(self.players)
        for _ in range(50):
            busy = [m for m in among if any(peer in among for peer, _, _ in self.players[m].requests)]
            if not busy:
                return
            for member in busy:
                self.do_deliver(member, *among)
        raise AssertionError("they never come to an end")

    def do_leave(self, source: int, member: int) -> None:
        status = self.players[source].node.status()
        last = (0, status.last_index, status.commit)
        request = Request(MessageType.LEAVE_CLUSTER_REQUEST, source, member, status.term, *last)
        self.told.append(_request(request))
        self.told.append(_response(self.players[member].take(request), member, source))

    def do_claim(self, source: int, member: int, term: int) -> None:
        request = Request(MessageType.APPEND_ENTRIES_REQUEST, source, member, term)
        self.told.append(_request(request))
        try:
            response = self.players[member].take(request)
        except RemoteProtocolError as fault:
            self.told.append(f"  {member} closes the connection: {fault}")
        else:
            self.told.append(_response(response, member, source))

    def do_crash(self, member: int) -> None:
        self.unanswered = [waiting for waiting in self.unanswered if member not in waiting[::2]]
        self.players[member].crash()

    def do_snapshot(self, member: int) -> None:
        meta = self.players[member].take_snapshot()
        self.told.append(f"  {member} has a snapshot of {meta.index}/{meta.term} instead of its log")

    def do_slow(self, member: int) -> None:
        self.players[member].slow_disk = True

    def do_hang(self, member: int) -> None:
        self.players[member].hang(True)

    def do_mend(self, member: int) -> None:
        player = self.players[member]
        player.slow_disk = False
        player.hang(False)

    def do_gone(self, member: int, leader: int, term: int) -> None:
        self.players[member].miss(leader, term)

    def do_state(self) -> None:
        for player in self.players.values():
            status = player.node.status()
            peers = " ".join(f"{peer}:{p.state}@{p.match_index}" for peer, p in status.peers.items())
            terms = " ".join(map(str, player.terms))
            self.told.append(
                f"  {player.id} {status.role.value:<9} t={status.term} commit={status.commit} "
                f"from {status.first_index}: [{terms}] {peers}".rstrip()
            )


def _result(value: tuple[int, int] | int | str | None) -> str:
    if value is None:
        return "unknown"
    return "{}/{}".format(*value) if isinstance(value, tuple) else str(value)


def _members(servers: Sequence[ClusterServer]) -> str:
    return " ".join(str(server.id) for server in servers)


def _request(request: Request) -> str:
    name = request.type.name.removesuffix("REQUEST").title().replace("_", "")
    head = f"{request.source}→{request.destination} {name}"
    if request.type is READ:
        return head
    head += f" t={request.term}"
    last = f"{request.last_log_index}/{request.last_log_term}"
    if request.type is SNAPSHOT:
        piece = decode_snapshot_sync_request(request.entries[0].value)
        end = ", the last" if piece.done else ""
        return f"{head} of {last} from {piece.offset}: {len(piece.data)} bytes{end}"
    if request.type is not MessageType.APPEND_ENTRIES_REQUEST:
        return f"{head} last={last}{' ordered' if request.commit_index == TRANSFER_CAMPAIGN else ''}"
    entries = []
    for index, entry in enumerate(request.entries, request.last_log_index + 1):
        value = f'"{entry.value.decode()}"'
        if entry.value_type is ValueType.CONFIGURATION:
            value = "members " + _members(decode_configuration(entry.value).servers)
        entries.append(f"{index}/{entry.term} {value}")
    return f"{head} prev={last} commit={request.commit_index} [{', '.join(entries)}]"


def _response(response: Response, source: int, destination: int) -> str:
    answer = "yes" if response.accepted else "no"
    following = f" next={response.next_index}" if response.next_index else ""
    return f"{source}→{destination} {answer} t={response.term}{following}"
