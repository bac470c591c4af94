"""The largest and deepest entries that a log can hold: batches of them stay small, and the fold gets through.
Needs no Java."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.levels import HIGHEST
from garlicfarm.publishing.entries import Status, encode_status, parse_entry
from garlicfarm.publishing.strict_json import MAX_DEPTH, MAX_ENTRY_BYTES, MAX_VALUES
from garlicfarm.raft.types import Entry
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.batches import MAX_VALUE_BYTES
from garlicfarm_plugin_spark.node_reader import NodeReader
from garlicfarm_plugin_spark.options import DEFAULTS, read_options
from garlicfarm_plugin_spark.ranking import Fold
from tests.publishing.scripted_log import T0, configuration, status
from tests.spark.feed_server import feed_server
from tests.spark.test_spark_batches import batches

MEMBERS = 256
MAX_BYTES = read_options({"url": "https://a:1", "farm": "f", "user": "u", "passwordFile": "p"}).max_bytes


def worst_status(member: int, number: int) -> bytes:
    """Valid, and as large, as deep and of as many values as may be posted."""
    document: Any = json.loads(
        encode_status(status(member, T0 + 1000 * number, headroom=50, applied=number, sequence=number))
    )
    deep: Any = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    document["deep"] = deep
    document["wide"] = {f"key {place}": 1 for place in range(MAX_VALUES - 300)}
    document["text"] = ""
    room = MAX_ENTRY_BYTES - len(json.dumps(document, separators=(",", ":")).encode())
    document["text"] = "x" * room
    return json.dumps(document, separators=(",", ":")).encode()


def test_worst_status_is_valid_and_a_byte_more_is_not() -> None:
    assert isinstance(parse_entry(worst_status(1, 1), "farm", HIGHEST), Status)
    assert len(worst_status(1, 1)) == MAX_ENTRY_BYTES


def test_batches_of_the_worst_entries_stay_within_the_default_bytes(tmp_path: Path) -> None:
    """Values of 1 MiB: a farm of another application may have them, and `publisher` skips them."""
    assert DEFAULTS["maxBytesPerTrigger"] == "64m"
    value = b"[" * MAX_VALUE_BYTES
    log = [Entry(index, 1, ValueType.APPLICATION, value) for index in range(1, 141)]
    with feed_server(tmp_path / "node") as server:
        server.farm.log.extend(log)
        with closing(NodeReader(server.access)) as feed:
            found = batches(feed.heads(), max_entries=20_000, max_bytes=MAX_BYTES, extent=feed.extent)
            ends = [end["farm"].index for end in found]
    assert ends == [64, 128, 140]
    fold = Fold("farm")
    fold.apply([(each.index, 1, 1, each.value) for each in log[:64]])
    assert fold.row()["skipped"] == {"too large": 64}


def test_fold_of_the_worst_statuses_of_the_largest_farm_goes_on_from_its_state() -> None:
    members = configuration(*range(1, MEMBERS + 1), index=1)
    rows = [(1, 1, int(ValueType.CONFIGURATION), encode_configuration(members))]
    rows += [(number, 1, 1, worst_status(number * 5, number)) for number in range(2, 50)]
    whole = Fold("farm")
    whole.apply(rows)
    assert len(whole.row()["order"]) == MEMBERS
    assert whole.row()["skipped"] == {}
    half = Fold("farm")
    half.apply(rows[:25])
    rest = Fold("farm", half.index, half.snapshot())
    rest.apply(rows)
    assert rest.row() == whole.row()


@pytest.mark.spark
def test_query_begins_with_the_largest_state_that_a_farm_can_have(tmp_path: Path) -> None:
    from garlicfarm_plugin_spark.source import LogReader

    members = configuration(*range(1, MEMBERS + 1), index=1)
    log = [Entry(1, 1, ValueType.CONFIGURATION, encode_configuration(members))]
    log += [
        Entry(number, 1, ValueType.APPLICATION, worst_status(number - 1, number))
        for number in range(2, MEMBERS + 2)
    ]
    with feed_server(tmp_path / "node", log) as server:
        server.compact(len(log))
        reader = LogReader(server.options(startingIndex="state"))
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        (part,) = reader.partitions(reader.initialOffset(), end)
        (batch,) = reader.read(part)
        (state,) = batch["value"].to_pylist()
    assert len(state) > MEMBERS * MAX_ENTRY_BYTES
    assert batch["log_index"].to_pylist() == [len(log)]
    assert len(json.dumps(end)) < len(state), "Spark keeps it in the checkpoint, compressed"
