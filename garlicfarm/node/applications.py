"""The table of applications: the two in the house, and those that installed distributions bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from garlicfarm.application import Application
from garlicfarm.config import FarmSection
from garlicfarm.errors import ConfigError, PluginError
from garlicfarm.log_application import LogApplication
from garlicfarm.names import did_you_mean
from garlicfarm.node.publisher import PublisherApplication
from garlicfarm.plugins import APPLICATIONS, list_plugins, load_plugin

ApplicationFactory = Callable[[str], Application]

BUILT_IN: Mapping[str, ApplicationFactory] = MappingProxyType(
    {"publisher": PublisherApplication, "log": lambda farm: LogApplication()}
)


def find_applications() -> Mapping[str, ApplicationFactory]:
    """Name in the configuration → factory, given the farm's name. A farm has one, chosen when it is created
    (D14). Imports no installed one: its factory does, and raises `PluginError` as `load_plugin`.

    Raises `PluginError`: a distribution brings one under the name of one in the house.
    """
    installed: dict[str, ApplicationFactory] = {}
    for info in list_plugins(APPLICATIONS):
        if info.name in BUILT_IN:
            raise PluginError(f"{info.distribution} brings an application {info.name!r}, which is built in")
        installed[info.name] = partial(_make, info.name)
    return {**BUILT_IN, **installed}


def _make(name: str, farm: str) -> Application:
    contract: type[Any] = Application
    made: Application = load_plugin(APPLICATIONS, name, contract)(farm)
    return made


def check_applications(farms: Iterable[FarmSection], applications: Mapping[str, ApplicationFactory]) -> None:
    """Raises `ConfigError`: farms name an application that the table ``applications`` lacks."""
    known = ", ".join(applications)
    problems = [
        f"farm {farm.name}: no application {farm.application!r}"
        f"{did_you_mean(farm.application, applications)}; there are: {known}"
        for farm in farms
        if farm.application not in applications
    ]
    if problems:
        raise ConfigError(problems)
