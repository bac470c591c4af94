"""A farm over a private I2P network of real routers (make test-i2p), ranked by Spark where there is one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from tests.i2p.script import ScriptError, run_script

TIMEOUT_S = 660
NETWORKS = 3
NETWORK_FAILED = 75  # as in the script
HAS_SPARK = find_spec("pyspark") is not None

pytestmark = [
    pytest.mark.i2pd,
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(NETWORKS * TIMEOUT_S),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came about in one life of the farm, in order."""

    def run() -> list[dict[str, Any]]:
        rank = ["--rank"] if HAS_SPARK else []
        return run_script("farm_over_i2p", tmp_path_factory.mktemp("i2p"), *rank, timeout_s=TIMEOUT_S)

    for _ in range(NETWORKS - 1):
        try:
            return run()
        except ScriptError as error:
            if error.code != NETWORK_FAILED:
                raise
        print("two routers never got through to each other: another network")
    return run()


@pytest.mark.i2p
def test_farm_over_real_routers_lives_through_a_join_deaths_and_leader_changes(told):
    steps = [each for each in told if each["what"] != "ranking"]
    assert [each["what"] for each in steps] == [
        "routers",
        "election",
        "replication",
        "publisher",
        "join",
        "restart",
        "hand-over",
        "leader-change",
    ]
    last = steps[-1]
    assert last["leader"] != steps[-2]["leader"] != steps[1]["leader"]
    assert last["term"] > steps[-2]["term"] > steps[1]["term"]


@pytest.mark.spark
def test_spark_ranks_what_is_committed_over_i2p_as_the_nodes_do_also_after_leader_changes(told):
    """The script has compared them, word by word and with every node, before it told them."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")
    first, last = (each for each in told if each["what"] == "ranking")
    assert first["term"] < last["term"]
    assert first["index"] < last["index"]
    for ranking, members in ((first, {"1", "2", "3"}), (last, {"1", "2", "3", "4"})):
        assert ranking["scores"].keys() == members
        assert str(ranking["publisher"]) in members
        assert all(ranking["scores"].values())
