"""Each invariant of the simulator can fail: what breaks it is told to an `Observer` by hand."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
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
from garlicfarm.testing.simulator import invariants
from garlicfarm.testing.simulator.invariants import Observer, Violation
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Request, Response, ValueType

GENESIS = Configuration(0, 0, tuple(ClusterServer(i) for i in (1, 2, 3)))
VOTED = MessageType.REQUEST_VOTE_RESPONSE


def _entry(index: int, term: int = 1, value: bytes = b"x") -> Entry:
    return Entry(index, term, ValueType.APPLICATION, value)


def _configuration(index: int, *ids: int, previous: int = 0, says: int = 0) -> Entry:
    configuration = Configuration(says or index, previous, tuple(ClusterServer(i) for i in ids))
    return Entry(index, 1, ValueType.CONFIGURATION, encode_configuration(configuration))


class _Member:
    """What the observer is told of one member; unlike a real one it says whatever it is told to."""

    def __init__(self, world: _World, member: int) -> None:
        self._world = world
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
            self._world.observer.durable(self._status.id, ready.persist)
        core: Any = self  # its status is all that the observer looks at
        self._world.observer.turn(self._status.id, core, ready)

    def write(self, *entries: Entry, durable: bool = True, **changes: Any) -> None:
        """It appends these."""
        self.turn(Ready(persist=Persist(1, entries=entries)), durable=durable, **changes)

    def crash(self) -> None:
        """What it held in memory is gone; it says nothing of it again."""
        self._world.observer.crashed(self._status.id)


class _World:
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


def _two_leaders(world: _World) -> None:
    world.one.turn(role=Role.LEADER)
    world.two.turn(role=Role.LEADER)


def _leader_deletes(world: _World) -> None:
    world.one.write(_entry(1), _entry(2), role=Role.LEADER)
    world.one.turn(Ready(persist=Persist(2, truncate_from=2)), last_index=1)


def _logs_differ_below_an_entry(world: _World) -> None:
    world.one.write(_entry(1, value=b"a"), _entry(2))
    world.two.write(_entry(1, value=b"b"), _entry(2))


def _new_leader_lacks_a_committed_entry(world: _World) -> None:
    world.commit(_entry(1))
    world.three.turn(Ready(persist=Persist(2, truncate_from=1)), last_index=0)
    world.three.turn(term=2, role=Role.LEADER)


def _leader_lacks_what_is_committed_later_in_an_earlier_term(world: _World) -> None:
    world.three.turn(term=2, role=Role.LEADER)
    world.two.write(_entry(1))
    world.one.write(_entry(1), role=Role.LEADER)
    world.one.turn(commit=1)


def _entry_is_left_out(world: _World) -> None:
    world.commit(_entry(1), _entry(2))
    world.one.turn(Ready(committed=(_entry(2),)))


def _entry_is_applied_twice(world: _World) -> None:
    world.commit(_entry(1))
    world.one.turn(Ready(committed=(_entry(1),)), applied=1)
    world.one.turn(Ready(committed=(_entry(1),)))


def _another_entry_is_applied(world: _World) -> None:
    world.commit(_entry(1))
    world.two.turn(Ready(committed=(_entry(1, value=b"y"),)), commit=1)


def _application_goes_back_to_a_snapshot(world: _World) -> None:
    world.commit(_entry(1))
    world.one.turn(Ready(committed=(_entry(1),)), applied=1)
    world.one.turn(Ready(restore=SnapshotMeta(1, 1, GENESIS)))


def _commit_is_on_one_disk(world: _World) -> None:
    world.two.write(_entry(1), durable=False)
    world.one.write(_entry(1), role=Role.LEADER)
    world.one.turn(commit=1)


def _commit_is_on_disks_of_an_old_majority(world: _World) -> None:
    world.commit(_configuration(1, 1, 2, 3, 4))
    world.one.write(_entry(2), configuration=_in_force(world))
    world.two.write(_entry(2))
    world.one.turn(commit=2)


def _in_force(world: _World) -> Configuration:
    return world.observer.history.configurations[-1]


def _two_votes_in_a_term(world: _World) -> None:
    for candidate in (2, 3):
        world.one.turn(Ready(responses=(OutgoingResponse(1, Response(VOTED, 1, candidate, 1, 0, True)),)))
        world.one.crash()


def _vote_for_another_and_itself(world: _World) -> None:
    world.one.turn(Ready(responses=(OutgoingResponse(1, Response(VOTED, 1, 2, 1, 0, True)),)))
    world.one.turn(
        Ready(requests=(OutgoingRequest(2, 1, Request(MessageType.REQUEST_VOTE_REQUEST, 1, 2, 1)),))
    )


def _term_is_forgotten(world: _World) -> None:
    world.one.turn(Ready(responses=(OutgoingResponse(1, Response(VOTED, 1, 2, 4, 0, False)),)), term=4)
    world.one.crash()
    world.one.turn(term=3)


def _falls(**changes: Any) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        world.commit(_entry(1), _entry(2))
        world.one.turn(term=2, vote=2, applied=2, role=Role.FOLLOWER)
        world.one.turn(**changes)

    return act


def _disk_falls(state: HardState) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        for hard_state in (HardState(3, 2, 4), state):
            world.observer.durable(1, Persist(1, hard_state))

    return act


def _returns_behind_its_disk(world: _World) -> None:
    world.observer.durable(1, Persist(1, HardState(3, 0, 0)))
    world.one.crash()
    world.one.turn(term=2)


def _status(**changes: Any) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        world.one.write(_entry(1))
        world.one.turn(**changes)

    return act


def _floor(first_index: int, snapshot_index: int) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        world.commit(_entry(1), _entry(2))
        world.one.write(_entry(3))
        world.observer.floor(1, first_index, snapshot_index)

    return act


def _match_is_not_on_the_disk(world: _World) -> None:
    world.two.write(_entry(1), durable=False)
    world.one.write(_entry(1), role=Role.LEADER, peers={2: PeerStatus(1, 2, "replicate", 0)})


def _match_is_another_log(world: _World) -> None:
    world.two.write(_entry(1, 0))
    world.one.write(_entry(1), role=Role.LEADER, peers={2: PeerStatus(1, 2, "replicate", 0)})


def _appends(*entries: Entry, commit: int = 0) -> Callable[[_World], None]:
    """The leader writes these, with this commit index."""

    def act(world: _World) -> None:
        world.commit(_configuration(1, 1, 2, 3))
        persist = Persist(1, HardState(1, 0, commit), entries=entries)
        world.one.turn(Ready(persist=persist), configuration=_in_force(world))

    return act


def _holds_an_old_configuration(world: _World) -> None:
    world.commit(_configuration(1, 1, 2, 3))
    world.two.turn(commit=1, configuration=Configuration(0, 0, GENESIS.servers[:2]))


def _is(role: Role) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        world.commit(_configuration(1, 1, 2))
        world.three.turn(term=2, commit=1, role=role, configuration=_in_force(world))

    return act


def _receives(snapshot: SnapshotMeta) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        world.commit(_entry(1))
        world.three.turn(Ready(persist=Persist(2, snapshot=snapshot)), durable=False)

    return act


def _state(index: int, state: bytes) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        world.commit(_entry(1))
        world.observer.applied(1, index, state)

    return act


def _told(index: int, term: int, value: bytes) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        world.commit(_entry(1))
        world.observer.acknowledged(index, term, value)

    return act


def _refused_value_is_there(world: _World) -> None:
    world.observer.refused.offered(1, (b"x",))
    world.observer.refused.refuse(1)
    world.commit(_entry(1))
    world.observer.ended()


def _value_is_there_twice(world: _World) -> None:
    world.observer.refused.offered(1, (b"x",))
    world.commit(_entry(1), _entry(2))
    world.observer.ended()


def _reads(index: int, seen: int) -> Callable[[_World], None]:
    def act(world: _World) -> None:
        world.commit(_entry(1), _entry(2, value=b"y"))
        world.observer.acknowledged(2, 1, b"y")
        world.observer.reads.begin(7)
        world.observer.reads.done(7, index, seen)

    return act


def _read_sees_less_than_an_earlier_one(world: _World) -> None:
    for token, seen in ((1, 2), (2, 1)):
        world.observer.reads.begin(token)
        world.observer.reads.done(token, 0, seen)


def _committed_entry_changes(world: _World) -> None:
    world.commit(_entry(1))
    world.three.turn(Ready(persist=Persist(2, truncate_from=1, entries=(_entry(1, 2),))), commit=1, term=2)


def _commits_what_it_lacks(world: _World) -> None:
    world.commit(_entry(1))
    world.two.turn(commit=2, last_index=2)


NAMES = {
    "acknowledged": "acknowledged is committed",
    "configurations": "configurations",
    "durable_quorum": "committed is durable",
    "election_safety": "election safety",
    "history": "committed entries never change",
    "kept_word": "a member keeps its word",
    "leader_append_only": "leader append-only",
    "leader_completeness": "leader completeness",
    "log_matching": "log matching",
    "match_indexes": "match indexes are durable",
    "monotonic": "nothing goes back",
    "ordered_indexes": "indexes are in order",
    "reads": "reads are linearizable",
    "refused": "what is refused is not appended",
    "removed_members": "who is no member does not lead",
    "replayed_state": "state is replayed state",
    "snapshots": "snapshots are of committed entries",
    "state_machine_safety": "state machine safety",
}
OTHER = Configuration(0, 0, GENESIS.servers[:2])
BROKEN: list[tuple[str, Callable[[_World], None]]] = [
    ("election_safety", _two_leaders),
    ("leader_append_only", _leader_deletes),
    ("log_matching", _logs_differ_below_an_entry),
    ("leader_completeness", _new_leader_lacks_a_committed_entry),
    ("leader_completeness", _leader_lacks_what_is_committed_later_in_an_earlier_term),
    ("state_machine_safety", _entry_is_left_out),
    ("state_machine_safety", _entry_is_applied_twice),
    ("state_machine_safety", _another_entry_is_applied),
    ("state_machine_safety", _application_goes_back_to_a_snapshot),
    ("durable_quorum", _commit_is_on_one_disk),
    ("durable_quorum", _commit_is_on_disks_of_an_old_majority),
    ("kept_word", _two_votes_in_a_term),
    ("kept_word", _vote_for_another_and_itself),
    ("kept_word", _term_is_forgotten),
    ("monotonic", _falls(term=1)),
    ("monotonic", _falls(commit=1, applied=1)),
    ("monotonic", _falls(applied=1)),
    ("monotonic", _falls(vote=3)),
    ("monotonic", _disk_falls(HardState(2, 2, 4))),
    ("monotonic", _disk_falls(HardState(3, 2, 3))),
    ("monotonic", _disk_falls(HardState(3, 1, 4))),
    ("monotonic", _returns_behind_its_disk),
    ("ordered_indexes", _status(applied=1)),
    ("ordered_indexes", _status(first_index=3)),
    ("ordered_indexes", _status(stable=2)),
    ("ordered_indexes", _floor(3, 1)),
    ("ordered_indexes", _floor(1, 3)),
    ("ordered_indexes", _floor(1, 4)),
    ("match_indexes", _match_is_not_on_the_disk),
    ("match_indexes", _match_is_another_log),
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
    ("removed_members", _is(Role.LEADER)),
    ("removed_members", _is(Role.CANDIDATE)),
    ("snapshots", _receives(SnapshotMeta(1, 2, GENESIS))),
    ("snapshots", _receives(SnapshotMeta(1, 1, OTHER))),
    ("replayed_state", _state(1, b"another")),
    ("replayed_state", _state(2, b"")),
    ("acknowledged", _told(2, 1, b"x")),
    ("acknowledged", _told(1, 2, b"x")),
    ("acknowledged", _told(1, 1, b"y")),
    ("refused", _refused_value_is_there),
    ("refused", _value_is_there_twice),
    ("reads", _reads(1, 2)),
    ("reads", _reads(2, 1)),
    ("reads", _read_sees_less_than_an_earlier_one),
    ("history", _committed_entry_changes),
    ("history", _commits_what_it_lacks),
]


@pytest.mark.parametrize(
    ("module", "act"), BROKEN, ids=[f"{module}-{number}" for number, (module, _) in enumerate(BROKEN)]
)
def test_invariant_that_is_broken_is_named(module: str, act: Callable[[_World], None]) -> None:
    with pytest.raises(Violation) as found:
        act(_World())
    assert found.value.name == NAMES[module]


def test_each_invariant_is_broken_once_at_least() -> None:
    modules = {module.name for module in pkgutil.iter_modules(invariants.__path__)}
    assert {module for module, _ in BROKEN} == modules == set(NAMES)


def test_run_that_breaks_nothing_passes() -> None:
    """What the members of the broken runs do otherwise is allowed."""
    world = _World()
    world.observer.refused.offered(1, (b"x",))
    change = _configuration(1, 1, 2, 3)
    world.commit(change, _entry(2))
    for member in (world.one, world.two):
        member.turn(Ready(committed=(change, _entry(2))), commit=2, applied=2, configuration=_in_force(world))
    application = LogApplication()
    application.configure(1, _in_force(world))
    application.apply(2, 1, b"x")
    world.observer.applied(1, 2, application.snapshot())
    world.observer.floor(1, 2, 2)
    world.observer.acknowledged(2, 1, b"x")
    world.observer.reads.begin(1)
    world.observer.reads.done(1, 2, 2)
    world.one.turn(peers={2: PeerStatus(2, 3, "replicate", 0)})
    world.observer.ended()


@pytest.mark.parametrize(
    "persist",
    [
        Persist(1, entries=(_entry(3),)),
        Persist(1, snapshot=SnapshotMeta(3, 1, GENESIS)),
    ],
)
def test_write_that_no_log_can_take_is_named(persist: Persist) -> None:
    world = _World()
    world.commit(_entry(1), _entry(2))
    world.observer.durable(1, Persist(1, truncate_from=2))
    with pytest.raises(Violation, match="storage: "):
        world.observer.durable(1, persist)
