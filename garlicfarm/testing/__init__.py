"""Test kits for authors of plugins and applications, and for the consensus core itself.

Only the suites need pytest (and pytest-trio with ``trio_mode = true``).

* A **plugin** of yours: subclass `TransportSuite`, `RouterSuite`, `PublisherSuite` or `FeedSuite`, and
  override its fixture ``transport``, ``router``, ``publisher`` or ``feed``.
* An **application** of yours: `cluster` runs real nodes in memory, to kill and to partition. Six lines make
  the fixture; with pytest-trio's ``autojump_clock``, named by the test, waiting takes no time::

    @pytest.fixture
    async def farm() -> AsyncIterator[Cluster]:
        async with cluster(3, application=MyApplication) as running:
            yield running

    async def test_nothing_is_lost(farm: Cluster, autojump_clock: MockClock) -> None: ...

  `MemoryNetwork` is its network, and a transport for other uses.
* A **program** of yours: `process_farm` runs real processes, with TLS and disks, in a directory of yours.
* The **core**: ``python -m garlicfarm.testing.simulator`` runs it with the faults of many seeds and checks
  the `simulator.invariants`; `memory_storage` has the stores for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garlicfarm.lazy_names import lazy_names

if TYPE_CHECKING:
    from garlicfarm.lab.processes import FAST, NodeProcess, ProcessFarm, process_farm
    from garlicfarm.setup.provision import FarmPlan
    from garlicfarm.testing.feed_suite import FeedSuite, MemorySource
    from garlicfarm.testing.memory_cluster import Cluster, cluster
    from garlicfarm.testing.memory_network import MemoryNetwork
    from garlicfarm.testing.publisher_suite import PublisherSuite
    from garlicfarm.testing.router_suite import RouterSuite
    from garlicfarm.testing.transport_suite import TransportSuite

__all__ = [
    "FAST",
    "Cluster",
    "FarmPlan",
    "FeedSuite",
    "MemoryNetwork",
    "MemorySource",
    "NodeProcess",
    "ProcessFarm",
    "PublisherSuite",
    "RouterSuite",
    "TransportSuite",
    "cluster",
    "process_farm",
]

__getattr__ = lazy_names(
    __name__,
    {
        "garlicfarm.lab.processes": ("FAST", "NodeProcess", "ProcessFarm", "process_farm"),
        "garlicfarm.setup.provision": ("FarmPlan",),
        "garlicfarm.testing.feed_suite": ("FeedSuite", "MemorySource"),
        "garlicfarm.testing.memory_cluster": ("Cluster", "cluster"),
        "garlicfarm.testing.memory_network": ("MemoryNetwork",),
        "garlicfarm.testing.publisher_suite": ("PublisherSuite",),
        "garlicfarm.testing.router_suite": ("RouterSuite",),
        "garlicfarm.testing.transport_suite": ("TransportSuite",),
    },
)
