"""The examples keep the contracts that they show, and the pages show them as they are."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import trio

from garlicfarm.router import Router
from garlicfarm.testing.router_suite import RouterSuite
from garlicfarm.testing.transport_suite import TransportSuite
from garlicfarm.transport import Endpoint, Transport

ROOT = Path(__file__).parents[2]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestMemoryTransport(TransportSuite):
    @pytest.fixture
    def transport(self, tmp_path: Path) -> Transport:
        module = example("memory_transport")
        made: Transport = module.MemoryTransport(module.MemoryConfig(), tmp_path)
        self.made = made
        return made

    async def send_garbage(self, bound: Endpoint) -> trio.abc.Stream:
        """There is nothing below this transport that could be broken; so garbage is a silent stream."""
        return await self.made.open_stream(bound)


class TestFileRouter(RouterSuite):
    @pytest.fixture
    def router(self, tmp_path: Path) -> Router:
        figures = {"uptime_s": 60, "limit": [1_000_000, 500_000], "used": [1_000, 2_000]}
        (tmp_path / "figures.json").write_text(json.dumps(figures))
        return self._router(tmp_path)

    @pytest.fixture
    def unreachable_router(self, tmp_path: Path) -> Router:
        return self._router(tmp_path / "nowhere")

    def _router(self, base_dir: Path) -> Router:
        module = example("file_router")
        made: Router = module.FileRouter(module.FileRouterConfig(path="figures.json"), base_dir)
        return made


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("replicated-log.md", "replicated_log"),
        ("transport-plugin.md", "memory_transport"),
        ("router-plugin.md", "file_router"),
    ],
)
def test_page_with_example_shows_the_file_as_it_is(page: str, name: str) -> None:
    text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert f"```python\n{source}```\n" in text
