"""A tour of the profile ``dafka`` of compose.yaml, each step asserted: up, kill the leader in mid-stream,
kill the store, stop the farm, a late consumer, down.

``make tour-dafka``. Where no engine can be had: see ``tour.py``.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event, Thread
from typing import Any

from tests.compose.tour import (
    FASTER,
    PROJECT,
    compose,
    docker,
    garlicfarm,
    health,
    main,
    post,
    say,
    settled,
    until,
)

NODES = ("dafka1", "dafka2", "dafka3")
SERVICES = {*NODES, "tower", "store", "consumer"}
PORTS = [("tower", 5556), ("tower", 5557), ("store", 5600), *((node, 5600) for node in NODES)]
# What a port of ZeroMQ says of its security, once it knows the version of its peer (RFC 23).
MECHANISM = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as stream:
    stream.sendall(bytes([255, *8 * [0], 127, 3]))
    said = b""
    while len(said) < 64:
        said += stream.recv(64) or sys.exit("it says nothing")
print(said[12:32].rstrip(bytes(1)).decode())
"""
SAVED = """
import sqlite3
print(sqlite3.connect("file:records/records.sqlite?mode=ro", uri=True).execute(
    "SELECT sum(next) FROM partition WHERE tail = 0").fetchone()[0] or 0)
"""
NODE_OPTIONS = (
    *("--tower", "tcp://tower:5556?peer=tower", "--listen", "tcp://0.0.0.0:5600"),
    *("--key-file", "consumer.key", "--peers-file", "peers.toml"),
)
POST_LINES = ("log", "post", "--batch", "16", "-", "--timeout", "20")
ENOUGH = 100  # notes, to be in mid-stream


def check_walls() -> None:
    """No service has privileges or is reached from outside, and none of their ports speaks in the clear."""
    config = json.loads(compose("config", "--format", "json"))
    for name in SERVICES:
        service = config["services"][name]
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"], name
        assert not service.keys() & {"ports", "cap_add", "devices", "privileged"}, name
        assert list(service["networks"]) == ["dafka"], name
    for host, port in PORTS:
        said = compose("exec", "-T", "consumer", "python", "-c", MECHANISM, host, str(port)).strip()
        assert said == "CURVE", f"{host}:{port} speaks {said}"


def shown() -> list[tuple[int, str]]:
    """What the consumer has printed so far: the index of each entry, and what it says."""
    lines = docker("logs", f"{PROJECT}-consumer-1").splitlines()
    return [(int(index), text) for index, _, text in (line.partition(" ") for line in lines)]


def entries(node: str) -> list[dict[str, Any]]:
    """The committed entries, as ``node`` has them."""
    rows = [json.loads(line) for line in garlicfarm(node, "log", "tail").splitlines()]
    return [row for row in rows if row["type"] == "application"]


def check_shown(node: str) -> list[dict[str, Any]]:
    """The consumer shows each entry of the log once, and in order; returns the entries."""
    rows = entries(node)
    until("the newest entry at the consumer", lambda: shown()[-1][0] >= rows[-1]["index"])
    seen = shown()[: len(rows)]
    assert [index for index, _ in seen] == [row["index"] for row in rows]
    for row, (index, text) in zip(rows, seen, strict=True):
        note = json.loads(row["value"]).get("config", {}).get("note")
        assert note is None or text.endswith(f" notes {note!r}"), f"at index {index}, {text!r} for {row}"
    return rows


@contextmanager
def noting(node: str) -> Iterator[dict[int, str]]:
    """Post note after note through ``node`` for as long as the block lasts; afterwards those that are known
    to be committed, by their indexes."""
    ended, committed = Event(), dict[int, str]()

    def work() -> None:
        for first in count(0, ENOUGH):
            notes = [f"number {first + at}" for at in range(ENOUGH)]
            text = "\n".join(map(note_of, notes))
            # It ends with an error where the leader dies; the next one finds another.
            said = compose("exec", "-T", node, "garlicfarm", *POST_LINES, check=False, text=text)
            for line, index in re.findall(r"line (\d+): index (\d+)", said):
                committed[int(index)] = notes[int(line) - 1]
            if ended.is_set():
                return

    worker = Thread(target=work)
    worker.start()
    try:
        yield committed
    finally:
        ended.set()
        worker.join()


def note_of(text: str) -> str:
    note = {"cluster": "farm", "date": time.time_ns() // 1_000_000, "id": 0}
    return json.dumps({**note, "config": {"by": "local", "note": text}})


def notes() -> int:
    return sum(" notes 'number " in f" {text}" for _, text in shown())


def saved() -> int:
    """How many records the store holds, from the first one on."""
    return int(compose("exec", "-T", "store", "python", "-c", SAVED, check=False) or 0)


def read_late(number: int) -> list[dict[str, Any]]:
    """The records that a new consumer gets, in the order in which it gets them."""
    consumer = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "garlicfarm", "consumer")
    consume = ("dafka", "consume", "farm", *NODE_OPTIONS, "--count", str(number), "--timeout", "100")
    return [json.loads(line) for line in compose(*consumer, *consume).splitlines()]


def tour() -> None:
    compose("up", "--detach", "--wait", "consumer", timeout_s=300)
    running = set(compose("ps", "--services").split())
    assert running == SERVICES, running
    say("up: a tower, a store, a farm of three and a consumer run, and no others")
    check_walls()
    say("walls: every port of Dafka speaks CURVE and nothing else")

    first = until("a leader and a publisher", lambda: settled("dafka1"))
    until("a farm that can lose one more", lambda: health("dafka1") == 0)
    compose("exec", "-T", "dafka1", "python", "-c", FASTER)
    until("a status of each member", lambda: {1, 2, 3} <= statuses())
    say(f"consumer: it shows the statuses of all members; leader {first['leader']}")

    leader = until("a leader", lambda: settled("dafka1"))["leader"]
    other = next(node for node in NODES if node != f"dafka{leader}")
    with noting(other) as committed:
        until("notes at the consumer", lambda: notes() > ENOUGH)
        compose("kill", "--signal", "KILL", f"dafka{leader}")
        before = notes()
        second = until("a new leader and publisher", lambda: settled(other, without=leader))
        until("more notes at the consumer", lambda: notes() > before + ENOUGH)
    assert second["term"] > first["term"], (first["term"], second["term"])
    rows = check_shown(other)
    told = dict(shown())
    assert committed
    assert all(told[index] == f"'local' notes {note!r}" for index, note in committed.items())
    say(f"killed dafka{leader} in mid-stream: leader {second['leader']}; all that was acknowledged is shown")
    say(f"consumer: it shows the log, {len(rows)} entries, each once and in order")
    compose("start", f"dafka{leader}")
    until("a farm that can lose one more", lambda: health(other) == 0)

    compose("kill", "--signal", "KILL", "store")
    post(other, "without the store")
    missed = check_shown(other)
    say("killed the store: the consumer misses nothing")
    compose("start", "store")
    until("all that at the store", lambda: saved() >= len(missed))
    say(f"started the store again: it has all {len(missed)} records")

    rows = check_shown(other)
    until("all that at the store", lambda: saved() >= len(rows))
    compose("stop", *NODES)
    records = read_late(len(rows))
    assert [record["sequence"] for record in records] == list(range(len(rows)))
    assert len({record["partition"] for record in records}) == 1, "one epoch is one partition"
    content = [json.loads(line) for record in records for line in record["value"].split("\n")]
    assert [row["index"] for row in content] == list(range(1, rows[-1]["index"] + 1))
    assert [row for row in content if row["type"] == "application"] == rows
    say(f"stopped the farm: a late consumer gets the whole log from the store, {len(rows)} records")


def statuses() -> set[int]:
    """The members of which the consumer has shown a status."""
    return {int(found[1]) for _, text in shown() if (found := re.match(r"member (\d+): ", text))}


if __name__ == "__main__":
    sys.exit(main(tour, "consumer"))
