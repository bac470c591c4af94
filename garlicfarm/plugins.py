"""The registry of transports, routers, publishers and feeds: entry points of installed distributions.

Listing reads metadata only; loading imports only the chosen plugin.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from garlicfarm.errors import ConfigError, PluginError
from garlicfarm.feed.contract import Feed, FeedSite
from garlicfarm.names import did_you_mean
from garlicfarm.publisher import Publisher, PublisherSite
from garlicfarm.router import Router
from garlicfarm.transport import Transport

__all__ = ["make_transport"]

TRANSPORTS = "garlicfarm.transports"
ROUTERS = "garlicfarm.routers"
PUBLISHERS = "garlicfarm.publishers"
FEEDS = "garlicfarm.feeds"
APPLICATIONS = "garlicfarm.applications"
CONTRACTS: Mapping[str, tuple[str, type[Any]]] = {
    "transport": (TRANSPORTS, Transport),
    "router": (ROUTERS, Router),
    "publisher": (PUBLISHERS, Publisher),
    "feed": (FEEDS, Feed),
}
"""Each kind of plugin: the group of its entry points, and its base class."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One installed plugin: its class and its distribution."""

    name: str
    value: str
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class PluginOption:
    """One key of a plugin's table. ``default`` is as JSON has it, None if there is none."""

    name: str
    type: str
    required: bool
    default: Any
    meaning: str


def list_plugins(group: str) -> tuple[PluginInfo, ...]:
    """Every installed plugin of ``group``, by name. Imports none of them."""
    return tuple(sorted((_info(found) for found in entry_points(group=group)), key=lambda info: info.name))


def load_plugin(group: str, name: str, base_class: type[T]) -> type[T]:
    """Import the plugin ``name`` of ``group`` and check it against ``base_class``.

    Raises `PluginError`: unknown, provided by two distributions, not importable (says what to install),
    made for another ``api_version``, or not a complete subclass of ``base_class`` with a ``Config``.
    """
    found = tuple(entry_points(group=group, name=name))
    if not found:
        installed = sorted({info.name for info in list_plugins(group)})
        known = f"installed: {', '.join(installed) or 'none'}"
        raise PluginError(f"no plugin {name!r} in {group}{did_you_mean(name, installed)}; {known}")
    info = _info(found[0])
    label = f"plugin {name!r} of {info.distribution} {info.version}"
    if len(found) > 1:
        origins = " and ".join(sorted(_info(each).distribution for each in found))
        raise PluginError(f"{group} {name!r} is provided by {origins}; uninstall all but one", origins)
    try:
        plugin = found[0].load()
    except (ImportError, AttributeError) as exc:
        needed = _what_to_install(found[0])
        raise PluginError(f"{label} cannot be imported: {exc}; {needed}", info.distribution) from exc
    version, wanted_version = getattr(plugin, "api_version", None), getattr(base_class, "api_version", 1)
    if isinstance(plugin, type) and version != wanted_version:
        wanted = f"{label} has api_version {version}, this garlicfarm needs {wanted_version}"
        raise PluginError(f"{wanted}; install a matching {info.distribution}", info.distribution)
    if not (isinstance(plugin, type) and issubclass(plugin, base_class)):
        raise PluginError(f"{label}: {info.value} is not a {base_class.__name__}", info.distribution)
    if inspect.isabstract(plugin):
        missing = ", ".join(sorted(getattr(plugin, "__abstractmethods__", ())))
        raise PluginError(f"{label}: {info.value} does not implement {missing}", info.distribution)
    config_class = getattr(plugin, "Config", None)
    is_struct = isinstance(config_class, type) and issubclass(config_class, msgspec.Struct)
    if group != APPLICATIONS and not is_struct:  # an application has the farm's table
        raise PluginError(f"{label}: {info.value}.Config is not a msgspec.Struct", info.distribution)
    return plugin


def options_of(plugin: Any) -> tuple[PluginOption, ...]:
    """The options of a loaded plugin, as its ``Config`` declares them. What each means is the ``description``
    of its `msgspec.Meta`."""
    config_class = getattr(plugin, "Config", None)
    return tuple(map(_option, msgspec.structs.fields(config_class))) if config_class else ()


def _option(field: msgspec.structs.FieldInfo) -> PluginOption:
    schema = msgspec.json.schema(field.type, schema_hook=_name_type)
    default = None if field.default is msgspec.NODEFAULT else field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return PluginOption(
        field.encode_name,
        _type_in_words(schema),
        field.required,
        msgspec.to_builtins(default, enc_hook=str),
        schema.get("description", ""),
    )


def _name_type(kind: type) -> dict[str, str]:
    """A type that JSON does not have, as a `Path`."""
    return {"type": kind.__name__}


def _type_in_words(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(sorted(_type_in_words(each) for each in schema["anyOf"]))
    word = {"boolean": "true|false", "object": "table", "array": "list"}
    text = word.get(schema.get("type", "object"), str(schema.get("type", "table")))
    if "items" in schema:
        text = f"list of {_type_in_words(schema['items'])}s"
    limits = [
        f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema
    ]
    return " ".join([text, *limits])


def make(
    group: str, base_class: type[T], name: str, table: Mapping[str, Any], base_dir: Path, *more: object
) -> T:
    """Load a plugin and construct it from its configuration ``table``, and ``more`` where its kind takes it.

    Relative paths in ``table`` are relative to ``base_dir``. Raises what `load_plugin` raises, and
    `ConfigError` with every problem of ``table``.
    """
    plugin: Any = load_plugin(group, name, base_class)
    noun = group.removeprefix("garlicfarm.").removesuffix("s")
    made: T = plugin(_convert(table, plugin.Config, f"{noun} {name}"), base_dir, *more)
    return made


def make_transport(scheme: str, table: Mapping[str, Any], base_dir: Path) -> Transport:
    """The transport for ``scheme`` from its table ``[transport.<scheme>]``; raises as `make` does."""
    return make(TRANSPORTS, Transport, scheme, table, base_dir)  # type: ignore[type-abstract]


def make_router(name: str, table: Mapping[str, Any], base_dir: Path) -> Router:
    """The router plugin ``name`` from ``[farm.router]`` without ``plugin``; raises as `make` does."""
    return make(ROUTERS, Router, name, table, base_dir)  # type: ignore[type-abstract]


def make_publisher(name: str, table: Mapping[str, Any], base_dir: Path, site: PublisherSite) -> Publisher:
    """The publisher plugin ``name`` from its own keys of ``[[farm.publisher]]``; raises as `make` does."""
    return make(PUBLISHERS, Publisher, name, table, base_dir, site)  # type: ignore[type-abstract]


def make_feed(name: str, table: Mapping[str, Any], base_dir: Path, site: FeedSite) -> Feed:
    """The feed plugin ``name`` from its own keys of ``[[farm.feed]]``; raises as `make` does."""
    return make(FEEDS, Feed, name, table, base_dir, site)  # type: ignore[type-abstract]


def _info(found: EntryPoint) -> PluginInfo:
    name, version = (found.dist.name, found.dist.version) if found.dist else ("", "")
    return PluginInfo(found.name, found.value, name, version)


def _what_to_install(found: EntryPoint) -> str:
    if found.dist is None:
        return "install what it needs"
    # By convention the extra for a plugin has the plugin's name.
    extras = found.dist.metadata.get_all("Provides-Extra") or []
    extra = f"[{found.name}]" if found.name in extras else ""
    return f"install what it needs: pip install '{found.dist.name}{extra}'"


def _convert(table: Mapping[str, Any], config_class: type[msgspec.Struct], where: str) -> msgspec.Struct:
    """``table`` as ``config_class``, strictly; each field separately, to find all problems."""
    fields = {each.encode_name: each for each in msgspec.structs.fields(config_class)}
    problems = [
        f"{where}: unknown key {key!r}{did_you_mean(key, fields)}" for key in table if key not in fields
    ]
    for name, each in fields.items():
        if name in table:
            try:
                msgspec.convert(table[name], each.type)
            except msgspec.ValidationError as exc:
                problems.append(f"{where}: {name}: {exc}")
        elif each.required:
            problems.append(f"{where}: {name} is missing")
    if not problems:
        try:
            return msgspec.convert(dict(table), config_class)
        except msgspec.ValidationError as exc:  # a rule over several fields, in __post_init__
            problems.append(f"{where}: {exc}")
    raise ConfigError(problems)
