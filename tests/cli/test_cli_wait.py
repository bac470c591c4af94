"""`garlicfarm wait`: what it waits for, and what it says when that does not come."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from garlicfarm.cli import run
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.setup.provision import MemberPlan, create_node
from tests.cli.served import Served

Capture = pytest.CaptureFixture[str]


UNMET = {
    "leader": "no leader",
    "publisher": "no publisher",
    "healthy": "not healthy",
    "caught-up": "not caught up",
}


def waited_in_vain(capsys: Capture, wanted: str, *more: str) -> str:
    """What was seen last within the deadline, which is longer where a busy machine took it all to ask."""
    for timeout_s in ("0.5", "2", "8", "32", "128"):
        assert run(["wait", "--for", wanted, "--timeout", timeout_s, *more]) == 124
        told = capsys.readouterr()
        assert told.out == ""
        head, _, seen = told.err.partition(" s: ")
        assert head == f"error: {UNMET[wanted]} within {timeout_s}"
        if "no node has answered" not in seen:
            break
    return seen


@pytest.mark.parametrize(
    ("wanted", "there", "lacking"),
    [
        ("leader", {}, {"leader": None}),
        ("publisher", {}, {"publisher": None}),
        ("healthy", {"fault_tolerance": 1}, {"fault_tolerance": 0}),
        ("healthy", {"fault_tolerance": 1}, {"fault_tolerance": 1, "quorum": False}),
        ("caught-up", {"applied": 7, "leader_commit": 7}, {"applied": 6, "leader_commit": 7}),
        ("caught-up", {"applied": 7, "leader_commit": 6}, {"applied": 7, "leader_commit": None}),
    ],
)
def test_wait_returns_once_it_is_so_and_not_before(served, capsys, wanted, there, lacking):
    body = served.say(**lacking)
    assert "farm farm: leader " in waited_in_vain(capsys, wanted)
    body["problems"] = ["keys of member 2 have expired"]
    assert ("keys of member 2 have expired; farm " in waited_in_vain(capsys, wanted)) == (wanted == "healthy")
    del body["problems"]
    later = threading.Timer(
        0.5, lambda: body.update(served.node.farm.__class__.status(served.node.farm) | there)
    )
    later.start()
    assert run(["wait", "--for", wanted, "--timeout", "240"]) == 0
    later.join()


SILENT = {"eligible": False, "why": ["not recent: no status yet", "not eligible: it is not recent"]}
WITHOUT_LEAF = {
    "eligible": False,
    "why": [
        "recent: 0 of 2 other members have posted 3 times since index 9; it would take 2",
        "not eligible: no recent member reports a usable leaf",
    ],
}


@pytest.mark.parametrize(
    ("lacking", "rows", "why"),
    [
        ({"leader": None, "quorum": False}, [], "there is no leader, which takes a majority of the members"),
        ({"quorum": False}, [], "there is no quorum: too few of the 3 members are reachable"),
        ({"application": "log"}, [], "the application of this farm, log, names no publisher"),
        (
            {},
            [{"id": 2, **WITHOUT_LEAF}, {"id": 1, **WITHOUT_LEAF}, {"id": 3, **SILENT}],
            "no member is eligible (members 1, 2: no recent member reports a usable leaf; "
            "member 3: it is not recent)",
        ),
        ({}, [{"id": 3, **SILENT}, {"id": 1, "eligible": True, "why": []}], "member 1 is eligible"),
    ],
)
def test_wait_for_a_publisher_says_why_there_is_none(served, capsys, lacking, rows, why):
    served.say(publisher=None, **lacking)
    served.node.farm.ranking = lambda *, statuses=False: {"members": rows}  # type: ignore[method-assign]
    assert waited_in_vain(capsys, "publisher").startswith(why)


@pytest.mark.parametrize(
    ("port", "seen"), [(1, "https://127.0.0.1:1: "), (0, "no node runs in ")], ids=["given", "any"]
)
def test_wait_for_a_node_that_is_not_there_yet_is_no_error_before_the_deadline(port, seen, tmp_path, capsys):
    member = MemberPlan(endpoint="ssl://127.0.0.1:27150", admin_url=f"https://127.0.0.1:{port}")
    create_node(tmp_path, 1, member)
    assert seen in waited_in_vain(capsys, "leader", "--config", str(tmp_path / "garlicfarm.toml"))


def test_wait_does_not_go_on_with_a_wrong_password(served: Served, capsys: Capture, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    write_private_file(wrong, b"no")
    as_anna = ["--user", "anna", "--password-file", str(wrong)]
    assert run(["wait", "--for", "leader", "--timeout", "240", *as_anna]) == 4
