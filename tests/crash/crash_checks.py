"""What must hold after the crashes: the client's journal against the logs of all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from garlicfarm.errors import EntryRefused, StorageError
from garlicfarm.levels import HIGHEST
from garlicfarm.log_application import LogApplication
from garlicfarm.publishing.entries import Administrative, Note, Status, parse_entry
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft.types import Entry, HardState
from garlicfarm.storage import LogStore
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, ValueType

FARM = "farm"
StateMachine = LogApplication | PublisherFold


def state_machine(application: str) -> StateMachine:
    """An application of that name, of the farm `FARM`, before the first entry."""
    return PublisherFold(FARM) if application == "publisher" else LogApplication()


class Violation(Exception):
    """A promise of the farm's was broken; the message says which, and where."""


def leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group, and of the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


class Log(NamedTuple):
    """What a stopped node has on disk; entry ``i`` is ``entries[i - 1]``."""

    hard_state: HardState
    genesis: Configuration
    entries: list[Entry]


class Attempts(NamedTuple):
    """What the client was told: (label, index, time in s) of acknowledgements, how often each label had
    an unknown outcome, or was refused, and the terms of acknowledged indexes."""

    acknowledged: list[tuple[str, int, float]]
    unknown: Counter[str]
    refused: Counter[str]
    terms: dict[int, int]


def read_journal(path: Path) -> Attempts:
    """The client's journal, all of it (the client has ended)."""
    attempts = Attempts([], Counter(), Counter(), {})
    for line in path.read_text().splitlines():
        what, at, index, term, label = line.split(" ")
        if what == "ack":
            attempts.acknowledged.append((label, int(index), float(at)))
            attempts.terms[int(index)] = int(term)
        else:
            {"unknown": attempts.unknown, "refused": attempts.refused}[what][label] += 1
    return attempts


def read_log(directory: Path) -> Log:
    """The store of a stopped node, every checksum verified, and its hard state against its log."""
    try:
        with closing(LogStore.open(directory / "data" / "farms" / FARM, farm=FARM)) as store:
            last = store.last_index()
            entries = list(store.entries(1, last + 1, 1 << 40)) if last else []
            hard_state, configuration = store.initial_state()
            genesis = store.genesis.configuration
    except StorageError as error:
        raise Violation(f"the store in {directory} cannot be opened: {error}") from error
    assert genesis is not None
    terms = [entry.term for entry in entries]
    if terms != sorted(terms) or terms[-1:] > [hard_state.term]:
        raise Violation(f"{directory}: terms fall, or rise above the hard state's {hard_state.term}")
    if hard_state.vote not in {0, *(server.id for server in configuration.servers)}:
        raise Violation(
            f"{directory}: the vote in term {hard_state.term} is for {hard_state.vote}, no member"
        )
    return Log(hard_state, genesis, entries)


def fold(log: Log, application: StateMachine, up_to: int) -> Counter[str]:
    """Fold the entries up to an index; how often each label was applied (`LogApplication` skips none).

    Raises `Violation` for an entry with a sequence that was applied twice.
    """
    applied = Counter(label for _, label in fold_each(log, application, up_to) if label is not None)
    for label, times in applied.items():
        if times > 1:
            raise Violation(f"{label} was applied {times} times")
    return applied


def fold_each(log: Log, application: StateMachine, up_to: int) -> Iterator[tuple[int, str | None]]:
    """Fold the entries up to an index; after each, its index, and its label if it is one that was applied."""
    application.configure(0, log.genesis)
    for entry in log.entries[:up_to]:
        if entry.value_type is ValueType.CONFIGURATION:
            application.configure(entry.index, decode_configuration(entry.value))
            yield entry.index, None
            continue
        skipped = sum(application.skipped.values()) if isinstance(application, PublisherFold) else 0
        application.apply(entry.index, entry.term, entry.value)
        is_skipped = isinstance(application, PublisherFold) and sum(application.skipped.values()) > skipped
        yield entry.index, None if is_skipped else label_of(entry, application)


def label_of(entry: Entry, application: StateMachine) -> str:
    """``WRITER-NUMBER`` of an entry that a client posted, and for what a member posted itself a label that
    begins with "member ". Raises `Violation`: it is of neither."""
    if isinstance(application, LogApplication):
        return entry.value.rstrip(b".").decode()
    try:
        parsed = parse_entry(entry.value, FARM, HIGHEST)
    except EntryRefused:
        parsed = None
    match parsed:
        case Note(by=by, sequence=int(sequence)):
            return f"{by}-{sequence}"
        case Status(document=document):
            return f"member {document.id}-{document.sequence}"
        case Administrative(id=id_, admin=admin):
            return f"member {id_}'s {admin.action} at {entry.index}"
    raise Violation(f"entry {entry.index} is nobody's: {entry.value[:80]!r}")


def posted(entries: Iterable[Entry], application: str) -> dict[int, str]:
    """The labels, by index, of those that clients posted."""
    machine = state_machine(application)
    labels = {
        entry.index: label_of(entry, machine)
        for entry in entries
        if entry.value_type is ValueType.APPLICATION
    }
    return {index: label for index, label in labels.items() if not label.startswith("member ")}


def check_logs(
    logs: Mapping[int, Log], states: Mapping[int, bytes], application: StateMachine, index: int
) -> None:
    """All logs are one up to ``index``, which all nodes have applied, and as far as all know entries to
    be committed (a commit index on disk may be old); and folding it up to ``index``, which made
    ``application``, gives what each node served as its state there."""
    first, *others = logs
    for node, log in logs.items():
        if len(log.entries) < index:
            raise Violation(f"node {node} has applied entry {index}; its log ends at {len(log.entries)}")
    common = max(index, min(log.hard_state.commit for log in logs.values()))
    for other in others:
        for mine, theirs in zip(logs[first].entries[:common], logs[other].entries[:common], strict=True):
            if mine != theirs:
                raise Violation(
                    f"nodes {first} and {other} differ at index {mine.index}: "
                    f"terms {mine.term} and {theirs.term}, {mine.value[:40]!r} and {theirs.value[:40]!r}"
                )
    folded = application.snapshot()
    for node, state in states.items():
        if state != folded:
            raise Violation(f"node {node} served a state at index {index} that is not the fold of its log")


def check_attempts(attempts: Attempts, log: Log, application: StateMachine) -> int:
    """Every acknowledged entry is at its index, and none is in the log more often than attempts explain.
    Returns how many attempts with an unknown outcome are in the log."""
    labels = {
        entry.index: label_of(entry, application)
        for entry in log.entries
        if entry.value_type is ValueType.APPLICATION
    }
    missing = [(index, label) for label, index, _ in attempts.acknowledged if labels.get(index) != label]
    if missing:
        index, label = min(missing)
        raise Violation(
            f"{len(missing)} of {len(attempts.acknowledged)} acknowledged entries are missing; "
            f"the first is {label} at index {index}, where the log has {labels.get(index, 'nothing')}"
        )
    for index, term in attempts.terms.items():
        if log.entries[index - 1].term != term:
            raise Violation(f"{labels[index]} was acknowledged in term {term}; the log has another one there")
    newest: dict[str, int] = {}
    for label, index, _ in attempts.acknowledged:
        writer = label.rpartition("-")[0]
        if index <= newest.get(writer, 0):
            raise Violation(
                f"{label} is at index {index}; {writer} was told {newest[writer]} before it posted it"
            )
        newest[writer] = index
    acknowledged = Counter(label for label, _, _ in attempts.acknowledged)
    found = Counter(labels.values())
    for label, times in found.items():
        explained = acknowledged[label] + attempts.unknown[label]
        if times > explained and not label.startswith("member "):
            raise Violation(
                f"{label} is in the log {times} times; {acknowledged[label]} attempts were acknowledged, "
                f"{attempts.unknown[label]} have an unknown outcome, {attempts.refused[label]} were refused"
            )
    indexes = {index for _, index, _ in attempts.acknowledged}
    return sum(index not in indexes for index, label in labels.items() if not label.startswith("member "))
