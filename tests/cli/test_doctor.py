"""`garlicfarm doctor`: each finding, and a bundle without a secret."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tarfile
from base64 import b64encode
from collections import namedtuple
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli import doctor_checks
from garlicfarm.i2p.encoding import encode
from garlicfarm.setup.provision import MemberPlan, create_node
from tests.cli.served import Cli
from tests.running import running, until

Usage = namedtuple("Usage", "total used free")
PLANTED = "correct-horse-battery-staple"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The directory of a node that does not run."""
    plan = MemberPlan(
        endpoint="ssl://127.0.0.1:1", listen="ssl://127.0.0.1:0", admin_url="https://127.0.0.1:0"
    )
    create_node(tmp_path / "node", 1, plan)
    return tmp_path / "node"


def add(node: Path, text: str) -> None:
    with (node / "garlicfarm.toml").open("a") as file:
        file.write(text)


def found(cli: Cli, node: Path, *more: str, exits: int = 6) -> list[dict[str, Any]]:
    told = cli("doctor", "--config", str(node / "garlicfarm.toml"), "-o", "json", *more, exits=exits).out
    rows: list[dict[str, Any]] = json.loads(told)["rows"]
    return rows


def of(rows: list[dict[str, Any]], check: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["check"] == check]


def test_node_that_does_not_run_is_told_with_what_to_do(cli: Cli, node: Path) -> None:
    rows = found(cli, node)
    (told,) = of(rows, "node")
    assert (told["state"], "systemctl status" in told["next"]) == ("problem", True)
    (unreached,) = of(rows, "reaches members")
    assert unreached["state"] == "problem"
    assert "this node" in unreached["text"]
    for check in ("configuration", "files", "certificate"):
        assert [row["state"] for row in of(rows, check)] == ["ok"]
    text = cli("doctor", "--config", str(node / "garlicfarm.toml"), exits=6)
    assert "PROBLEM  node" in text.out
    assert text.err.endswith("2 problems\n")
    assert not list((node / "data").glob(".doctor*"))


@pytest.mark.root
def test_file_of_another_user_is_named_with_the_command_that_mends_it(cli: Cli, node: Path) -> None:
    os.chown(node / "data" / "users", 12345, 12345)
    (told,) = of(found(cli, node), "files")
    assert told["text"].startswith(f"{node}/data/users belongs to #12345")
    assert told["next"] == f"chown -R root {node}/data"


def test_data_directory_that_others_may_enter_is_told(cli: Cli, node: Path) -> None:
    (node / "data").chmod(0o755)
    (told,) = of(found(cli, node), "files")
    assert told["next"] == f"chmod 700 {node}/data"


GB = 10**9


@pytest.mark.parametrize(("free", "state"), [(30, "ok"), (15, "note"), (5, "problem")])
def test_room_is_told_before_there_is_none(
    free: int, state: str, cli: Cli, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(110 * GB, (100 - free) * GB, free * GB))
    (told,) = of(found(cli, node), "space")
    assert told["state"] == state
    assert f"{100 - free}% full" in told["text"]


def test_log_that_may_outgrow_the_disk_is_told(cli: Cli, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2 * GB, GB // 5, GB))
    ok, note = of(found(cli, node), "space")
    assert (ok["state"], note["state"]) == ("ok", "note")
    assert "may grow to 1.1 GB (keep_bytes), and there is room for 0.9" in note["text"]


def test_disk_that_is_slower_than_the_heartbeat_is_told(
    cli: Cli, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(doctor_checks.time, "perf_counter", lambda: float(next(ticks)))  # type: ignore[attr-defined]
    (told,) = of(found(cli, node), "disk")
    assert told["state"] == "problem"
    assert "1000.0 ms (99 of 100); the heartbeat is 300 ms" in told["text"]


def test_doors_of_the_router_are_tried_where_the_configuration_or_a_default_says(
    cli: Cli, node: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as door, closing(socket.socket()) as shut:
        shut.bind(("127.0.0.1", 0))  # and does not listen
        is_open, is_shut = (f"127.0.0.1:{each.getsockname()[1]}" for each in (door, shut))
        add(node, f'[transport.i2p]\nproxy = "http://{is_open}"\n')
        add(node, f'[[farm.publisher]]\nplugin = "i2cp"\naddress = "{is_shut}"\n')
        told = {row["text"].split(" (")[0]: row["state"] for row in of(found(cli, node), "router's doors")}
    assert told == {
        f"[transport.i2p]: proxy {is_open} takes connections": "ok",
        f"[[farm.publisher]]: nothing listens at address {is_shut}": "problem",
    }


def test_router_that_does_not_answer_is_told(cli: Cli, node: Path) -> None:
    add(node, '[farm.router]\nplugin = "i2pcontrol"\nurl = "https://127.0.0.1:1/"\n')
    (node / "pw").write_text("itoopie\n")
    (node / "pw").chmod(0o600)
    add(node, 'password_file = "pw"\n')
    (told,) = of(found(cli, node), "router")
    assert told["text"].startswith("farm: i2pcontrol does not answer")


@pytest.mark.slow
def test_running_node_that_is_well_has_no_problem(tmp_path: Path, cli: Cli) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        url = f"ssl://127.0.0.1:{free.getsockname()[1]}"
    create_node(tmp_path / "node", 1, MemberPlan(endpoint=url, listen=url, admin_url="https://127.0.0.1:0"))
    config = str(tmp_path / "node" / "garlicfarm.toml")
    with running([sys.executable, "-m", "garlicfarm", "node", "start", "--config", config]) as process:
        until((tmp_path / "node/data/admin.url").exists, process)
        cli("wait", "--for", "leader", "--timeout", "4m", "--config", config)
        bundle = tmp_path / "report.tar.gz"
        rows = found(cli, tmp_path / "node", "--bundle", str(bundle), exits=0)
    with tarfile.open(bundle) as archive:
        metrics = archive.extractfile("report/metrics.txt").read().decode()  # type: ignore[union-attr]
    assert 'garlicfarm_raft_term{farm="farm"}' in metrics
    assert [row["text"] for row in of(rows, "farm")] == ["farm: healthy, leader 1, this node is leader"]
    assert {row["state"] for row in of(rows, "reaches members")} == {"ok"}


@pytest.fixture
def planted(node: Path) -> list[str]:
    """Secrets of each kind that stand where a bundle could take them from, in each form."""
    (node / "sam.password").write_text(f"{PLANTED}\n")
    (node / "service.dat").write_bytes(key := bytes(range(200)))
    for name in ("sam.password", "service.dat"):
        (node / name).chmod(0o600)
    add(
        node,
        '[[farm.publisher]]\nplugin = "i2cp"\nmode = "service"\ntarget = "127.0.0.1:1"\n'
        f'keys = "service.dat"\nuser = "{PLANTED}"\npassword_file = "sam.password"\n',
    )
    secret = (node / "data/secrets/farm.secret").read_text().strip()
    local = (node / "data/local.password").read_text().strip()
    private = (node / "data/tls/node.key").read_text().splitlines()[1]
    forms = [PLANTED, secret, local, private, key.hex(), b64encode(key).decode(), encode(key)]
    (node / "node.log").write_text("".join(f"it said <{form}> and {form}\n" for form in forms))
    return forms


def test_bundle_has_what_a_report_needs_and_no_secret(cli: Cli, node: Path, planted: list[str]) -> None:
    bundle = node / "report.tar.gz"
    found(cli, node, "--bundle", str(bundle), "--log", str(node / "node.log"))
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle) as archive:
        files = {each.name: archive.extractfile(each).read().decode() for each in archive}  # type: ignore[union-attr]
    assert {"report/configuration.json", "report/doctor.json", "report/node.log"} <= files.keys()
    assert '"farm[0].name": "farm"' in files["report/configuration.json"]
    assert files["report/node.log"].count("[removed]") == 2 * len(planted)
    for secret in planted:
        assert not [name for name, text in files.items() if secret in text]


def test_log_that_is_not_there_is_named_and_no_bundle_left(cli: Cli, node: Path) -> None:
    bundle, config = node / "report.tar.gz", str(node / "garlicfarm.toml")
    told = cli("doctor", "--config", config, "--bundle", str(bundle), "--log", str(node / "no.log"), exits=2)
    assert f"{node}/no.log: No such file or directory" in told.err
    assert not bundle.exists()


def test_bundle_overwrites_nothing(cli: Cli, node: Path) -> None:
    (there := node / "report.tar.gz").write_text("mine")
    config = str(node / "garlicfarm.toml")
    assert "exists already" in cli("doctor", "--config", config, "--bundle", str(there), exits=2).err
    assert there.read_text() == "mine"
