"""Whether an outsider, with `log tail --all` and the protocol's description alone, can replay a farm."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli import run
from tests.publishing.naive_fold import NaiveFold
from tests.spark.feed_server import USER, FeedServer, feed_server
from tests.spark.script import hours_log

LOG = hours_log(0.5)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node", LOG) as running:
        yield running


def members(configuration: bytes) -> list[int]:
    """As docs/reference/protocol.md has it."""
    found, at = [], 16
    while at < len(configuration):
        found.append(int.from_bytes(configuration[at : at + 4]))
        at += 8 + int.from_bytes(configuration[at + 4 : at + 8])
    return found


def test_all_entries_that_are_printed_fold_into_the_state_of_the_node(server, capsysbinary):
    login = ["--node", server.url, "--user", USER, "--password-file", str(server.password_file)]
    assert run(["log", "tail", "--all", *login]) == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [line["index"] for line in lines] == [entry.index for entry in LOG]
    fold = NaiveFold("farm")
    for line in lines:
        value = b64decode(line["value_base64"]) if "value_base64" in line else line["value"].encode()
        if line["type"] == "configuration":
            fold.configure(line["index"], members(value))
        else:
            fold.apply(line["index"], value, None)
    assert fold.snapshot() == server.farm.state()[1]

    assert run(["log", "tail", *login]) == 0
    printed = capsysbinary.readouterr().out.splitlines()
    assert [json.loads(line) for line in printed] == [line for line in lines if line["type"] == "application"]
