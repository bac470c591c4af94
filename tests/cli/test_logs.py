"""The program's own log: its two forms, escaping, and counted repetitions."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from garlicfarm import logs
from garlicfarm.logs import EventLogger, JsonFormatter, TextFormatter, configured


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
        "refused", why="a\nb event=x", user="", esc="\x1b[2J\x7f\u202e\u2028", ok=True, at="[::1]:5"
    )
    assert lines(output) == [
        'INFO  raft farm=farm node=1 why="a\\nb event=x" user="" esc="\\u001b[2J\\u007f\\u202e\\u2028" '
        "ok=true at=[::1]:5 event=refused"
    ]


def test_json_line_has_the_same_keys() -> None:
    record = logging.LogRecord("garlicfarm.raft", logging.WARNING, "", 0, "became-leader", (), None)
    record.garlicfarm_fields = {"term": 3, "why": "a\nb", "event": "became-leader"}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    body = json.loads(line)
    assert body.pop("time").endswith("Z")
    assert body == {
        "level": "warning",
        "component": "raft",
        "term": 3,
        "why": "a\nb",
        "event": "became-leader",
    }


def test_foreign_record_has_its_message_and_traceback_on_one_line() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("foreign.error", logging.ERROR, "", 0, "it %s", ("broke",), info)
    line = TextFormatter().format(record)
    assert "\n" not in line
    assert 'ERROR foreign.error message="it broke" exception="Traceback' in line


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


def test_many_causes_forget_the_longest_silent_and_tell_its_count(output, monkeypatch):
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


class Reader:
    """A pipe that is read when told to."""

    def __init__(self) -> None:
        self.end, self.write_end = os.pipe()
        self.stream = open(self.write_end, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`

    def fill(self) -> int:
        """Leave no room in the pipe; returns how many bytes that took."""
        size = fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, 4096)
        return os.write(self.write_end, b"-" * size)

    def rest(self) -> list[str]:
        """What there is until the pipe is closed, which this does."""
        self.stream.close()
        with open(self.end, encoding="utf-8") as file:
            return file.read().splitlines()


@pytest.fixture
def piped(logging_restored: None) -> Reader:
    return Reader()


def test_configured_sets_level_form_and_stream_and_has_written_all_at_the_end(piped: Reader) -> None:
    with configured("info", "json", piped.stream):
        EventLogger(logging.getLogger("garlicfarm.node")).info("started")
        EventLogger(logging.getLogger("garlicfarm.node")).debug("hidden")
        logging.getLogger("library").info("hidden")
        logging.getLogger("library").warning("shown")
    assert not logging.getLogger().handlers
    bodies = [json.loads(line) for line in piped.rest()]
    assert [(body["component"], body.get("event"), body.get("message")) for body in bodies] == [
        ("node", "started", None),
        ("library", None, "shown"),
    ]


async def test_pipe_that_nobody_reads_holds_up_nobody_and_what_was_dropped_is_counted_there(
    piped: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING", 10_000)
    filling = piped.fill()
    logger = logging.getLogger("garlicfarm.node")

    def log(number: int) -> None:
        logger.info("e", extra={"garlicfarm_fields": {"number": number}})

    async def read(size: int) -> bytes:
        return await trio.to_thread.run_sync(os.read, piped.end, size)

    with configured("info", "text", piped.stream):
        with trio.fail_after(240):
            for number in range(1000):
                log(number)
                await trio.lowlevel.checkpoint()
            assert await read(filling) == b"-" * filling
            told = b""
            while accounted(told) < 1000:  # also of what was dropped last, though nothing is logged after it
                told += await read(4096)
        log(1000)
    assert b"lines-dropped" in told
    assert accounted(told + "".join(f"{line}\n" for line in piped.rest()).encode()) == 1001


def accounted(told: bytes) -> int:
    """How many lines ``told`` has, in order, or says that they were dropped there."""
    count = 0
    for line in told.decode().splitlines(keepends=True):
        word, value = re.findall(r"(number|lines)=(\d+)", line)[-1] if line.endswith("\n") else ("", 0)
        if word == "number":
            assert int(value) == count
        count += {"number": 1, "lines": int(value)}.get(word, 0)
    return count


def test_end_waits_once_and_for_a_limited_time_for_a_pipe_that_nobody_reads(piped, monkeypatch):
    waits_s: list[float | None] = []
    writers: list[threading.Thread] = []

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        waits_s.append(timeout)  # the writer would wait as long as nobody reads
        writers.append(thread)

    filling = piped.fill()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", join)
        with configured("info", "text", piped.stream):
            logging.getLogger("library").warning("lost")
        logging.shutdown()  # as at the end of the interpreter
    assert waits_s == [logs.FLUSH_S]
    (writer,) = writers
    assert os.read(piped.end, filling) == b"-" * filling  # lets the writer go
    writer.join()  # else it would write into the next file that gets this descriptor
    (line,) = piped.rest()
    assert "lost" in line


def test_message_that_does_not_fit_is_told_and_holds_up_nobody(piped: Reader) -> None:
    with configured("info", "text", piped.stream):
        logging.getLogger("library").warning("%d", "no number")
    (line,) = piped.rest()
    assert "event=message-does-not-fit logger=library" in line


def test_pipe_set_not_to_block_by_whoever_shares_it_loses_no_line(piped: Reader) -> None:
    os.set_blocking(piped.write_end, False)
    fcntl.fcntl(piped.end, fcntl.F_SETPIPE_SZ, 4096)
    with ThreadPoolExecutor(1) as pool, open(piped.end, encoding="utf-8") as file:
        lines = pool.submit(file.readlines)
        with configured("info", "text", piped.stream):
            for number in range(1000):
                logging.getLogger("library").warning(f"{'x' * 20} {number}")
        piped.stream.close()
        assert len(lines.result()) == 1000


def test_reader_that_has_left_costs_the_lines_and_nothing_else(piped: Reader) -> None:
    os.close(piped.end)
    with configured("info", "text", piped.stream):
        logging.getLogger("library").warning("lost")
    piped.stream.close()


def test_levels_are_restored_where_the_log_ends(logging_restored: None, tmp_path: Path) -> None:
    root, ours = logging.getLogger(), logging.getLogger("garlicfarm")
    root.setLevel(logging.ERROR)
    with (tmp_path / "log").open("w") as stream, logs.configured("debug", "text", stream):
        assert ours.level == logging.DEBUG
    assert (root.level, ours.level) == (logging.ERROR, logging.NOTSET)
