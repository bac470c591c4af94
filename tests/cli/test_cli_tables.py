"""What a terminal of any width shows of a farm: whole rows, and what to do below them."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console, RenderableType

from garlicfarm.cli.ranking_table import Trends, ranking_view
from garlicfarm.cli.status_table import (
    event_lines,
    feed_lines,
    headline,
    more_lines,
    publisher_lines,
    status_rows,
    status_view,
)
from garlicfarm.cli.tables import sparkline

ERROR = "ssl://farm-host-2.example.org:27150: Connection refused; is the node up, and the port open?"
REASON = "publisher since index 1234567: it was ahead of the one before 3 times in a row"


def status(**changes: Any) -> dict[str, Any]:
    member = {
        "endpoint": "ssl://farm-host-2.example.org:27150?pin=sha256-x",
        "role": "follower",
        "publisher": False,
        "term": 1234,
        "commit": 1234567,
        "applied": 1234567,
        "lag": 33,
        "last_contact_s": 0.2555,
        "rtt_s": 0.0123,
        "transport": "ssl",
        "version": "0.2.0",
        "age_s": 0.3,
        "error": None,
    }
    members = [
        member | {"id": 1, "role": "leader"},
        member | {"id": 2, "publisher": True, "role": "unreachable", "error": ERROR},
        member | {"id": 3, "last_contact_s": 500.0},
    ]
    body: dict[str, Any] = {"farm": "farm", "node": 1, "role": "leader", "leader": 1, "publisher": 2}
    body |= {"fault_tolerance": 1, "needed": 0, "quorum": True, "term": 1234, "commit": 1234567, "events": []}
    body |= {"leader_lost": None, "disk_hangs_s": None, "feeds": []}
    return {**body, "members": members, **changes}


def ranking() -> dict[str, Any]:
    parts = {
        "router_uptime": {"value": 1_000_000, "weight": 20, "reported": True},
        "job_lag": {"value": 0, "weight": 15, "reported": True},
        "remote_sensing": {"value": 500_000, "weight": 5, "reported": False},
    }
    member = {"score": 1_000_000, "mode": "auto", "recent": True, "eligible": True, "index": 1234567}
    member |= {"parts": parts, "reason": REASON}
    members = [member | {"id": node_id, "publisher": node_id == 2} for node_id in (1, 2, 3)]
    return {"index": 5, "publisher": 2, "since": 1234567, "because": "margin", "members": members}


def drawn(what: RenderableType, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return captured.get().splitlines()


def words(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [60, 70, 79])
def test_status_of_a_narrow_terminal_is_whole_and_has_a_line_per_member(width: int) -> None:
    lines = drawn(status_view(status(), width), width)
    header = next(number for number, line in enumerate(lines) if line.startswith("ID"))
    assert lines[header].split() == ["ID", "ROLE", "PUBLISHER", "COMMIT", "LAG", "LAST", "CONTACT"]
    assert [line.split()[0] for line in lines[header + 1 : header + 4]] == ["1", "2", "3"]
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    assert "member 2: Connection refused; is the node up, and the port open?" in words(lines)


@pytest.mark.parametrize("width", [80, 99, 100, 120, 149])
def test_status_cuts_no_figure_and_no_role(width: int) -> None:
    lines = drawn(status_view(status(), width), width)
    header = next(number for number, line in enumerate(lines) if line.startswith("ID"))
    assert header <= 2  # a title of one or two lines
    assert all(len(line) <= width for line in lines)
    assert all("1234567" in line and "33" in line for line in lines[header + 1 : header + 4])
    assert "unreachable" in lines[header + 2]


@pytest.mark.parametrize("width", [60, 79, 80, 100, 150])
def test_ranking_of_every_width_is_whole_and_says_why_in_one_phrase(width: int) -> None:
    trends = Trends()
    trends.add(ranking())
    lines = drawn(
        ranking_view(ranking(), "ranked by Spark up to index 5, lag 0", width, trends=trends), width
    )
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    header = next(line for line in lines if "SCORE" in line).split()
    assert header[-1] == "WHY"
    assert ("PUBLISHER" in header, "ELIGIBLE" in header) == (width >= 80, width >= 100)
    column = next(line for line in lines if "SCORE" in line).index("WHY")
    cells = words([line[column:] for line in lines])
    assert cells.count(REASON) == 3
    assert "PARTS of the score: uptime, job lag, sensing" in words(lines)
    assert "█▁·" in words(lines)


def test_status_of_150_columns_has_one_line_per_member_and_the_cause_of_an_error_first() -> None:
    *_, header, _, second, _ = drawn(status_view(status(), 150), 150)
    assert len(header.split()) == 15  # LAST CONTACT is two words
    assert "300.0 ms  Connec" in second


def test_table_of_80_columns_shows_who_leads_who_publishes_and_who_lags() -> None:
    header = next(line for line in drawn(status_view(status(), 80), 80) if line.startswith("ID"))
    assert header.split() == ["ID", "ENDPOINT", "ROLE", "PUBLISHER", "COMMIT", "LAG", "LAST", "CONTACT"]


def test_title_is_one_line_where_the_terminal_has_place_for_it_however_narrow_the_table_is() -> None:
    title = "ranked by the nodes up to index 1, " + 40 * "x"
    body: dict[str, Any] = {"publisher": None, "members": []}
    assert drawn(ranking_view(body, title, 80), 80)[0] == title


def test_unreachable_member_has_no_mark_of_the_publisher() -> None:
    body = status()
    assert [row["publisher"] for row in status_rows(body)] == [None, None, None]
    assert "publisher 2 (unreachable)" in headline(body)
    alive = [member | {"role": "follower"} for member in body["members"]]
    assert [row["publisher"] for row in status_rows(status(members=alive))] == [None, "*", None]
    assert "publisher 2, term" in headline(status(members=alive))
    assert "*" in words(drawn(ranking_view(ranking(), "", 80), 80))
    assert "*" not in words(drawn(ranking_view(ranking(), "", 80, status=body), 80))


def test_ranking_says_from_whom_the_publisher_took_over_where_the_status_tells() -> None:
    event = {"index": 1234567, "date_ms": 0, "text": "", "publisher": 2, "previous": 1, "because": "margin"}
    shown = words(drawn(ranking_view(ranking(), "", 150, status=status(events=[event])), 150))
    assert shown.count("took over from 1 at index 1234567 (ahead three times in a row)") == 1


def test_headline_counts_the_members_that_a_majority_lacks() -> None:
    assert headline(status()).endswith(", quorum, can lose 1 more")
    lost = status(quorum=False, needed=2, fault_tolerance=0)
    assert headline(lost).endswith(", no quorum: 2 more needed")
    assert headline(status(quorum=False, leader=None)).endswith(", no quorum: no leader seen yet")


def test_farm_that_lost_its_leader_says_whom_and_when_and_what_a_majority_lacks() -> None:
    lost = {"quorum": False, "leader": None, "leader_lost": {"id": 3, "date_ms": 50_524_000}}
    assert headline(status(**lost)).endswith(", no quorum: lost leader 3 at 14:02:04 UTC")
    said = headline(status(**lost, needed=1))
    assert said.endswith(", no quorum: lost leader 3 at 14:02:04 UTC, 1 more needed")
    told = [{"date_ms": 50_520_000, "text": "member 3 leads in term 1"}]
    assert event_lines(status(**lost, events=told)) == [
        "14:02:00  member 3 leads in term 1",
        "14:02:04  leader 3 lost, and no other since",
    ]


def test_farm_without_quorum_has_no_publisher_but_a_name() -> None:
    alive = [member | {"role": "follower"} for member in status()["members"]]
    body = status(quorum=False, leader=None, members=alive)
    assert "publisher none (2 was named), " in headline(body)
    assert [row["publisher"] for row in status_rows(body)] == [None, None, None]
    shown = words(drawn(ranking_view(ranking(), "ranked", 80, status=body), 80))
    assert "ranked, publisher none (2 was named) " in shown
    assert "*" not in shown


def test_dead_member_is_not_shown_as_recent() -> None:
    rows = drawn(ranking_view(ranking(), "", 120, status=status()), 120)
    recent = [line[line.index("auto") :].split()[1] for line in rows if "auto" in line]
    assert recent == ["yes", "no", "yes"]


def test_last_contact_is_shown_only_between_a_leader_and_its_followers() -> None:
    def shown(**changes: Any) -> list[str | None]:
        return [row["last contact"] for row in status_rows(status(**changes))]

    assert shown() == [None, "255.5 ms", "500.0 s"]
    assert shown(node=2, role="follower") == ["255.5 ms", None, None]
    assert shown(node=2, role="candidate", leader=None) == [None, None, None]


def test_events_are_lines_with_their_time_the_newest_last() -> None:
    events = [{"date_ms": 50_520_000 + 1000 * n, "text": f"event {n}"} for n in range(9)]
    assert event_lines(status(events=events), 2) == ["14:02:07  event 7", "14:02:08  event 8"]
    assert event_lines(status(), 2) == []


def test_trend_has_a_bar_per_ranking_on_one_scale() -> None:
    trends = Trends()
    for index, scores in enumerate([(500_000, 600_000), (550_000, None), (600_000, 500_000)], 1):
        rows = [{"id": member, "score": score} for member, score in enumerate(scores, 1)]
        trends.add({"index": index, "members": rows})
        trends.add({"index": 1, "members": rows})  # an older one adds nothing
    assert (trends.text(1), trends.text(2), trends.text(3)) == ("▁▅█", "█·▁", None)
    assert sparkline([0, None, 1000], 0, 1000) == "▁·█"


def test_table_does_not_let_another_member_command_the_terminal() -> None:
    body = status()
    body["members"][1]["version"] = "1\x1b[2J"
    body["members"][1]["error"] = "\x1b[2J"
    for width in (100, 200):
        shown = "\n".join(drawn(status_view(body, width), width))
        assert "\x1b" not in shown
        assert "\\u001b[2J" in shown


def test_status_names_the_level_that_could_be_raised_and_what_it_brings() -> None:
    level = {"in_force": 0, "highest": 2, "brings": {"1": "one", "2": "two"}, "hindered_by": []}
    can = "level 0; level 2 can be raised: `garlicfarm farm level raise` (it brings: one; two)"
    assert more_lines(status(level=level)) == [can]
    assert can in words(drawn(status_view(status(level=level), 150), 150))
    hindered = status(level={**level, "hindered_by": ["member 3 is not connected"]})
    assert more_lines(hindered) == ["level 0; `garlicfarm farm level show` says what hinders level 2"]
    assert more_lines(status(level={**level, "in_force": 2, "brings": {}})) == []
    assert more_lines(status()) == []  # of an older node


def test_status_shows_the_commit_of_a_program_and_since_when_a_member_is_in_trouble() -> None:
    body = status()
    body["members"][0] |= {"revision": "0123456789ab"}
    body["members"][2] |= {"error": "it is stuck", "trouble": "it is stuck", "trouble_since_ms": 50_524_000}
    rows = status_rows(body)
    assert [row["version"] for row in rows] == ["0.2.0 (0123456789ab)", "0.2.0", "0.2.0"]
    assert [row["error"] for row in rows][2] == "it is stuck (since 14:02:04 UTC)"
    body["members"][2] |= {"trouble_since_ms": None}
    assert status_rows(body)[2]["error"] == "it is stuck"


def test_status_says_what_the_node_publishes_and_why_not() -> None:
    assert publisher_lines(status()) == []  # of the application log, or of an older node
    (line,) = publisher_lines(status(publishers=[]))
    assert line == "node 1 publishes nothing, even where it is named: it has no [[farm.publisher]]"
    expired = "keys of member 3 have expired: make new bundles with `garlicfarm keys offline`"
    assert publisher_lines(status(publishers=[], problems=[expired], key_expiries={"3": 1}))[0] == expired
    assert len(publisher_lines(status(publishers=[], key_expiries={"3": 1}))) == 1  # told in one place
    leaf, _ = publisher_lines(status(publishers=[], published_leaves=[{"hash": "A=", "seen": []}]))
    assert leaf == "leaf A= of member 2: not confirmed by any other member"
    assert len(publisher_lines(status(publishers=[], published_leaves=[{"hash": "A=", "seen": None}]))) == 1
    measured = publisher_lines(status(publishers=[], measured={"1": 65, "2": 85, "3": 85}))[0]
    assert measured == "measured of the scores: 85 % of members 2, 3; 65 % of member 1"
    sam = {"plugin": "sam", "required": True, "state": "publishing", "since_ms": 3_600_000, "problems": []}
    hooks = {"plugin": "hooks", "required": False, "state": "not ready", "since_ms": None, "until_ms": None}
    lines = publisher_lines(
        status(
            publishers=[
                sam | {"until_ms": 7_200_000, "seen": "seen"},
                hooks | {"problems": ["exit 1: no\x1b[2J"]},
            ]
        )
    )
    streams = {"streams": {"open": 3, "most": 256}, "refused": {}, "since_ms": None, "until_ms": None}
    for kind, name in {"java": "Java I2P", "i2pd": "i2pd"}.items():
        (line,) = publisher_lines(status(publishers=[sam | streams | {"router": kind}]))
        assert line == f"node 1, publisher sam ({name}): publishing; 3 of 256 streams"
    (line,) = publisher_lines(status(publishers=[sam | streams]))
    assert line == "node 1, publisher sam: publishing; 3 of 256 streams"
    assert lines == [
        "node 1, publisher sam: publishing since 01:00:00 UTC, until 02:00:00; seen",
        "node 1, publisher hooks: not ready; exit 1: no\x1b[2J",
    ]
    assert "\x1b" not in "\n".join(
        drawn(status_view(status(publishers=[hooks | {"problems": lines}]), 100), 100)
    )


def test_status_says_how_far_the_feeds_are_and_why_not_further() -> None:
    assert feed_lines(status()) == []  # of an older node
    assert feed_lines(status(feeds=[])) == []
    dafka = {"name": "dafka", "plugin": "dafka", "state": "running", "index": 7, "lag": 0, "problem": None}
    lines = feed_lines(
        status(feeds=[dafka, dafka | {"name": "files", "state": "failed", "lag": 5, "problem": "no\x1b[2J"}])
    )
    assert lines == [
        "node 1, feed dafka: running, up to date",
        "node 1, feed files: failed, 5 entries behind; no\x1b[2J",
    ]
    shown = "\n".join(drawn(status_view(status(feeds=[dafka | {"problem": "no\x1b[2J"}]), 100), 100))
    assert "node 1, feed dafka: running" in shown
    assert "\x1b" not in shown
