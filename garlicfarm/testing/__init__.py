"""Test kits for authors of plugins and applications, and for the consensus core itself.

Import from the modules; each begins with its usage. Only the suites need pytest (and pytest-trio with
``trio_mode = true``).

* A **transport** of yours: subclass `transport_suite.TransportSuite`, override its fixture ``transport``.
* A **router** plugin of yours: subclass `router_suite.RouterSuite`, override its fixture ``router``.
  `garlicfarm_plugin_simulated.SimulatedRouter` is a router for tests of code that uses one.
* A **feed** plugin of yours: subclass `feed_suite.FeedSuite`, override its fixture ``feed``.
* An **application** of yours: `cluster.cluster` runs real nodes in memory, to kill and to partition. Six
  lines make the fixture; with pytest-trio's ``autojump_clock``, named by the test, waiting takes no time::

    @pytest.fixture
    async def farm() -> AsyncIterator[Cluster]:
        async with cluster(3, application=MyApplication) as running:
            yield running

    async def test_nothing_is_lost(farm: Cluster, autojump_clock: MockClock) -> None: ...

  With it: ``post``, ``leader``, ``kill``, ``restart``, ``partition``, ``heal``, ``applied``, ``application``.
  `memory_network.MemoryNetwork` is its network, and a transport for other uses.
  `garlicfarm.lab.processes.process_farm` runs real processes, with TLS and disks, in a directory of yours.
  `garlicfarm.lab.tun_network.network` gives them hosts of their own, whose links fail on command.
* The **core**: ``python -m garlicfarm.testing.simulator`` runs it with the faults of many seeds and checks
  the `simulator.invariants`; `memory_storage` has the stores for it.
"""
