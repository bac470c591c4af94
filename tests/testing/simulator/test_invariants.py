"""Each invariant of the simulator can fail: what breaks it is told to an `Observer` by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.log_application import LogApplication
from garlicfarm.raft import (
    Entry,
    HardState,
    OutgoingRequest,
    OutgoingResponse,
    PeerStatus,
    Persist,
    Ready,
    Role,
    SnapshotMeta,
    Status,
)
from garlicfarm.testing.simulator.invariants import Observer, Violation
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request, Response, ValueType

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "testing-kits.md"
GENESIS = Configuration(0, 0, tuple(ClusterServer(i) for i in (1, 2, 3)))
VOTED = MessageType.REQUEST_VOTE_RESPONSE


def _entry(index: int, term: int = 1, value: bytes = b"x") -> Entry:
    return Entry(index, term, ValueType.APPLICATION, value)


def _configuration(index: int, *ids: int, previous: int = 0, says: int = 0) -> Entry:
    configuration = Configuration(says or index, previous, tuple(ClusterServer(i) for i in ids))
    return Entry(index, 1, ValueType.CONFIGURATION, encode_configuration(configuration))


class _Member:
    """What the observer is told of one member; unlike a real one it says whatever it is told to."""

    def __init__(self, cluster: _ObservedCluster, member: int) -> None:
        self._cluster = cluster
        self._status = Status(member, Role.FOLLOWER, 1, 0, 0, 0, 0, 0, 1, 0, GENESIS, {})

    def status(self) -> Status:
        return self._status

    def turn(self, ready: Ready | None = None, *, durable: bool = True, **changes: Any) -> None:
        """It does ``ready``, and then is as the ``changes`` of its status say."""
        ready = ready or Ready()
        last = ready.persist.entries[-1].index if ready.persist and ready.persist.entries else 0
        status = {name: getattr(self._status, name) for name in Status.__struct_fields__}
        self._status = Status(**{**status, "last_index": max(last, self._status.last_index), **changes})
        if ready.persist is not None and durable:
            self._cluster.observer.on_durable(self._status.id, ready.persist)
        core: Any = self  # its status is all that the observer looks at
        self._cluster.observer.on_ready(self._status.id, core, ready)

    def write(self, *entries: Entry, durable: bool = True, **changes: Any) -> None:
        """It appends these."""
        self.turn(Ready(persist=Persist(1, entries=entries)), durable=durable, **changes)

    def crash(self) -> None:
        """What it held in memory is gone; it says nothing of it again."""
        self._cluster.observer.on_crashed(self._status.id)


class _ObservedCluster:
    """Three members with empty logs in term 1."""

    def __init__(self) -> None:
        self.observer = Observer((1, 2, 3))
        self.one, self.two, self.three = (_Member(self, member) for member in (1, 2, 3))
        for member in (self.one, self.two, self.three):
            member.turn()

    def commit(self, *entries: Entry) -> None:
        """All hold these, and the first one leads now and knows that they are committed."""
        for member in (self.one, self.two, self.three):
            member.write(*entries)
        self.one.turn(role=Role.LEADER, commit=entries[-1].index)


def _two_leaders(cluster: _ObservedCluster) -> None:
    cluster.one.turn(role=Role.LEADER)
    cluster.two.turn(role=Role.LEADER)


def _leader_deletes(cluster: _ObservedCluster) -> None:
    cluster.one.write(_entry(1), _entry(2), role=Role.LEADER)
    cluster.one.turn(Ready(persist=Persist(2, truncate_from=2)), last_index=1)


def _logs_differ_below_an_entry(cluster: _ObservedCluster) -> None:
    cluster.one.write(_entry(1, value=b"a"), _entry(2))
    cluster.two.write(_entry(1, value=b"b"), _entry(2))


def _new_leader_lacks_a_committed_entry(cluster: _ObservedCluster) -> None:
    cluster.commit(_entry(1))
    cluster.three.turn(Ready(persist=Persist(2, truncate_from=1)), last_index=0)
    cluster.three.turn(term=2, role=Role.LEADER)


def _leader_lacks_what_is_committed_later_in_an_earlier_term(cluster: _ObservedCluster) -> None:
    cluster.three.turn(term=2, role=Role.LEADER)
    cluster.two.write(_entry(1))
    cluster.one.write(_entry(1), role=Role.LEADER)
    cluster.one.turn(commit=1)


def _entry_is_left_out(cluster: _ObservedCluster) -> None:
    cluster.commit(_entry(1), _entry(2))
    cluster.one.turn(Ready(committed=(_entry(2),)))


def _entry_is_applied_twice(cluster: _ObservedCluster) -> None:
    cluster.commit(_entry(1))
    cluster.one.turn(Ready(committed=(_entry(1),)), applied=1)
    cluster.one.turn(Ready(committed=(_entry(1),)))


def _another_entry_is_applied(cluster: _ObservedCluster) -> None:
    cluster.commit(_entry(1))
    cluster.two.turn(Ready(committed=(_entry(1, value=b"y"),)), commit=1)


def _application_goes_back_to_a_snapshot(cluster: _ObservedCluster) -> None:
    cluster.commit(_entry(1))
    cluster.one.turn(Ready(committed=(_entry(1),)), applied=1)
    cluster.one.turn(Ready(restore=SnapshotMeta(1, 1, GENESIS)))


def _commit_is_on_one_disk(cluster: _ObservedCluster) -> None:
    cluster.two.write(_entry(1), durable=False)
    cluster.one.write(_entry(1), role=Role.LEADER)
    cluster.one.turn(commit=1)


def _commit_is_on_disks_of_an_old_majority(cluster: _ObservedCluster) -> None:
    cluster.commit(_configuration(1, 1, 2, 3, 4))
    cluster.one.write(_entry(2), configuration=_in_force(cluster))
    cluster.two.write(_entry(2))
    cluster.one.turn(commit=2)


def _in_force(cluster: _ObservedCluster) -> Configuration:
    return cluster.observer.history.configurations[-1]


def _two_votes_in_a_term(cluster: _ObservedCluster) -> None:
    for candidate in (2, 3):
        cluster.one.turn(Ready(responses=(OutgoingResponse(1, Response(VOTED, 1, candidate, 1, 0, True)),)))
        cluster.one.crash()


def _vote_for_another_and_itself(cluster: _ObservedCluster) -> None:
    cluster.one.turn(Ready(responses=(OutgoingResponse(1, Response(VOTED, 1, 2, 1, 0, True)),)))
    cluster.one.turn(
        Ready(requests=(OutgoingRequest(2, 1, Request(MessageType.REQUEST_VOTE_REQUEST, 1, 2, 1)),))
    )


def _term_is_forgotten(cluster: _ObservedCluster) -> None:
    cluster.one.turn(Ready(responses=(OutgoingResponse(1, Response(VOTED, 1, 2, 4, 0, False)),)), term=4)
    cluster.one.crash()
    cluster.one.turn(term=3)


def _falls(**changes: Any) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        cluster.commit(_entry(1), _entry(2))
        cluster.one.turn(term=2, vote=2, applied=2, role=Role.FOLLOWER)
        cluster.one.turn(**changes)

    return act


def _disk_falls(state: HardState) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        for hard_state in (HardState(3, 2, 4), state):
            cluster.observer.on_durable(1, Persist(1, hard_state))

    return act


def _returns_behind_its_disk(cluster: _ObservedCluster) -> None:
    cluster.observer.on_durable(1, Persist(1, HardState(3, 0, 0)))
    cluster.one.crash()
    cluster.one.turn(term=2)


def _status(**changes: Any) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        cluster.one.write(_entry(1))
        cluster.one.turn(**changes)

    return act


def _floor(first_index: int, snapshot_index: int) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        cluster.commit(_entry(1), _entry(2))
        cluster.one.write(_entry(3))
        cluster.observer.on_compacted(1, first_index, snapshot_index)

    return act


def _match_is_not_on_the_disk(cluster: _ObservedCluster) -> None:
    cluster.two.write(_entry(1), durable=False)
    cluster.one.write(_entry(1), role=Role.LEADER, peers={2: PeerStatus(1, 2, "replicate", 0)})


def _match_is_another_log(cluster: _ObservedCluster) -> None:
    cluster.two.write(_entry(1, 0))
    cluster.one.write(_entry(1), role=Role.LEADER, peers={2: PeerStatus(1, 2, "replicate", 0)})


def _appends(*entries: Entry, commit: int = 0) -> Callable[[_ObservedCluster], None]:
    """The leader writes these, with this commit index."""

    def act(cluster: _ObservedCluster) -> None:
        cluster.commit(_configuration(1, 1, 2, 3))
        persist = Persist(1, HardState(1, 0, commit), entries=entries)
        cluster.one.turn(Ready(persist=persist), configuration=_in_force(cluster))

    return act


def _holds_an_old_configuration(cluster: _ObservedCluster) -> None:
    cluster.commit(_configuration(1, 1, 2, 3))
    cluster.two.turn(commit=1, configuration=Configuration(0, 0, GENESIS.servers[:2]))


def _is(role: Role) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        cluster.commit(_configuration(1, 1, 2))
        cluster.three.turn(term=2, commit=1, role=role, configuration=_in_force(cluster))

    return act


def _receives(snapshot: SnapshotMeta) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        cluster.commit(_entry(1))
        cluster.three.turn(Ready(persist=Persist(2, snapshot=snapshot)), durable=False)

    return act


def _counts(index: int, count: int | None) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        change = _configuration(1, 1, 2, 3)
        cluster.commit(change, _entry(2))
        application = LogApplication()
        if index == 2:
            application.apply(2, 1, b"x")
        cluster.observer.on_applied(1, SnapshotMeta(index, 1, GENESIS, count), application.snapshot())

    return act


def _state(index: int, state: bytes) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        cluster.commit(_entry(1))
        cluster.observer.on_applied(1, SnapshotMeta(index, 1, GENESIS, index), state)

    return act


def _told(index: int, term: int, value: bytes) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        cluster.commit(_entry(1))
        cluster.observer.on_acknowledged(index, term, value)

    return act


def _refused_value_is_there(cluster: _ObservedCluster) -> None:
    cluster.observer.refused.on_offered(1, (b"x",))
    cluster.observer.refused.on_refused(1)
    cluster.commit(_entry(1))
    cluster.observer.on_end()


def _value_is_there_twice(cluster: _ObservedCluster) -> None:
    cluster.observer.refused.on_offered(1, (b"x",))
    cluster.commit(_entry(1), _entry(2))
    cluster.observer.on_end()


def _reads(index: int, seen: int) -> Callable[[_ObservedCluster], None]:
    def act(cluster: _ObservedCluster) -> None:
        cluster.commit(_entry(1), _entry(2, value=b"y"))
        cluster.observer.on_acknowledged(2, 1, b"y")
        cluster.observer.reads.on_begin(7)
        cluster.observer.reads.on_done(7, index, seen)

    return act


def _read_sees_less_than_an_earlier_one(cluster: _ObservedCluster) -> None:
    for token, seen in ((1, 2), (2, 1)):
        cluster.observer.reads.on_begin(token)
        cluster.observer.reads.on_done(token, 0, seen)


def _committed_entry_changes(cluster: _ObservedCluster) -> None:
    cluster.commit(_entry(1))
    cluster.three.turn(Ready(persist=Persist(2, truncate_from=1, entries=(_entry(1, 2),))), commit=1, term=2)


def _commits_what_it_lacks(cluster: _ObservedCluster) -> None:
    cluster.commit(_entry(1))
    cluster.two.turn(commit=2, last_index=2)


OTHER = Configuration(0, 0, GENESIS.servers[:2])
BROKEN: list[tuple[str, Callable[[_ObservedCluster], None]]] = [
    ("election safety", _two_leaders),
    ("leader append-only", _leader_deletes),
    ("log matching", _logs_differ_below_an_entry),
    ("leader completeness", _new_leader_lacks_a_committed_entry),
    ("leader completeness", _leader_lacks_what_is_committed_later_in_an_earlier_term),
    ("state machine safety", _entry_is_left_out),
    ("state machine safety", _entry_is_applied_twice),
    ("state machine safety", _another_entry_is_applied),
    ("state machine safety", _application_goes_back_to_a_snapshot),
    ("committed is durable", _commit_is_on_one_disk),
    ("committed is durable", _commit_is_on_disks_of_an_old_majority),
    ("a member keeps its vote and its term", _two_votes_in_a_term),
    ("a member keeps its vote and its term", _vote_for_another_and_itself),
    ("a member keeps its vote and its term", _term_is_forgotten),
    ("nothing goes back", _falls(term=1)),
    ("nothing goes back", _falls(commit=1, applied=1)),
    ("nothing goes back", _falls(applied=1)),
    ("nothing goes back", _falls(vote=3)),
    ("nothing goes back", _disk_falls(HardState(2, 2, 4))),
    ("nothing goes back", _disk_falls(HardState(3, 2, 3))),
    ("nothing goes back", _disk_falls(HardState(3, 1, 4))),
    ("nothing goes back", _returns_behind_its_disk),
    ("indexes are in order", _status(applied=1)),
    ("indexes are in order", _status(first_index=3)),
    ("indexes are in order", _status(stable=2)),
    ("indexes are in order", _floor(3, 1)),
    ("indexes are in order", _floor(1, 3)),
    ("indexes are in order", _floor(1, 4)),
    ("match indexes are durable", _match_is_not_on_the_disk),
    ("match indexes are durable", _match_is_another_log),
    ("configurations", _appends(_configuration(2, 1, 2, 3, 4, 5, previous=1), commit=1)),
    ("configurations", _appends(_configuration(2, previous=1), commit=1)),
    ("configurations", _appends(_configuration(2, 1, 2, 3, 4, previous=1, says=3), commit=1)),
    ("configurations", _appends(_configuration(2, 1, 2, 3, 4), commit=1)),
    ("configurations", _appends(_configuration(2, 1, 2, 3, 4, previous=1), commit=0)),
    (
        "configurations",
        _appends(_configuration(2, 1, 2, 3, 4, previous=1), _configuration(3, 1, 2, 3, previous=2), commit=1),
    ),
    ("configurations", _holds_an_old_configuration),
    ("only members lead", _is(Role.LEADER)),
    ("only members lead", _is(Role.CANDIDATE)),
    ("snapshots are of committed entries", _receives(SnapshotMeta(1, 2, GENESIS))),
    ("snapshots are of committed entries", _receives(SnapshotMeta(1, 1, OTHER))),
    ("members count the same Application entries", _counts(1, 1)),
    ("members count the same Application entries", _counts(2, 2)),
    ("members count the same Application entries", _counts(2, 0)),
    ("members count the same Application entries", _counts(2, None)),
    ("state is replayed state", _state(1, b"another")),
    ("state is replayed state", _state(2, b"")),
    ("acknowledged is committed", _told(2, 1, b"x")),
    ("acknowledged is committed", _told(1, 2, b"x")),
    ("acknowledged is committed", _told(1, 1, b"y")),
    ("refused proposals are not appended", _refused_value_is_there),
    ("refused proposals are not appended", _value_is_there_twice),
    ("reads are linearizable", _reads(1, 2)),
    ("reads are linearizable", _reads(2, 1)),
    ("reads are linearizable", _read_sees_less_than_an_earlier_one),
    ("committed entries never change", _committed_entry_changes),
    ("committed entries never change", _commits_what_it_lacks),
]


@pytest.mark.parametrize(("name", "act"), BROKEN)
def test_invariant_that_is_broken_is_named(name: str, act: Callable[[_ObservedCluster], None]) -> None:
    with pytest.raises(Violation) as found:
        act(_ObservedCluster())
    assert found.value.name == name


def test_each_invariant_is_broken_once_at_least() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| invariant | meaning |")[2].partition("\n\n")[0]
    assert {name for name, _ in BROKEN} == {*re.findall(r"^\| (\w.*?) \|", table, re.MULTILINE)}


def test_run_that_breaks_nothing_passes() -> None:
    """What the members of the broken runs do otherwise is allowed."""
    cluster = _ObservedCluster()
    cluster.observer.refused.on_offered(1, (b"x",))
    change = _configuration(1, 1, 2, 3)
    cluster.commit(change, _entry(2))
    for member in (cluster.one, cluster.two):
        member.turn(
            Ready(committed=(change, _entry(2))), commit=2, applied=2, configuration=_in_force(cluster)
        )
    application = LogApplication()
    application.configure(1, _in_force(cluster))
    application.apply(2, 1, b"x")
    cluster.observer.on_applied(1, SnapshotMeta(2, 1, _in_force(cluster), 1), application.snapshot())
    cluster.observer.on_compacted(1, 2, 2)
    cluster.observer.on_acknowledged(2, 1, b"x")
    cluster.observer.reads.on_begin(1)
    cluster.observer.reads.on_done(1, 2, 2)
    cluster.one.turn(peers={2: PeerStatus(2, 3, "replicate", 0)})
    cluster.observer.on_end()


@pytest.mark.parametrize(
    "persist",
    [
        Persist(1, entries=(_entry(3),)),
        Persist(1, snapshot=SnapshotMeta(3, 1, GENESIS)),
    ],
)
def test_write_that_no_log_can_take_is_named(persist: Persist) -> None:
    cluster = _ObservedCluster()
    cluster.commit(_entry(1), _entry(2))
    cluster.observer.on_durable(1, Persist(1, truncate_from=2))
    with pytest.raises(Violation, match="storage: "):
        cluster.observer.on_durable(1, persist)
