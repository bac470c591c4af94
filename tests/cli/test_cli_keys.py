"""`garlicfarm keys`: what is made, where, and that no secret is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from garlicfarm.cli.exits import Exit
from garlicfarm.credentials.destination_keys import read_keys
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.i2p.session_configuration import verify_session_configuration
from tests.cli.served import Cli

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Path:
    monkeypatch.chdir(tmp_path)
    cli("keys", "create", "site.key")
    return tmp_path / "site.key"


OFFLINE = ["keys", "offline", "site.key", "--nodes", "1,2,3", "--out", "bundles"]


def test_create_prints_the_destination_alone_on_stdout(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = cli("keys", "create", "new/site.key")
    keys = read_keys(tmp_path / "new" / "site.key")
    assert output.out == f"{encode(keys.destination)}\n"
    assert b32_address(keys.destination) in output.err
    before = (tmp_path / "new" / "site.key").read_bytes()
    assert "never overwritten" in cli("keys", "create", "new/site.key", exits=Exit.USAGE).err
    assert (tmp_path / "new" / "site.key").read_bytes() == before


def test_offline_makes_a_bundle_for_each_node_with_a_transient_key_of_its_own(key, cli):
    options = ["--days", "30", "--hops", "1", "--quantity", "4", "-o", "json"]
    rows = json.loads(cli(*OFFLINE, *options).out)["rows"]
    assert [row["file"] for row in rows] == [f"bundles/site-{node}.bundle" for node in (1, 2, 3)]
    long_term = read_keys(key)
    assert long_term.offline is None
    for node, row in enumerate(rows, start=1):
        path = key.parent / row["file"]
        assert path.stat().st_mode & 0o777 == 0o600
        bundle = read_keys(path, node_id=node, destination=long_term.destination)
        assert (bundle.node, bundle.transient) == (node, row["transient"])
        configurations = [verify_session_configuration(data) for data in bundle.configurations.values()]
        assert {each.options["outbound.length"] for each in configurations} == {"1"}
        assert {each.options["inbound.quantity"] for each in configurations} == {"4"}
        assert bundle.expires_ms is not None
        days = 31 - node  # they do not all end at once
        assert {bundle.expires_ms - each.date_ms for each in configurations} == {days * 86_400_000}
    assert len({row["transient"] for row in rows}) == 3


def test_offline_leaves_the_last_bundle_half_of_the_days(key: Path, cli: Cli) -> None:
    rows = json.loads(cli(*OFFLINE, "--days", "1", "-o", "json").out)["rows"]
    bundles = [read_keys(key.parent / row["file"]) for row in rows]
    ends_ms = [bundle.expires_ms or 0 for bundle in bundles]
    assert [ends_ms[0] - end_ms for end_ms in ends_ms] == [0, 4 * 3_600_000, 8 * 3_600_000]


def test_offline_overwrites_nothing_and_then_writes_nothing(key: Path, cli: Cli) -> None:
    (key.parent / "bundles").mkdir()
    (key.parent / "bundles" / "site-2.bundle").write_text("precious")
    said = cli(*OFFLINE, exits=Exit.USAGE).err
    assert "bundles/site-2.bundle exists; nothing was written" in said
    assert [path.name for path in (key.parent / "bundles").iterdir()] == ["site-2.bundle"]


def test_offline_by_a_bundle_is_refused(key: Path, cli: Cli) -> None:
    cli(*OFFLINE)
    assert (
        "site-1.bundle does not hold a long-term key"
        in cli("keys", "offline", "bundles/site-1.bundle", "--nodes", "1", "--out", "x", exits=Exit.USAGE).err
    )


@pytest.mark.parametrize("nodes", ["", "1,,2", "0", "1,1", "a", "2147483648", "-1"])
def test_offline_nodes_that_are_no_ids_are_refused(nodes: str, key: Path, cli: Cli) -> None:
    assert (
        "must be ids of nodes, each once"
        in cli("keys", "offline", "site.key", "--nodes", nodes, "--out", "x", exits=Exit.USAGE).err
    )
    assert not (key.parent / "x").exists()


def test_show_tells_what_a_file_holds_and_until_when(key, cli, monkeypatch):
    cli(*OFFLINE, "--days", "10")
    long_term = read_keys(key)
    expires_ms = read_keys(key.parent / "bundles" / "site-3.bundle").expires_ms
    assert expires_ms is not None

    def shown(file: str, now_s: float) -> dict[str, object]:
        monkeypatch.setattr("time.time", lambda: now_s)
        return dict(json.loads(cli("keys", "show", file, "-o", "json").out))

    ours = {"b32": b32_address(long_term.destination), "destination": encode(long_term.destination)}
    bundle = shown("bundles/site-3.bundle", expires_ms / 1000 - 3 * 86_400)
    assert bundle.items() >= {**ours, "kind": "bundle", "node": 3, "days_left": 3}.items()
    assert re.fullmatch("[0-9a-f]{16}", str(bundle["transient"]))
    assert shown("bundles/site-3.bundle", expires_ms / 1000 + 1)["days_left"] == -1
    kept = shown("site.key", 0)
    assert kept.items() >= {**ours, "kind": "long-term key", "node": None, "days_left": None}.items()
    assert f"b32          {ours['b32']}\n" in cli("keys", "show", "site.key").out


def test_keys_show_no_secret(key: Path, cli: Cli) -> None:
    cli(*OFFLINE)
    for output in ("table", "json", "jsonl"):
        for file in ("site.key", "bundles/site-1.bundle"):
            cli("keys", "show", file, "-o", output)
    write_private_file(key.parent / "cut", key.read_bytes()[:-10])
    text = "".join(cli("keys", "show", "cut", exits=Exit.USAGE))
    bundle = json.loads((key.parent / "bundles" / "site-1.bundle").read_text())
    for secret in (key.read_text().strip()[-40:], bundle["seed"], bundle["configurations"]["meta"][-60:]):
        assert secret not in text
