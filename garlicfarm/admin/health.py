"""The health of a farm as one word, what is wrong with the feeds of a node, and how the rankings of queries
compare with its own; from the bodies of ``GET …/status`` and ``GET …/rankings``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

Health = Literal["healthy", "degraded", "no-quorum"]


def judge(status: Mapping[str, Any]) -> Health:
    """Degraded: the farm can lose fewer members than its size allows, the answering node's disk hangs,
    or there are problems (`garlicfarm.publishing.troubles`). No quorum: that node knows no leader, or sees
    no majority."""
    whole = status["fault_tolerance"] == (len(status["members"]) - 1) // 2
    good = whole and status["disk_hangs_s"] is None and not status.get("problems")
    return "no-quorum" if not status["quorum"] else "healthy" if good else "degraded"


def publishing(status: Mapping[str, Any]) -> int | None:
    """The member that publishes, as far as the node that answered can tell: the named one, unless the node
    cannot reach it, or there is no quorum. The named one then stops when its lease ends."""
    named: int | None = status["publisher"]
    lost = any(row["id"] == named and row["role"] == "unreachable" for row in status["members"])
    return None if lost or not status["quorum"] else named


def quorum_loss(status: Mapping[str, Any]) -> str:
    """How the node that answered lost sight of a leader, as the rest of a sentence; "" where it knows one."""
    if status["leader"]:
        return ""
    lost = status["leader_lost"]
    return f"lost leader {lost['id']} at {utc(lost['date_ms'])} UTC" if lost else "no leader seen yet"


def events(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What happened, oldest first: what the log tells, and that the farm has no leader now, which no log can
    tell."""
    told = list(status["events"])
    if lost := status["leader_lost"]:
        told.append({"date_ms": lost["date_ms"], "text": f"leader {lost['id']} lost, and no other since"})
    return told


def utc(date_ms: int) -> str:
    return f"{datetime.fromtimestamp(date_ms // 1000, UTC):%H:%M:%S}"


def plugin_text(publisher: Mapping[str, Any]) -> str:
    """The plugin of a publisher, from its row, and which router it has found there, if it has."""
    names = {"i2pd": "i2pd", "java": "Java I2P"}
    router = publisher.get("router")
    return f"{publisher['plugin']} ({names[router]})" if router else str(publisher["plugin"])


def streams_text(publisher: Mapping[str, Any]) -> str:
    """The streams of a publisher, from its row: how many are open, and what was refused; "" where it has
    none."""
    if (streams := publisher.get("streams")) is None:
        return ""
    causes = sorted(publisher["refused"].items(), key=lambda each: -each[1])
    told = ", ".join(f"{cause} {count:,}" for cause, count in causes)
    return f"{streams['open']} of {streams['most']} streams" + (f", refused: {told}" if told else "")


def feed_word(feed: Mapping[str, Any]) -> str:
    """The state of a feed in a word, from its row: "failed"; "blocked", if it starts or runs and something
    keeps it from its work; otherwise its ``state``."""
    return "blocked" if feed["problem"] and feed["state"] != "failed" else str(feed["state"])


def feed_problems(status: Mapping[str, Any]) -> dict[str, str]:
    """For each feed of the node that answered that is failed or blocked: why, and what to do, as the rest of
    a sentence. The health of the farm does not depend on feeds."""
    remedies = {
        "failed": "fix that; the node restarts the feed by itself",
        "blocked": "check its destination and the node's log; the feed continues by itself",
    }
    return {
        feed["name"]: f"{word}: {feed['problem']}; {remedies[word]}"
        for feed in status["feeds"]
        if (word := feed_word(feed)) in remedies
    }


def level_word(status: Mapping[str, Any]) -> str:
    """The level of a farm that could be raised, and how, or that something hinders it; "" where the program
    of the node that answered can no higher one."""
    level = status.get("level")
    if not level or level["in_force"] >= level["highest"]:
        return ""
    now, highest = f"level {level['in_force']}", level["highest"]
    if level["hindered_by"]:
        return f"{now}; `garlicfarm farm level show` says what hinders level {highest}"
    gain = brings(level, highest)
    return f"{now}; level {highest} can be raised: `garlicfarm farm level raise` (it brings: {gain})"


def brings(level: Mapping[str, Any], to: int) -> str:
    """What the levels above the one in force bring, up to ``to``, from the status's ``level``."""
    return "; ".join(
        level["brings"][str(each)]
        for each in range(level["in_force"] + 1, to + 1)
        if str(each) in level["brings"]
    )


def program_word(row: Mapping[str, Any]) -> str | None:
    """Which program a member runs, from its row in the status: its version, and the commit if it is known."""
    version: str | None = row["version"]
    revision = row.get("revision")
    return f"{version} ({revision})" if version and revision else version


def since(row: Mapping[str, Any]) -> str:
    """Since when a member is in trouble, from its row in the status, as the end of a sentence; "" where that
    is not known."""
    since_ms = row.get("trouble_since_ms")
    return f" since {utc(since_ms)} UTC" if row.get("trouble") and since_ms else ""


def ranking_word(row: Mapping[str, Any]) -> str:
    """How the newest compared ranking of a query relates to the node's own, from the query's row."""
    compared = row["comparison"]
    if compared is None:
        return "not compared yet"
    if compared["equal"]:
        return f"equal at index {compared['asof']}"
    return f"different at index {compared['asof']}: {compared['difference']}"
