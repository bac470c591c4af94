"""What must have come about in runs of scripts at other routers than Debian 12's i2pd."""

from __future__ import annotations

from typing import Any

Told = list[dict[str, Any]]


def by_name(told: Told) -> dict[str, dict[str, Any]]:
    """Of what came about twice, the last."""
    return {each["what"]: each for each in told}


def service_was_served(told: Told, *, lost_at_most: int) -> None:
    """By `service_over_i2cp`, which waits for the answers of the right one: it has ended well if it told all.
    ``lost_at_most``: requests of a client at an orderly move."""
    assert [each["what"] for each in told] == [
        *("standby", "unpublished", "elected", "figures", "moved", "drained", "stays"),
        *("gone", "survived", "restarted", "back"),
    ]
    named = by_name(told)
    assert named["unpublished"]["counts"] == [0, 0, 0, 0]
    assert named["moved"]["text"] == named["stays"]["text"] == "node 2"
    assert named["stays"]["lost"] <= lost_at_most
    assert named["drained"]["has_ended"]


def bundles_were_replaced(told: Told, *, lost_at_most: int) -> None:
    """By `keys_over_i2cp`, whose members on standby publish nothing."""
    named = by_name(told)
    assert named["unpublished"]["counts"] == [0, 0, 0]
    assert named["standby"] == {"what": "standby", "is_ready": True, "is_new": True}
    assert "holds new keys" in named["moved"]["problems"][0]
    assert named["moved"]["text"] == "node 2"
    assert named["moved"]["lost"] <= lost_at_most
    assert named["back"]["is_new"]
    assert named["back"]["text"] == "node 1"
    assert named["alone"]["is_new"]
    assert named["alone"]["is_ready"]


def sam_was_fetched(told: Told) -> None:
    """By `sam_over_i2p`."""
    assert [each["what"] for each in told] == [
        *("no-sam", "no-sam"),
        *("published", "fetched") * 2,
        "killed",
        *("published", "fetched"),
        *("hangs", "published"),
        *("published", "fetched"),
    ]


def meta_was_stored(told: Told) -> None:
    """By `meta_over_i2cp`."""
    assert [each["counts"] for each in told if each["what"] == "stored"] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert told[-1] == {"what": "retired", "is_publishing": False}
