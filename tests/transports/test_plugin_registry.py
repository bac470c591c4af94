"""The registry: it lists without importing, loads one, and says what is wrong with the others."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from garlicfarm.errors import ConfigError, PluginError
from garlicfarm.plugins import (
    ROUTERS,
    TRANSPORTS,
    PluginInfo,
    list_plugins,
    load_plugin,
    make,
    make_router,
    make_transport,
)
from garlicfarm.router import Router
from garlicfarm.transport import Transport
from garlicfarm_plugin_simulated import SimulatedRouter
from garlicfarm_transport_ssl import SslTransport

GROUP = "garlicfarm.examples"
Install = Callable[..., None]


class Example:
    """A base class for plugins of these tests."""

    api_version = 1
    Config: type[msgspec.Struct]

    def __init__(self, config: msgspec.Struct, base_dir: Path) -> None:
        self.config, self.base_dir = config, base_dir


class Good(Example):
    class Config(msgspec.Struct, kw_only=True):
        name: str
        size: int = 3
        ratio: float = msgspec.field(name="ratio_percent", default=1.0)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("size is below 0")


class Newer(Good):
    api_version = 2


class RouterOfVersion1(SimulatedRouter):
    api_version = 1


class WithoutConfig(Example):
    pass


class Stranger:
    api_version = 1
    Config = Good.Config


def a_function() -> None:
    pass


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Install:
    """Install a distribution that brings one plugin, by its metadata on sys.path; ``value`` is
    ``name-in-this-file`` or ``module:attribute``."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setitem(sys.modules, "plugin_registry_examples", request.module)

    def install(distribution: str, name: str, value: str, group: str = GROUP, extras: str = "") -> None:
        info = site / f"{distribution.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        if ":" not in value:
            value = f"plugin_registry_examples:{value}"
        extra = f"Provides-Extra: {extras}\n" if extras else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n{extra}")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")

    return install


def test_own_plugins_are_listed_with_their_origin() -> None:
    listed = {info.name: info for group in (TRANSPORTS, ROUTERS) for info in list_plugins(group)}
    ssl = listed["ssl"]
    assert (ssl.value, ssl.distribution) == ("garlicfarm_transport_ssl:SslTransport", "garlicfarm")
    assert listed.keys() >= {"ssl", "simulated", "i2pcontrol"}
    assert all(info.version for info in listed.values())


def test_own_plugins_load_and_are_constructed(tmp_path: Path) -> None:
    assert isinstance(make_transport("ssl", {}, tmp_path), SslTransport)
    assert isinstance(make_router("simulated", {}, tmp_path), SimulatedRouter)
    assert load_plugin(TRANSPORTS, "ssl", Transport) is SslTransport
    assert issubclass(load_plugin(ROUTERS, "i2pcontrol", Router), Router)


def test_listing_imports_no_plugin_and_no_trio() -> None:
    program = """
        import sys
        from garlicfarm import plugins
        for group in (plugins.TRANSPORTS, plugins.ROUTERS, plugins.FEEDS):
            plugins.list_plugins(group)
        assert plugins.list_plugins(plugins.TRANSPORTS)
        unwanted = {"trio", "ssl", "garlicfarm_transport_ssl", "garlicfarm_plugin_i2pcontrol"}
        print(sorted(unwanted & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def test_listing_is_sorted_and_needs_nothing_importable(install: Install) -> None:
    install("zeta-plugins", "beta", "no_such_module:Thing")
    install("alpha-plugins", "gamma", "Good")
    assert list_plugins(GROUP) == (
        PluginInfo("beta", "no_such_module:Thing", "zeta-plugins", "1.5"),
        PluginInfo("gamma", "plugin_registry_examples:Good", "alpha-plugins", "1.5"),
    )


def test_unknown_plugin_names_its_neighbour_and_what_is_installed(install: Install) -> None:
    install("alpha-plugins", "gamma", "Good")
    install("beta-plugins", "delta", "Good")
    with pytest.raises(PluginError, match=r"no plugin 'gama' .* mean 'gamma'\?; installed: delta, gamma"):
        load_plugin(GROUP, "gama", Example)
    with pytest.raises(PluginError, match=r"'quic' in garlicfarm\.nothing; installed: none$"):
        load_plugin("garlicfarm.nothing", "quic", Example)


def test_two_distributions_with_one_name_are_both_named(install: Install) -> None:
    install("alpha-plugins", "gamma", "Good")
    install("beta-plugins", "gamma", "Good")
    with pytest.raises(PluginError, match="alpha-plugins and beta-plugins; uninstall"):
        load_plugin(GROUP, "gamma", Example)


@pytest.mark.parametrize(
    ("extras", "advice"),
    [("gamma", r"pip install 'alpha-plugins\[gamma\]'"), ("other", "pip install 'alpha-plugins'")],
)
def test_plugin_that_cannot_be_imported_says_what_to_install(install, extras, advice):
    install("alpha-plugins", "gamma", "no_such_module:Thing", extras=extras)
    with pytest.raises(PluginError, match=f"No module named 'no_such_module'; .*{advice}") as caught:
        load_plugin(GROUP, "gamma", Example)
    assert caught.value.distribution == "alpha-plugins"
    assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("Absent", "has no attribute 'Absent'"),
        ("Newer", "has api_version 2, this garlicfarm needs 1; install a matching alpha-plugins"),
        ("Stranger", "Stranger is not a Example"),
        ("a_function", "a_function is not a Example"),
        ("WithoutConfig", "WithoutConfig.Config is not a msgspec.Struct"),
    ],
)
def test_plugin_that_breaks_the_contract_is_refused_by_distribution(install, value, problem):
    install("alpha-plugins", "gamma", value)
    with pytest.raises(PluginError, match=f"plugin 'gamma' of alpha-plugins 1.5.*{problem}") as caught:
        load_plugin(GROUP, "gamma", Example)
    assert caught.value.distribution == "alpha-plugins"


def test_transport_that_is_not_complete_is_refused(install: Install, request: pytest.FixtureRequest) -> None:
    class Half(Transport):
        scheme = "half"
        Config = Good.Config

    request.module.Half = Half
    install("alpha-plugins", "half", "Half", group=TRANSPORTS)
    with pytest.raises(PluginError, match="does not implement open_stream, serve"):
        make_transport("half", {}, Path())


def test_config_is_converted_and_handed_over(install: Install, tmp_path: Path) -> None:
    install("alpha-plugins", "gamma", "Good")
    made = make(GROUP, Example, "gamma", {"name": "n", "ratio_percent": 2.5}, tmp_path)
    assert isinstance(made, Good)
    assert made.config == Good.Config(name="n", ratio=2.5)
    assert made.base_dir == tmp_path


def test_config_with_several_mistakes_reports_them_all(install: Install, tmp_path: Path) -> None:
    install("alpha-plugins", "gamma", "Good")
    table = {"sice": 1, "size": "3", "ratio_percent": True, "entirely_else": 1}
    with pytest.raises(ConfigError) as caught:
        make(GROUP, Example, "gamma", table, tmp_path)
    assert caught.value.problems == (
        "example gamma: unknown key 'sice'; did you mean 'size'?",
        "example gamma: unknown key 'entirely_else'",
        "example gamma: name is missing",
        "example gamma: size: Expected `int`, got `str`",
        "example gamma: ratio_percent: Expected `float`, got `bool`",
    )


def test_config_whose_fields_contradict_is_a_config_error(install: Install, tmp_path: Path) -> None:
    install("alpha-plugins", "gamma", "Good")
    with pytest.raises(ConfigError, match="example gamma: size is below 0"):
        make(GROUP, Example, "gamma", {"name": "n", "size": -1}, tmp_path)


def test_router_plugin_of_version_1_is_refused_by_name(install: Install, tmp_path: Path) -> None:
    """It could publish through its router, which nothing asks of a router any more."""
    install("old-routers", "old", "RouterOfVersion1", group=ROUTERS)
    refused = "plugin 'old' of old-routers 1.5 has api_version 1, this garlicfarm needs 2; install a matching"
    with pytest.raises(PluginError, match=refused):
        make_router("old", {}, tmp_path)
