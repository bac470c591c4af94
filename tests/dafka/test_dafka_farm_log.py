"""A farm's topic as one log, and what folds it gets the same as the farm's own nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import FellBehind, RemoteProtocolError
from garlicfarm.feed.lines import encode_lines
from garlicfarm.raft import Entry
from garlicfarm.wire import ValueType
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.consumer import open_consumer
from garlicfarm_plugin_dafka.farm_log import FarmLog
from garlicfarm_plugin_dafka.store import open_store
from garlicfarm_plugin_spark.ranking import Fold
from tests.node.support.cluster import cluster
from tests.running import wait_until


def log(count: int) -> list[Entry]:
    """Every third one is a Configuration."""
    kinds = (ValueType.APPLICATION, ValueType.APPLICATION, ValueType.CONFIGURATION)
    return [Entry(index, 1, kinds[index % 3], b"%d" % index) for index in range(1, count + 1)]


def records(entries: Sequence[Entry]) -> list[bytes]:
    found, waiting = [], list[Entry]()
    for entry in entries:
        waiting.append(entry)
        if entry.value_type is ValueType.APPLICATION:
            found.append(encode_lines(waiting)[:-1])
            waiting = []
    return found


@given(st.data())
def test_entries_come_in_order_however_epochs_are_mixed(data: st.DataObject) -> None:
    entries = log(60)
    contents = records(entries)
    epochs = [contents[start : start + 7] for start in range(0, len(contents), 7)]
    after = data.draw(st.integers(0, 10))
    farm_log, found = FarmLog(after), list[Entry]()
    while any(epochs):
        epoch = data.draw(st.sampled_from([epoch for epoch in epochs if epoch]))
        found += farm_log.add(epoch[0])
        if data.draw(st.booleans()):
            assert farm_log.add(epoch[0]) == []  # another node has answered, too
        del epoch[0]
    last = max(entry.index for entry in entries if entry.value_type is ValueType.APPLICATION)
    assert found == entries[after:last]
    assert farm_log.index == last
    assert not farm_log.has_early


def test_entries_that_do_not_come_are_told_once_too_much_waits() -> None:
    contents = records(log(60))
    farm_log = FarmLog(limit_bytes=5 * max(map(len, contents)))
    assert farm_log.add(contents[0])[-1].index == farm_log.index
    for content in contents[2:7]:
        assert farm_log.add(content) == []
        assert farm_log.has_early
    with pytest.raises(FellBehind, match=f"the entries after {farm_log.index} do not come"):
        list(map(farm_log.add, contents[7:]))


@pytest.mark.parametrize(
    "content", [b"", b"21.5", encode_lines([log(3)[0], log(3)[2]]), encode_lines([log(3)[1], log(3)[0]])]
)
def test_record_that_is_none_of_a_farm_is_refused(content: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FarmLog().add(content)


async def test_fold_of_what_a_store_has_is_the_ranking_of_the_node_byte_for_byte(
    tower, tmp_path: Path
) -> None:
    config = MeshConfig(towers=(str(tower.endpoint),))
    async with cluster(tmp_path, start=False, application="publisher", epoch_length=6) as nodes:
        with (nodes.directories[1] / "garlicfarm.toml").open("a") as file:
            towers = json.dumps([str(tower.endpoint)])
            file.write(f'\n[[farm.feed]]\nplugin = "dafka"\ntowers = {towers}\n')
        async with open_store(config, tmp_path / "store") as store:
            await nodes.start()
            await nodes.leader()
            view = nodes.node().farms["farm"]
            start, state = view.state()
            for number in range(20):
                await view.administer("interval", {"ms": 1000 + number}, "alice")
            index, ranking = view.commit_index, msgspec.json.encode(view.ranking()).decode()
            assert index == json.loads(ranking)["index"]
            count = view.status()["application_entries"]
            await wait_until(lambda: sum(each.next for each in store.partitions()) >= count)
            await nodes.stop(1)
            farm_log, fold = FarmLog(), Fold("farm", start, state)
            async with open_consumer(config, ["farm"]) as consumer:
                while farm_log.index < index:
                    record = await anext(consumer)
                    entries = farm_log.add(record.content)
                    rows = [(e.index, e.term, e.value_type, e.value) for e in entries]
                    fold.apply(row for row in rows if row[0] <= index)
    assert fold.row()["ranking"] == ranking
