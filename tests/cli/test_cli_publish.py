"""`garlicfarm publish` against a served node, through the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from garlicfarm.cli import publish
from tests.cli.served import Cli, Served

Capture = pytest.CaptureFixture[str]

T0 = 1_800_000_000_000
LEAF = 43 * "A" + "="
NOBODY = "no member can publish: no recent member reports meta.publishing"
NO_PUBLISHER = "node 1 publishes nothing, even where it is named: it has no [[farm.publisher]]"


class PublishingFarm:
    """The rankings of a farm whose member 2 publishes ``takes`` rankings after an order."""

    def __init__(self, served: Served, takes: int = 2) -> None:
        self.farm = served.node.farm
        self.farm.ranking = self.ranking  # type: ignore[method-assign]
        self.farm.events = [{"index": 7, "date_ms": T0, "text": "member 2 publishes"}]
        self.publisher: int | None = 2
        self.can_publish = [2]
        self.problems: list[str] = []
        self.takes = takes
        self.rows: list[dict[str, Any]] = []

    def ranking(self, *, statuses: bool = False) -> dict[str, Any]:
        ordered = self.farm.commit_index > 0
        self.takes -= ordered
        published = ordered and self.takes < 0
        order = {"by": "local", "date": T0 + 4000, "index": self.farm.commit_index}
        row = {"id": 2, "publisher": True, "index": self.farm.commit_index + published, "eligible": True}
        return {
            "schema": "garlicfarm.ranking/1",
            "farm": "farm",
            "publisher": self.publisher,
            "since": 7,
            "because": "vacant",
            "due_since": 7,
            "interval_ms": 1000,
            "orders": {"publish": order} if ordered else {},
            "publication": {
                "publishing": True,
                "last_published_ms": T0 + 5000 if published else T0 + 1000,
                "can_publish": self.can_publish,
                "leaves": [{"hash": LEAF, "seen": [{"by": 3, "ok": True, "ms": 812}]}],
                "problems": self.problems,
            },
            "members": [row]
            if self.publisher
            else [{"id": 3, "eligible": False, "publisher": False, "why": WHY}],
        }


WHY = ["not eligible: its mode is off"]


def test_publish_now_orders_and_waits_until_the_publisher_reports_a_newer_date(served, cli):
    PublishingFarm(served)
    assert json.loads(cli("publish", "now", "-o", "jsonl").out) == {
        "index": 1,
        "term": 3,
        "publisher": 2,
        "last_published_ms": T0 + 5000,
    }
    assert served.node.farm.log[0].value == repr(("publish", {}, "local")).encode()


def test_publish_now_shows_when_it_was_published_as_a_date(served: Served, cli: Cli) -> None:
    PublishingFarm(served)
    assert cli("publish", "now").out.splitlines() == [
        "INDEX  TERM  PUBLISHER  LAST PUBLISHED",
        "1      3     2          2027-01-15 08:00:05Z",
    ]


def test_publish_now_where_no_member_can_publish_orders_nothing_and_says_why(served, cli):
    farm = PublishingFarm(served)
    farm.can_publish, farm.problems = [], [NOBODY]
    assert cli("publish", "now", exits=1).err == f"error: nothing was ordered: {NOBODY}; {NO_PUBLISHER}\n"
    farm.publisher = None
    why = "no member is eligible (member 3: its mode is off)"
    assert cli("publish", "now", exits=1).err == f"error: nothing was ordered: {why}\n"
    assert served.node.farm.log == []


@pytest.mark.parametrize("options", [["--timeout", "0.5"], []])
def test_publish_now_that_is_not_obeyed_ends_at_a_deadline_with_the_reason(served, cli, monkeypatch, options):
    monkeypatch.setattr(publish, "PATIENCE_S", -1.5)  # of two intervals, 2 s, half a second is left
    farm = PublishingFarm(served, takes=10**9)
    farm.problems = ["member 2 is to publish and reports that it does not"]
    assert cli("publish", "now", *options, exits=124).err == (
        "error: the order is entry 1, and within 0.5 s member 2 did not report that it published; "
        "member 2 is to publish and reports that it does not\n"
    )
    assert len(served.node.farm.log) == 1


def test_publish_now_in_a_farm_that_publishes_nothing_is_an_error(served: Served, cli: Cli) -> None:
    assert "the farm is of the application log" in cli("publish", "now", exits=1).err


def test_publish_show_says_who_publishes_since_when_and_what_is_wrong(served, cli):
    farm = PublishingFarm(served)
    farm.problems = [NOBODY]
    served.commit(b"an order")
    told = {"plugin": "hooks", "required": True, "seen": "seen", "problems": ["it hangs"]}
    told |= {"streams": {"open": 3, "most": 256}, "encryption": "X25519", "refused": {"unsigned": 1}}
    served.say(publishers=[told | {"state": "publishing", "since_ms": T0, "until_ms": T0 + 90_000}])
    assert cli("publish", "show").out.splitlines() == [
        "farm farm: publisher 2 since index 7, 2027-01-15 08:00:00Z; it publishes",
        "  last published  2027-01-15 08:00:01Z",
        "  can publish     2",
        "  last ordered    by local, 2027-01-15 08:00:04Z, entry 1",
        f"  leaf            {LEAF}: reachable, by member 3 in 812 ms",
        f"  problem         {NOBODY}",
        "  node 1, hooks: publishing since 2027-01-15 08:00:00Z, until 2027-01-15 08:01:30Z"
        "; seen; 3 of 256 streams, encryption: X25519, refused: unsigned 1; it hangs",
    ]
    shown = json.loads(cli("publish", "show", "-o", "json").out)
    assert (shown["schema"], shown["since_ms"], shown["publishing"]) == ("garlicfarm.publish/1", T0, True)


def test_publish_show_names_the_reason_why_there_is_no_publisher(served: Served, cli: Cli) -> None:
    PublishingFarm(served).publisher = None
    lines = cli("publish", "show").out.splitlines()
    assert lines[0] == "farm farm: no publisher"
    assert lines[-2:] == [
        "  problem         no member is eligible (member 3: its mode is off)",
        f"  {NO_PUBLISHER}",
    ]
