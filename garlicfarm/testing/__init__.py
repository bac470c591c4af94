"""What you test with, if you write a plugin, an application, or the consensus core itself.

Import from the modules; each begins with how to use it. Only the suites need pytest (and pytest-trio
with ``trio_mode = true``).

* A **transport** of yours: subclass `transport_suite.TransportSuite`, override its fixture ``transport``.
* A **router** plugin of yours: subclass `router_suite.RouterSuite`, override its fixture ``router``.
  `garlicfarm_plugin_simulated.SimulatedRouter` is a router for tests of what uses one.
* An **application** of yours: `cluster.cluster` runs real nodes in memory, to kill and to part. Six lines
  make the fixture; what waits takes no time on pytest-trio's ``autojump_clock``, which the test names::

    @pytest.fixture
    async def farm() -> AsyncIterator[Cluster]:
        async with cluster(3, application=MyApplication) as running:
            yield running

    async def test_nothing_is_lost(farm: Cluster, autojump_clock: MockClock) -> None: ...

  With it: ``post``, ``leader``, ``kill``, ``restart``, ``partition``, ``heal``, ``applied``, ``application``.
  `memory_network.MemoryNetwork` is its network, and a transport for other uses.
  `garlicfarm.lab.processes.process_farm` runs real processes, with TLS and disks, in a directory of yours.
  `garlicfarm.lab.tun_network.network` gives them hosts of their own, whose wires are late or cut as you say.
* The **core**: ``python -m garlicfarm.testing.simulator`` runs it through seeds of misfortune, under the
  `simulator.invariants`; `memory_storage` has the stores that it can run on.
"""
