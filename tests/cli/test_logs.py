"""The program's own log: its two forms, escaping, and counted repetitions."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from garlicfarm import logs
from garlicfarm.logs import EventLogger, JsonFormatter, TextFormatter, configure


class Clock:
    """Monotonic seconds, moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """What is logged under garlicfarm, without the time."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    logger = logging.getLogger("garlicfarm.raft")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def lines(stream: io.StringIO) -> list[str]:
    return [line.partition(" ")[2] for line in stream.getvalue().splitlines()]


def events(clock: Clock) -> EventLogger:
    return EventLogger(logging.getLogger("garlicfarm.raft"), clock=clock, farm="farm", node=1)


def test_text_line_has_time_level_room_fields_event(output: io.StringIO) -> None:
    events(Clock()).info("became-leader", term=3)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  raft farm=farm node=1 term=3 event=became-leader\n",
        output.getvalue(),
    )


def test_text_values_cannot_make_a_line(output: io.StringIO) -> None:
    events(Clock()).info(
        "refused", why="a\nb event=x", user="", esc="\x1b[2J\u202e\u2028", ok=True, at="[::1]:5"
    )
    assert lines(output) == [
        'INFO  raft farm=farm node=1 why="a\\nb event=x" user="" esc="\\u001b[2J\\u202e\\u2028" '
        "ok=true at=[::1]:5 event=refused"
    ]


def test_json_line_has_the_same_keys() -> None:
    record = logging.LogRecord("garlicfarm.raft", logging.WARNING, "", 0, "became-leader", (), None)
    record.garlicfarm_fields = {"term": 3, "why": "a\nb", "event": "became-leader"}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    body = json.loads(line)
    assert body.pop("time").endswith("Z")
    assert body == {"level": "warning", "room": "raft", "term": 3, "why": "a\nb", "event": "became-leader"}


def test_foreign_record_has_its_message_and_traceback_on_one_line() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("hypercorn.error", logging.ERROR, "", 0, "it %s", ("broke",), info)
    line = TextFormatter().format(record)
    assert "\n" not in line
    assert 'ERROR hypercorn.error message="it broke" exception="Traceback' in line


def test_repeated_event_of_one_peer_is_one_line_a_second_with_count(output: io.StringIO) -> None:
    clock = Clock()
    log = events(clock)
    for _ in range(10):
        log.warning("bad-password", peer="192.0.2.1")
        clock.now += 0.25
    assert lines(output) == [
        "WARNING raft farm=farm node=1 peer=192.0.2.1 event=bad-password",
        "WARNING raft farm=farm node=1 peer=192.0.2.1 suppressed=3 event=bad-password",
        "WARNING raft farm=farm node=1 peer=192.0.2.1 suppressed=3 event=bad-password",
    ]
    log.flush()
    assert "suppressed=1" in lines(output)[-1]
    log.flush()
    assert len(lines(output)) == 4


def test_other_event_or_peer_is_not_held_back(output: io.StringIO) -> None:
    log = events(Clock())
    log.info("refused", peer="a")
    log.info("refused", peer="b")
    log.info("closed", peer="a")
    log.info("refused")
    assert len(lines(output)) == 4


def test_many_causes_forget_the_longest_silent_and_tell_its_count(
    output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_CAUSES", 2)
    log = events(Clock())
    for peer in ("a", "b", "a", "a", "b", "c"):
        log.info("refused", peer=peer)
    told = [line.removeprefix("INFO  raft farm=farm node=1 ") for line in lines(output)]
    assert told == [
        "peer=a event=refused",
        "peer=b event=refused",
        "peer=c event=refused",
        "peer=a suppressed=2 event=refused",
    ]


def test_event_below_the_level_is_not_counted(output: io.StringIO) -> None:
    log = events(Clock())
    log.debug("refused", peer="a")
    log.info("refused", peer="a")
    assert lines(output) == ["INFO  raft farm=farm node=1 peer=a event=refused"]


@pytest.mark.parametrize("event", ["", "Became leader", "became_leader", "x\n", "-x"])
def test_event_that_is_no_fixed_word_is_refused(event: str) -> None:
    with pytest.raises(ValueError, match="fixed word"):
        events(Clock()).info(event)


def test_bind_adds_context_and_counts_by_itself(output: io.StringIO) -> None:
    log = events(Clock())
    log.info("refused")
    log.bind(peer_id=2).info("refused")
    assert lines(output)[1] == "INFO  raft farm=farm node=1 peer_id=2 event=refused"


def test_configure_sets_level_form_and_stream() -> None:
    root, ours = logging.getLogger(), logging.getLogger("garlicfarm")
    before = (root.handlers[:], root.level, ours.level)
    stream = io.StringIO()
    try:
        configure("info", "json", stream)
        EventLogger(logging.getLogger("garlicfarm.node")).info("started")
        EventLogger(logging.getLogger("garlicfarm.node")).debug("hidden")
        logging.getLogger("library").info("hidden")
        logging.getLogger("library").warning("shown")
    finally:
        root.handlers[:], root.level, ours.level = before
        root.setLevel(before[1])
        ours.setLevel(before[2])
    bodies = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(body["room"], body.get("event"), body.get("message")) for body in bodies] == [
        ("node", "started", None),
        ("library", None, "shown"),
    ]
