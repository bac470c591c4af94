"""The configuration's reference has every key with its default and range, as the model has them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from garlicfarm.config import model
from garlicfarm_plugin_dafka.farm_feed import DafkaFeedConfig
from garlicfarm_plugin_hooks import HooksConfig
from garlicfarm_plugin_i2cp import I2cpConfig
from garlicfarm_plugin_i2pcontrol import I2PControlConfig
from garlicfarm_plugin_sam import SamConfig
from garlicfarm_plugin_simulated import SimulatedConfig
from garlicfarm_transport_i2p import I2PConfig
from garlicfarm_transport_ssl import SslConfig
from garlicfarm_transport_wss import WssConfig
from tests.project.pages import page, table

TEXT = page("docs/reference/configuration.md")
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "top level": model.Document,
    "[node]": model.NodeSection,
    "[log]": model.LogSection,
    "[admin]": model.AdminSection,
    "[[listener]]": model.ListenerSection,
    "[[notify]]": model.NotifySection,
    "[[farm]]": model.FarmSection,
    "[farm.raft]": model.RaftSection,
    "[farm.retention]": model.RetentionSection,
    "[farm.backup]": model.BackupSection,
    "[farm.meta]": model.MetaSection,
    "[[farm.leaf]]": model.LeafSection,
    "[[farm.publisher]]": model.PublisherSection,
    "[[farm.feed]]": model.FeedSection,
}
PLUGINS: dict[str, type[msgspec.Struct]] = {
    "### [transport.ssl]": SslConfig,
    "### [transport.i2p]": I2PConfig,
    "### [transport.wss]": WssConfig,
    '`plugin = "simulated"`': SimulatedConfig,
    '`plugin = "i2pcontrol"`': I2PControlConfig,
    '`plugin = "sam"`': SamConfig,
    '`plugin = "i2cp"`': I2cpConfig,
    '`plugin = "hooks"`': HooksConfig,
    '`plugin = "dafka"`': DafkaFeedConfig,
}
TABLES = {
    "node",
    "log",
    "admin",
    "listener",
    "transport",
    "notify",
    "farm",
    "raft",
    "retention",
    "backup",
    "router",
    "meta",
    "leaf",
    "publisher",
    "feed",
    "options",
}


def rows(after: str) -> dict[str, tuple[str, str, str]]:
    """The first table after a text: key → default, allowed, meaning."""
    found = table(TEXT[TEXT.index(after) :])
    return {key.strip("`"): (default, allowed, meaning) for key, default, allowed, meaning in found}


def toml(value: Any) -> str:
    if value is None:
        return '`""`'
    if isinstance(value, Path | str):
        return f"`{value}`" if str(value) else '`""`'
    return f"`{json.dumps(value)}`"


def default(field: Any, section: str) -> str:
    if section == "[farm.raft]" and field.name in model.PRESETS["clearnet"]:
        return "preset"
    if field.name == "retire_timeout_s":
        return "preset"
    if field.name == "disk_timeout_s":
        return "`5.0`, or `election_timeout_max_s` if that is more"
    if field.name == "least_election_timeout_s":
        least_s = model.PRESET_LEAST_ELECTION_TIMEOUTS_S["i2p"]
        return f"`election_timeout_max_s`; with the preset `i2p` `{least_s}`"
    if field.name == "secret_file" and section == "[[farm]]":
        return "`secrets/NAME.secret` in `data_dir`"
    if field.default_factory is not msgspec.NODEFAULT:
        return toml(field.default_factory())
    return "required" if field.required else toml(field.default)


def words(field: Any) -> str:
    (meta,) = (each for each in field.type.__metadata__ if isinstance(each, msgspec.Meta))
    return str(meta.description)


@pytest.mark.parametrize("section", SECTIONS)
def test_section_has_every_key_with_default_and_range(section: str) -> None:
    shown = rows(f"### {section}\n")
    fields = [field for field in msgspec.structs.fields(SECTIONS[section]) if field.name not in TABLES]
    if section == "top level":
        fields = [field for field in fields if field.name == "version"]
    assert {key: row[:2] for key, row in shown.items()} == {
        field.name: (default(field, section), words(field)) for field in fields
    }
    assert all(row[2] for row in shown.values())


@pytest.mark.parametrize("place", PLUGINS)
def test_plugin_table_has_every_key_with_default(place: str) -> None:
    shown = rows(place)
    fields = msgspec.structs.fields(PLUGINS[place])
    assert {key: row[0] for key, row in shown.items()} == {field.name: default(field, "") for field in fields}


def test_presets_are_those_of_the_model() -> None:
    table = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|$", TEXT, re.MULTILINE)
    assert {key: {"clearnet": float(a), "i2p": float(b)} for key, a, b in table} == {
        key: {name: model.PRESETS[name][key] for name in ("clearnet", "i2p")}
        for key in model.PRESETS["clearnet"]
    }
    retire_s = model.PRESET_RETIRE_TIMEOUTS_S
    shown = f"is {retire_s['clearnet']:g} s with `clearnet` and {retire_s['i2p']:g} s with `i2p`."
    assert f"`retire_timeout_s` of `[[farm.publisher]]` {shown}" in TEXT


def test_every_section_of_the_model_has_its_place() -> None:
    sections = {value for name, value in vars(model).items() if name.endswith("Section")}
    assert sections == set(SECTIONS.values()) - {model.Document}
    assert get_args(model.Preset)  # the model's types are annotated; the words come from there
