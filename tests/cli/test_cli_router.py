"""`router show`: what would be posted, and where each figure comes from."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli import run
from garlicfarm.errors import NotSupported
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.router import RouterStatus, figures
from garlicfarm_plugin_simulated import SimulatedRouter, simulated_status
from tests.cli.served import Cli

Capture = pytest.CaptureFixture[str]

ABSENT = [(f"router.{key}", None) for key in figures(RouterStatus())]


def base64(destination: bytes) -> str:
    return b64encode(destination, altchars=b"-~").decode()


LEAF = base64(simulated_destination(3))
FARM = """
[[farm]]
name = "{name}"
endpoint = "ssl://127.0.0.1:27150"
application = "{application}"
"""
SIMULATED = '[farm.router]\nplugin = "simulated"\nseed = 3\n'
LEAVES = '[[farm.leaf]]\ndestination = "{}"\n'


@pytest.fixture
def configure(here: Path) -> Any:
    """Write a configuration in the working directory, from the tables of its farms."""

    def configure(*farms: str) -> None:
        text = 'version = 1\n[node]\nid = 1\n[[listener]]\nurl = "ssl://127.0.0.1:27150"\n'
        (here / "garlicfarm.toml").write_text(text + "".join(farms))

    return configure


def farm(*tables: str, name: str = "farm", application: str = "publisher") -> str:
    return FARM.format(name=name, application=application) + "".join(tables)


def shown(capsys: Capture, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    assert run(["router", "show", "-o", "json", *arguments]) == code
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "garlicfarm.router-show/1"
    for row in body["rows"]:
        assert list(row) == ["farm", "key", "value", "unit", "origin"]
    return body["rows"]


def test_figures_of_a_simulated_router_are_those_that_it_posts_first(configure, capsys: Capture) -> None:
    configure(farm(SIMULATED))
    rows = shown(capsys)
    expected = {f"router.{key}": value for key, value in figures(simulated_status(3, 0)).items()}
    assert {row["key"]: row["value"] for row in rows} == expected
    for row in rows:
        assert row["origin"] == ("not reported" if row["value"] is None else "simulated")
    units = {row["key"]: row["unit"] for row in rows}
    assert units["router.uptime"] == units["router.jobLag"] == "ms"
    assert units["router.configuredBandwidth.in"] == units["router.currentBandwidth.out"] == "bytes/s"
    assert units["router.participatingTunnels"] is None


def test_leaves_are_those_of_the_configuration_with_their_figures(configure, capsys: Capture) -> None:
    configure(farm(SIMULATED, LEAVES.format(LEAF)))
    rows = [row for row in shown(capsys) if row["key"].startswith("destinations")]
    assert rows[0] == {
        "farm": "farm",
        "key": "destinations[0].destination",
        "value": LEAF,
        "unit": None,
        "origin": "[[farm.leaf]]",
    }
    told = {row["key"]: row for row in rows[1:]}
    assert told["destinations[0].configuredTunnels.in"]["value"] == 3
    assert told["destinations[0].configuredTunnels.in"]["origin"] == "simulated"
    assert told["destinations[0].leaseSetExpires"]["unit"] == "ms since 1970"
    assert told["destinations[0].blacklist"]["origin"] == "not reported"


def test_leaf_that_the_router_cannot_be_asked_of_is_posted_bare(configure, capsys, monkeypatch):
    async def refuse(self: SimulatedRouter, leaf: bytes) -> None:
        raise NotSupported("never")

    monkeypatch.setattr(SimulatedRouter, "get_local_leaf_status", refuse)
    configure(farm(SIMULATED, LEAVES.format(LEAF)))
    assert [row["key"] for row in shown(capsys)][-1] == "destinations[0].destination"


def test_leaf_of_another_router_is_shown_and_exits_1(configure, cli: Cli) -> None:
    other = base64(simulated_destination(4))
    configure(farm(SIMULATED, LEAVES.format(other), LEAVES.format(LEAF)))
    output = cli("router", "show", "-o", "jsonl", exits=1)
    rows = [json.loads(line) for line in output.out.splitlines()]
    keys = [row["key"] for row in rows if row["key"].startswith("destinations")]
    assert keys[:3] == [
        "destinations[0].destination",
        "destinations[1].destination",
        "destinations[1].uptime",
    ]
    assert output.err == (
        "error: farm farm: the simulated router does not serve this leaf; set router.destination to it\n"
    )


def test_farm_without_router_posts_leaves_alone(configure, capsys: Capture) -> None:
    configure(farm(LEAVES.format(LEAF)))
    rows = shown(capsys)
    assert [(row["key"], row["value"]) for row in rows] == [*ABSENT, ("destinations[0].destination", LEAF)]
    assert {row["origin"] for row in rows[:-1]} == {"no [farm.router]"}


def test_plugin_that_names_no_origins_is_named_itself(configure, capsys, monkeypatch):
    monkeypatch.setattr(SimulatedRouter, "origins", {})
    configure(farm(SIMULATED))
    assert {row["origin"] for row in shown(capsys)} == {"plugin simulated", "not reported"}


def test_table_has_a_line_a_figure_and_cuts_long_values(configure, cli: Cli) -> None:
    configure(farm(SIMULATED, LEAVES.format(LEAF)))
    header, *lines = [line.split() for line in cli("router", "show").out.splitlines()]
    assert header == ["FARM", "KEY", "VALUE", "UNIT", "ORIGIN"]
    assert ["farm", "router.lastPublishedRI", "-", "-", "not", "reported"] in lines
    assert ["farm", "router.jobLag", str(simulated_status(3, 0).job_lag), "ms", "simulated"] in lines
    assert ["farm", "destinations[0].destination", f"{LEAF[:24]}…", "-", "[[farm.leaf]]"] in lines


def test_several_farms_are_all_shown_or_the_one_asked_for(configure, capsys: Capture) -> None:
    farms = [farm(SIMULATED, name=name) for name in ("north", "south")]
    configure(*farms, farm(name="log", application="log"))
    assert {row["farm"] for row in shown(capsys)} == {"north", "south"}
    assert {row["farm"] for row in shown(capsys, "--farm", "south")} == {"south"}


@pytest.mark.parametrize("name", ["log", "absent"])
def test_farm_that_posts_no_figures_is_wrong_usage(configure, cli: Cli, name: str) -> None:
    configure(farm(SIMULATED, name="north"), farm(name="log", application="log"))
    output = cli("router", "show", "--farm", name, exits=2)
    assert output.out == ""
    assert output.err.endswith(
        "only farms of the application publisher post a router's figures; it has of these: north\n"
    )


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('[farm.router]\nplugin = "nothing"\n', "no plugin 'nothing'"),
        ('[farm.router]\nplugin = "simulated"\nseeds = 1\n', "did you mean 'seed'?"),
        ('[farm.router]\nplugin = "i2pcontrol"\npassword_file = "absent"\n', "router.password_file"),
    ],
)
def test_router_that_cannot_be_made_is_wrong_configuration(configure, cli, table, expected):
    configure(farm(table))
    output = cli("router", "show", exits=2)
    assert output.out == ""
    assert expected in output.err
