"""What the transports' pages show is what the program writes, and what the tests run."""

from __future__ import annotations

import textwrap

import pytest

from garlicfarm.plugins import TRANSPORTS, list_plugins
from garlicfarm.setup.i2p_tunnel import Tunnel
from tests.project.pages import ROOT
from tests.transports.nginx import LOCATION


@pytest.mark.parametrize("plugin", [info.name for info in list_plugins(TRANSPORTS)])
def test_every_transport_has_a_readme(plugin: str) -> None:
    text = (ROOT / f"transports/garlicfarm_transport_{plugin}/README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# The transport `{plugin}`")


def test_tunnel_of_the_guide_is_the_one_that_setup_writes() -> None:
    guide = (ROOT / "docs/howto/farm-over-i2p.md").read_text(encoding="utf-8")
    written = Tunnel("garlicfarm-farm", "127.0.0.1", 27150, 27150, "garlicfarm-farm.dat").i2pd()
    assert f"```ini\n{written}```\n" in guide


def test_reverse_proxy_of_the_page_is_the_one_of_the_tests() -> None:
    page = (ROOT / "transports/garlicfarm_transport_wss/README.md").read_text(encoding="utf-8")
    tried = textwrap.dedent(LOCATION.format(path="/farm", upstream="http://127.0.0.1:27150")).strip()
    assert f"```nginx\n{tried}\n```\n" in page
