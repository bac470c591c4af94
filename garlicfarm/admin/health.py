"""The health of a farm as one word, what is wrong with the feeds of a node, and how the rankings of queries
compare with its own; from the bodies of ``GET …/status`` and ``GET …/rankings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["Health", "feed_problems", "feed_word", "judge", "ranking_word"]

Health = Literal["healthy", "degraded", "no-quorum"]


def judge(status: Mapping[str, Any]) -> Health:
    """Degraded: the farm can lose fewer members than its size allows, the disk of the node that answered
    hangs, or there are problems: nobody publishes, a clock is wrong. No quorum: that node knows no leader, or
    sees no majority."""
    whole = status["fault_tolerance"] == (len(status["members"]) - 1) // 2
    # A node of 0.1 tells neither.
    good = whole and status.get("disk_hangs_s") is None and not status.get("problems")
    return "no-quorum" if not status["quorum"] else "healthy" if good else "degraded"


def feed_word(feed: Mapping[str, Any]) -> str:
    """The state of a feed in a word, from its row: "failed"; "blocked", if it starts or runs and something
    keeps it from its work; otherwise its ``state``."""
    return "blocked" if feed["problem"] and feed["state"] != "failed" else str(feed["state"])


def feed_problems(status: Mapping[str, Any]) -> dict[str, str]:
    """For each feed of the node that answered that is failed or blocked: why, and what to do, as the rest of
    a sentence. The health of the farm does not depend on feeds."""
    remedies = {
        "failed": "mend that; the node starts the feed again by itself",
        "blocked": "check its destination and the node's log; the feed continues by itself",
    }
    return {
        feed["name"]: f"{word}: {feed['problem']}; {remedies[word]}"
        for feed in status.get("feeds") or ()  # a node of 0.1 has none
        if (word := feed_word(feed)) in remedies
    }


def ranking_word(row: Mapping[str, Any]) -> str:
    """How the newest compared ranking of a query relates to the node's own, from the query's row."""
    compared = row["comparison"]
    if compared is None:
        return "not compared yet"
    if compared["equal"]:
        return f"equal at index {compared['asof']}"
    return f"different at index {compared['asof']}: {compared['difference']}"
