"""`garlicfarm plugins`: each installed plugin, with the options that its configuration declares."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from garlicfarm.plugins import CONTRACTS, FEEDS, PluginOption, list_plugins, options_of
from tests.cli.served import Cli
from tests.own_application import install_key_value


class Plugin:
    class Config(msgspec.Struct, kw_only=True):
        host: Annotated[str, msgspec.Meta(description="Where it is.")]
        mode: Literal["slow", "fast"] = "fast"
        hops: Annotated[int, msgspec.Meta(ge=0, le=7)] = 3
        names: tuple[str, ...] = ("a",)
        home: Path = Path("/home")
        file: Path | None = None


def test_options_are_those_of_the_plugins_config() -> None:
    assert options_of(Plugin) == (
        PluginOption("host", "string", True, None, "Where it is."),
        PluginOption("mode", "fast|slow", False, "fast", ""),
        PluginOption("hops", "integer from 0 to 7", False, 3, ""),
        PluginOption("names", "list of strings", False, ("a",), ""),
        PluginOption("home", "Path", False, "/home", ""),
        PluginOption("file", "Path or null", False, None, ""),
    )


def test_json_has_every_plugin_and_a_meaning_for_each_option(cli):
    body = json.loads(cli("plugins", "-o", "json").out)
    assert body["schema"] == "garlicfarm.plugins/1"
    assert [(row["kind"], row["name"]) for row in body["rows"]] == [
        (kind, plugin.name) for kind, (group, _) in CONTRACTS.items() for plugin in list_plugins(group)
    ]
    for row in body["rows"]:
        assert set(row) == {"kind", "name", "distribution", "version", "options", "problem"}
        assert (row["distribution"], row["problem"]) == ("garlicfarm", None)
        for option in row["options"]:
            assert set(option) == {"name", "type", "required", "default", "meaning"}
            assert option["meaning"].endswith("."), f"{row['name']}: {option['name']}"
    (hops,) = [
        option
        for row in body["rows"]
        if row["name"] == "i2pcontrol"
        for option in row["options"]
        if option["name"] == "hops"
    ]
    assert (hops["type"], hops["default"], hops["required"]) == ("integer from 0 to 7", 3, False)


def test_jsonl_has_a_line_for_each_plugin(cli: Cli) -> None:
    rows = [json.loads(line) for line in cli("plugins", "-o", "jsonl").out.splitlines()]
    assert len(rows) == sum(len(list_plugins(group)) for group, _ in CONTRACTS.values())


def test_table_shows_where_each_plugin_is_configured(cli: Cli) -> None:
    out = cli("plugins").out
    for line in (
        "[transport.ssl]  (garlicfarm ",
        '[farm.router] plugin = "i2pcontrol"  (garlicfarm ',
        '[[farm.publisher]] plugin = "hooks"  (garlicfarm ',
        '[[farm.feed]] plugin = "dafka"  (garlicfarm ',
    ):
        assert out.startswith(line) or f"\n{line}" in out
    assert "  password_file  string " in out
    assert "[required]" in out
    assert "no options" in out


def test_plugin_that_cannot_be_imported_is_listed_with_the_reason(cli, monkeypatch):
    absent = EntryPoint("absent", "no_such_module:Feed", FEEDS)
    installed = {FEEDS: (absent,)}
    monkeypatch.setattr("garlicfarm.plugins.entry_points", lambda group, name=None: installed.get(group, ()))
    (row,) = json.loads(cli("plugins", "-o", "json").out)["rows"]
    assert (row["name"], row["options"]) == ("absent", [])
    assert "no_such_module" in row["problem"]
    assert "No module named 'no_such_module'" in " ".join(cli("plugins").out.split())


def test_installed_application_is_made_checked_and_listed_under_its_own_name(tmp_path, cli, monkeypatch):
    install_key_value(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    cli("node", "init", "--host", "a.example", "--application", "key-value")
    cli("config", "check")
    said = cli("plugins")
    assert '[[farm]] application = "key-value"  (my-package 1.0)' in said.out
    assert "warning" not in said.err
    assert (
        "did you mean 'key-value'?" in cli("node", "init", "other", "--application", "key-valu", exits=2).err
    )


def test_application_under_the_name_of_one_in_the_house_is_refused(tmp_path, cli, monkeypatch):
    install_key_value(tmp_path, monkeypatch, name="log")
    monkeypatch.chdir(tmp_path)
    cli("node", "init", "--application", "log")
    assert "my-package brings an application 'log', which is built in" in cli("config", "check", exits=2).err
