"""A stranger's transport, built as a wheel and installed, is found, loaded and passes the suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROJECT = """
    [build-system]
    requires = ["hatchling"]
    build-backend = "hatchling.build"
    [project]
    name = "example-memory-transport"
    version = "0.3"
    dependencies = ["garlicfarm"]
    [project.entry-points."garlicfarm.transports"]
    memtest = "example_memory_transport:MemoryTransport"
"""

TRANSPORT = '''
    """Streams inside one process: the smallest transport that keeps the contract."""

    import itertools
    import math

    import msgspec
    import trio
    import trio.testing

    from garlicfarm.errors import TransportError, UnreachableError
    from garlicfarm.transport import Endpoint, Peer, Transport


    class Config(msgspec.Struct, kw_only=True):
        max_waiting: int = 16


    class MemoryTransport(Transport):
        scheme = "memtest"
        Config = Config
        _listeners = {}
        _ports = itertools.count(1)

        async def open_stream(self, endpoint):
            await trio.lowlevel.checkpoint()
            try:
                ours, theirs = trio.testing.memory_stream_pair()
                self._listeners[endpoint.host, endpoint.port].send_nowait(theirs)
            except (KeyError, trio.BrokenResourceError, trio.WouldBlock) as exc:
                raise UnreachableError(f"{endpoint}: nobody listens") from exc
            return ours

        async def serve(self, url, handler, *, task_status):
            port = url.port or next(self._ports)
            send, receive = trio.open_memory_channel(self.config.max_waiting)
            if self._listeners.setdefault((url.host, port), send) is not send:
                raise TransportError(f"cannot listen on {url}", "is it in use?")
            try:
                async with receive, trio.open_nursery() as nursery:
                    task_status.started(Endpoint(self.scheme, url.host, port))
                    async for stream in receive:
                        nursery.start_soon(self._connection, stream, handler)
            finally:
                del self._listeners[url.host, port]

        async def _connection(self, stream, handler):
            async with stream:
                await handler(stream, Peer("this process", False, None))
'''

TEST = """
    import pytest

    from garlicfarm.plugins import make_transport
    from garlicfarm.testing.transport_suite import TransportSuite


    class TestMemoryTransport(TransportSuite):
        @pytest.fixture
        def transport(self, tmp_path):
            return make_transport("memtest", {"max_waiting": 100}, tmp_path)

        async def send_garbage(self, bound):
            pytest.skip("there is nothing below this transport")
"""

LISTING = """
    import json
    import sys

    from garlicfarm import plugins
    from garlicfarm.transport import Transport

    listed = plugins.list_plugins(plugins.TRANSPORTS)
    assert "example_memory_transport" not in sys.modules, "listing imported it"
    loaded = plugins.load_plugin(plugins.TRANSPORTS, "memtest", Transport)
    assert "garlicfarm_transport_ssl" not in sys.modules, "loading imported another one"
    rows = [[info.name, info.value, info.distribution, info.version] for info in listed]
    print(json.dumps([rows, loaded.__module__]))
"""


def run(*command: str | Path, cwd: Path, site: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site or ""), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the stranger's wheel installed in it. Nothing is fetched from anywhere."""
    project = tmp_path_factory.mktemp("project")
    (project / "pyproject.toml").write_text(textwrap.dedent(PROJECT))
    (project / "example_memory_transport").mkdir()
    (project / "example_memory_transport" / "__init__.py").write_text(textwrap.dedent(TRANSPORT))
    run("-m", "hatchling", "build", "-t", "wheel", cwd=project)
    (wheel,) = (project / "dist").glob("*.whl")
    target = tmp_path_factory.mktemp("site")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel, cwd=project)
    return target


@pytest.mark.slow
def test_third_party_wheel_installed_is_listed_and_loaded(site: Path, tmp_path: Path) -> None:
    rows, module = json.loads(run("-c", textwrap.dedent(LISTING), cwd=tmp_path, site=site))
    expected = ["memtest", "example_memory_transport:MemoryTransport", "example-memory-transport", "0.3"]
    assert expected in rows
    assert "ssl" in [name for name, *_ in rows]
    assert module == "example_memory_transport"


@pytest.mark.slow
def test_third_party_wheel_passes_the_transport_suite(site: Path, tmp_path: Path) -> None:
    (tmp_path / "test_memory_transport.py").write_text(textwrap.dedent(TEST))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ("-q", "-p", "no:cacheprovider", "-W", "error", "--basetemp=scratch")
    output = run("-m", "pytest", *options, cwd=tmp_path, site=site)
    assert " passed, 1 skipped" in output
    assert int(output.split(" passed")[0].split()[-1]) >= 10
