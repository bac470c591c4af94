"""What a terminal of any width shows of a farm: whole rows, and what to do below them."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from garlicfarm.cli.rank import ranking_table
from garlicfarm.cli.remote import table

ERROR = "ssl://farm-host-2.example.org:27150: Connection refused; is the node up, and the port open?"
WHY = ["job_lag: not reported", "not recent: 2 of 2 other members have posted 3 times since index 123456"]


def status() -> dict[str, Any]:
    member = {
        "endpoint": "ssl://farm-host-2.example.org:27150?pin=sha256-x",
        "role": "unreachable",
        "publisher": True,
        "term": 1234,
        "commit": 1234567,
        "applied": 1234567,
        "lag": 33,
        "last_contact_s": 0.2555,
        "rtt_s": 0.0123,
        "transport": "ssl",
        "version": "0.1.0",
        "age_s": 0.3,
        "error": ERROR,
    }
    body: dict[str, Any] = {"farm": "farm", "leader": 1, "publisher": 1, "fault_tolerance": 1, "quorum": True}
    body |= {"term": 1234, "commit": 1234567}
    return body | {"members": [member | {"id": node_id} for node_id in (1, 2, 3)]}


def ranking() -> dict[str, Any]:
    member = {"score": 1_000_000, "mode": "auto", "recent": True, "eligible": True, "index": 1234567}
    members = [member | {"id": node_id, "publisher": node_id == 1, "why": WHY} for node_id in (1, 2, 3)]
    return {"publisher": 1, "since": 1234567, "because": "ineligible", "members": members}


def drawn(which: str, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(
            table(status(), width) if which == "status" else ranking_table(ranking(), "title", width)
        )
    return captured.get().splitlines()


@pytest.mark.parametrize("which", ["status", "ranking"])
@pytest.mark.parametrize("width", [80, 99, 100, 120, 149])
def test_table_below_150_columns_has_one_line_per_member_and_cuts_no_figure(which: str, width: int) -> None:
    lines = drawn(which, width)
    header = next(number for number, line in enumerate(lines) if line.startswith(("ID", "RANK")))
    assert header <= 2  # a title of one or two lines
    assert len(lines) == header + 1 + 3
    assert all(len(line) <= width for line in lines)
    for figure in ("1234567", "unreachable", "33") if which == "status" else ("1000000", "1234567"):
        assert all(figure in line for line in lines[header + 1 :])
    assert "…" in lines[-1]


def test_ranking_of_150_columns_says_why_in_full() -> None:
    said = " ".join(drawn("ranking", 150))
    assert all(word in said for word in " ".join(WHY).split())
    assert "…" not in said


def test_status_of_150_columns_has_one_line_per_member_and_the_cause_of_an_error_first() -> None:
    *_, header, _, _, last = drawn("status", 150)
    assert len(header.split()) == 15  # LAST CONTACT is two words
    assert "300.0 ms  Connec" in last


def test_table_of_80_columns_shows_who_leads_who_publishes_and_who_lags() -> None:
    header = drawn("status", 80)[-4].split()
    assert header == ["ID", "ENDPOINT", "ROLE", "PUBLISHER", "COMMIT", "LAG", "LAST", "CONTACT"]
    assert drawn("ranking", 80)[-4].split()[-1] == "WHY"


def test_table_does_not_let_another_member_command_the_terminal() -> None:
    body = status()
    body["members"][1]["version"] = "1\x1b[2J"
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(table(body, 200))
    assert "\x1b" not in captured.get()
    assert "1\\u001b[2J" in captured.get()
