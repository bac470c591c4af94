"""What nodes of the C implementation once said to ours, said again: ours answer as they did then.

`test_dafka_beside_c` has recorded these conversations (``make test-dafka`` with ``DAFKA_TRANSCRIPTS``). The
cores get each batch at its time, and a tick every quarter of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from garlicfarm_plugin_dafka.codec import (
    Ack,
    Command,
    DirectHead,
    DirectRecord,
    DirectTail,
    GetHeads,
    Head,
    Record,
)
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore
from garlicfarm_plugin_dafka.farm_core import FarmProducerCore
from garlicfarm_plugin_dafka.network import TICK_S
from garlicfarm_plugin_dafka.producer_core import ProducerCore
from garlicfarm_plugin_dafka.store_core import StoreCore
from tests.dafka.transcripts import Event, read_transcript

DATA = Path(__file__).parents[1] / "data" / "dafka" / "conversations"
TRANSCRIPTS = sorted(DATA.glob("*.jsonl"))
TOPIC = "hello"


def transcripts(role: str) -> list[Path]:
    return [path for path in TRANSCRIPTS if path.name.startswith(role)]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"record-%d" % number for number in range(first, end)]


def replay(events: list[Event], tick: Callable[[float], None], on_event: Callable[[Event], None]) -> None:
    ticked = 0.0
    for event in events:
        while ticked <= event.t:
            tick(ticked)
            ticked += TICK_S
        on_event(event)
    tick(events[-1].t)


def streams(commands: Iterable[Command]) -> dict[tuple[str, ...], list[Command]]:
    """What was said to each node, and otherwise of each partition, in order; what was said again at once
    counts once, as it depends on when the clock ticks. Between these streams, a core decides no order."""
    found: dict[tuple[str, ...], list[Command]] = {}
    for command in commands:
        recipient = getattr(command, "recipient", "")
        key = ("to", recipient) if recipient else (type(command).__name__, getattr(command, "partition", ""))
        stream = found.setdefault(key, [])
        if stream[-1:] != [command]:
            stream.append(command)
    return found


def sent_in(events: list[Event], *kinds: type[Command]) -> list[Command]:
    """What was sent of these kinds, or at all."""
    return [each.sent for each in events if each.sent is not None and isinstance(each.sent, kinds or object)]


def test_every_role_has_a_transcript():
    assert {read_transcript(path)[0]["role"] for path in TRANSCRIPTS} == {
        "producer",
        "consumer",
        "store",
        "farm",
    }
    for path in TRANSCRIPTS:
        head, events = read_transcript(path)
        assert head["conversation"] == path.stem
        assert path.name.startswith(head["role"])
        assert events


@pytest.mark.parametrize("path", transcripts("producer"), ids=lambda path: path.stem)
def test_producer_answers_as_it_did(path: Path):
    _, events = read_transcript(path)
    records = [each for each in sent_in(events) if isinstance(each, Record)]
    core = ProducerCore(TOPIC, records[0].partition, acks=1, limit_records=10_000, limit_bytes=1 << 20)
    for number in range(records[0].sequence):  # what it had before it went on with the partition
        core.append(b"record-%d" % number, 0.0)
    answers: list[Command] = []
    told: list[Command] = []
    due: list[Command] = []

    def on_event(event: Event) -> None:
        if isinstance(event.sent, Record):
            assert core.append(event.sent.content, event.t) == event.sent
        for command in event.got:
            core.receive(command, "store")
        if isinstance(event.sent, Head | GetHeads):
            due.extend(core.tick(event.t + 0.001))  # the times are rounded
        if isinstance(event.sent, DirectRecord | DirectHead | DirectTail):
            told.append(event.sent)
            while len(answers) < len(told) and core.has_answers:  # by then records may have been added
                answers.extend(core.answers())

    for event in events:
        on_event(event)
    assert streams(answers) == streams(told)
    assert streams(due) == streams(sent_in(events, Head, GetHeads))
    acked = [
        command.sequence for event in events for command in event.got if isinstance(command, Ack | DirectHead)
    ]
    assert core.acked == (max(acked) + 1 if acked else 0)
    assert core.dropped.keys() <= {"FETCH of what is not there"}


def replay_reader(
    core: ConsumerCore | StoreCore, events: list[Event], after: Callable[[float], None]
) -> None:
    """``after`` each event and tick takes what the core has by then."""

    def on_event(event: Event) -> None:
        for command in event.got:
            core.receive(command, event.t)
        kind, routing = event.subscribed
        if kind is not None:
            core.on_subscription(kind, routing, True)
        after(event.t)

    def tick(now: float) -> None:
        core.tick(now)
        after(now)

    replay(events, tick, on_event)


@pytest.mark.parametrize("path", transcripts("consumer"), ids=lambda path: path.stem)
def test_consumer_reads_each_record_once_and_asks_as_it_did(path: Path):
    head, events = read_transcript(path)
    core = ConsumerCore(head["address"], [TOPIC])
    sent: list[Command] = []
    read: dict[str, list[bytes]] = {}

    def after(now: float) -> None:
        for record in core.take_records():
            contents = read.setdefault(record.partition, [])
            assert record.sequence == len(contents)
            contents.append(record.content)
        assert core.take_lost() == []
        sent.extend(core.take_commands(now))

    replay_reader(core, events, after)
    assert streams(sent) == streams(sent_in(events))
    assert all(contents == numbered(0, len(contents)) for contents in read.values())
    offered = {
        (command.partition, command.sequence)
        for event in events
        for command in event.got
        if isinstance(command, Record | DirectRecord)
    }
    assert {(each, number) for each, contents in read.items() for number in range(len(contents))} == offered


@pytest.mark.parametrize("path", transcripts("store"), ids=lambda path: path.stem)
def test_store_saves_each_record_and_acknowledges_as_it_did(path: Path):
    head, events = read_transcript(path)
    core = StoreCore(head["address"])
    saved: list[bytes] = []
    sent: list[Command] = []

    def save(now: float) -> None:
        unsaved = core.take_unsaved()
        for batch in unsaved:
            assert batch.first == len(saved)
            saved.extend(batch.contents)
        core.on_saved(unsaved)
        sent.extend(core.take_commands(now))
        sent.extend(core.answers())
        while (turn := core.fetches.turn()) is not None:
            contents = saved[turn.first : turn.end]
            place = turn.requester, turn.topic, turn.partition
            sent.extend(DirectRecord(*place, *each) for each in enumerate(contents, turn.first))
            core.fetches.advance(turn, turn.first, turn.first + len(contents))

    replay_reader(core, events, save)
    assert saved == numbered(0, len(saved))
    assert streams(sent) == streams(sent_in(events))


@pytest.mark.parametrize("path", transcripts("farm"), ids=lambda path: path.stem)
def test_member_of_a_farm_answers_as_it_did(path: Path):
    head, events = read_transcript(path)
    records = [each for each in sent_in(events, Record) if isinstance(each, Record)]
    contents = {
        (each.partition, each.sequence): each.content
        for each in sent_in(events)
        if isinstance(each, Record | DirectRecord)
    }
    core = FarmProducerCore(records[0].topic, bytes.fromhex(head["farm"]), head["epoch_length"])
    numbers: list[int] = []
    answers: list[Command] = []
    told: list[Command] = []
    due: list[Command] = []

    def send_page() -> None:
        turn = core.fetches.turn()
        assert turn is not None
        place, first, end = (turn.requester, turn.topic, turn.partition), turn.first, turn.first
        while end < turn.end and (content := contents.get((turn.partition, end))) is not None:
            answers.append(DirectRecord(*place, end, content))
            end += 1
        core.fetches.advance(turn, first, end)

    for event in events:
        if event.log is not None:
            first, count, is_leader = event.log
            core.lead(is_leader)
            core.on_log(first, count)
        for command in event.got:
            core.receive(command)
        answers.extend(core.answers())
        if isinstance(event.sent, Record):
            number = core.number(event.sent.partition, event.sent.sequence)
            assert number is not None
            assert core.record(number, event.sent.content) == event.sent
            numbers.append(number)
        if isinstance(event.sent, Head):
            due.extend(core.tick(event.t + 0.001))  # the times are rounded
        if isinstance(event.sent, DirectRecord | DirectHead | DirectTail):
            told.append(event.sent)
            while len(answers) < len(told) and core.fetches:  # by then there may be more entries
                send_page()
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    assert streams(answers) == streams(told)
    assert streams(due) == streams(sent_in(events, Head))
