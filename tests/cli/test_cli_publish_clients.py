"""`garlicfarm publish ban` and its siblings against a served node, through the command line."""

from __future__ import annotations

import ast
import json
import time
from typing import Any

import pytest

from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import b32_of_hash, encode
from tests.cli.served import Cli, Served
from tests.publishing.scripted_log import destination

DESTINATION = destination(1)
HASH = encode(destination_hash(DESTINATION))
B32 = b32_of_hash(destination_hash(DESTINATION))
T0 = 1_800_000_000_000


def ordered(served: Served) -> list[tuple[str, dict[str, Any]]]:
    return [ast.literal_eval(entry.value.decode())[:2] for entry in served.node.farm.log]


def lists(served: Served, **clients: dict[str, Any]) -> None:
    """Have the node answer with a policy of these lists."""
    farm = served.node.farm
    farm.level["in_force"] = 3
    body = farm.policy() | {"clients": {"banned": {}, "allowed": {}} | clients}
    farm.policy = lambda: body  # type: ignore[method-assign]


@pytest.mark.parametrize("client", [B32, B32[:52].upper() + ".b32.i2p"])
def test_ban_lasts_for_an_hour_or_as_long_as_it_says(served: Served, cli: Cli, client: str) -> None:
    lists(served)
    for options, lasts_ms in (([], 3_600_000), (["--for", "90s"], 90_000)):
        before_ms = time.time_ns() // 1_000_000
        cli("publish", "ban", client, *options)
        after_ms = time.time_ns() // 1_000_000
        action, args = ordered(served)[-1]
        assert (action, args["hash"]) == ("ban", HASH)
        assert before_ms + lasts_ms <= args["until_ms"] <= after_ms + lasts_ms
    cli("publish", "ban", client, "--forever")
    assert ordered(served)[-1] == ("ban", {"hash": HASH, "until_ms": None})


@pytest.mark.parametrize("client", [HASH, B32, DESTINATION])
def test_client_may_be_named_by_address_hash_or_destination(served: Served, cli: Cli, client: str) -> None:
    lists(served)
    for action in ("unban", "allow", "disallow"):
        cli("publish", action, "--", client)
    assert ordered(served) == [(action, {"hash": HASH}) for action in ("unban", "allow", "disallow")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ban", "site.i2p"], "CLIENT must be an address of 52 characters and .b32.i2p"),
        (["ban", "a" * 56 + ".b32.i2p"], "CLIENT must be"),
        (["ban", "abc.b32.i2p"], "CLIENT must be"),
        (["ban", "é" * 52 + ".b32.i2p"], "CLIENT must be"),
        (["allow", "--", HASH[:-1]], "CLIENT must be"),
        (["unban", DESTINATION[:-4]], "CLIENT must be"),
        (["disallow", "A" * 512], "CLIENT must be"),
        (["ban", B32, "--for", "1h", "--forever"], "give --for or --forever, not both"),
        (["ban", B32, "--for", "-1h"], "must be seconds, or a number and one of"),
        (["ban", B32, "--for", "0"], "at least 1ms"),
        (["ban", B32, "--for", "99999d"], "TIME must end before the year 2106"),
    ],
)
def test_nonsense_is_told_and_orders_nothing(
    served: Served, cli: Cli, arguments: list[str], told: str
) -> None:
    lists(served)
    assert told in cli("publish", *arguments, exits=2).err
    assert ordered(served) == []


def test_below_level_3_nothing_is_ordered(served: Served, cli: Cli) -> None:
    for action in ("ban", "unban", "allow", "disallow"):
        said = cli("publish", action, B32, exits=1).err
        assert f"nothing was changed: {action} can be set from level 3 on, and the farm is at level 1" in said
    assert ordered(served) == []


def test_who_is_served_is_said_where_the_access_list_changes(served: Served, cli: Cli) -> None:
    by = {"by": "alice", "date": T0, "index": 7, "until_ms": None}
    lists(served, allowed={HASH: by})
    assert "only clients on the access list are served: 1" in cli("publish", "allow", B32).err
    lists(served)
    said = cli("publish", "disallow", B32).err
    assert "the access list is empty: all clients are served that are not banned" in said


def test_lists_are_shown_without_bans_that_are_over(served: Served, cli: Cli) -> None:
    until_ms = 4_000_000_000_000
    by = {"by": "alice", "date": T0, "index": 7}
    banned = {
        HASH: by | {"until_ms": until_ms},
        encode(bytes(32)): by | {"until_ms": T0 - 10**12},
    }
    lists(served, banned=banned, allowed={HASH: by | {"until_ms": None}})
    assert cli("publish", "clients").out.splitlines() == [
        f"{'CLIENT':60}  IS       BY     INDEX  UNTIL                 DATE",
        f"{B32}  banned   alice  7      2096-10-02 07:06:40Z  2027-01-15 08:00:00Z",
        f"{B32}  allowed  alice  7      -                     2027-01-15 08:00:00Z",
    ]
    body = json.loads(cli("publish", "clients", "-o", "json").out)
    assert body["schema"] == "garlicfarm.publish-clients/1"
    assert body["rows"][0] == {
        "client": B32,
        "is": "banned",
        "by": "alice",
        "index": 7,
        "until_ms": until_ms,
        "date_ms": T0,
    }
    lists(served)
    assert cli("publish", "clients").out == ""
