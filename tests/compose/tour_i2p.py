"""A tour of the profile ``i2p`` of compose.yaml, each step asserted: up, post, kill the leader, down.

``make tour-i2p``. The leader's router dies with it. Where no engine can be had: see ``tour.py``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from tests.compose.tour import (
    POLL_S,
    PROJECT,
    compose,
    garlicfarm,
    has,
    health,
    log_values,
    main,
    post,
    say,
    settled,
    status,
    until,
)
from tests.i2p.echo import Side, silent

NODES = ("i2p1", "i2p2", "i2p3")
RANGE = IPv4Network("198.18.0.0/15")
UP_TIMEOUT_S = 300.0
REACHED_S = 150.0  # some 50 s
NETWORKS = 3
"""In one of many starts two routers never get through to each other, for reasons inside i2pd: then all
begins anew, with other keys."""
PATIENCE_S = 40.0  # the preset's longest silence before an election
PROXY = "http://127.0.0.1:4444"
FETCH = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=8).read().decode().strip())"
SLACK_S = 30.0  # what a vote and a look at it may take on a busy machine


def check_walls() -> None:
    """No service has privileges, or an outer address; what speaks I2P reaches nothing outside."""
    config = json.loads(compose("config", "--format", "json"))
    services = config["services"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"], name
        assert not service.keys() & {"cap_add", "devices", "privileged"}, name
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ())), name
    for number in (1, 2, 3):
        assert services[f"i2p{number}"]["network_mode"] == f"service:router{number}"
        assert list(services[f"router{number}"]["networks"]) == ["i2p"]
    assert services["i2p-init"]["network_mode"] == "none"
    network = config["networks"]["i2p"]
    assert network["internal"]
    assert IPv4Network(network["ipam"]["config"][0]["subnet"]).subnet_of(RANGE)


def read_routers(node: str) -> set[int]:
    """The members that have posted figures of their router."""
    posted = [json.loads(value) for value in log_values(node)]
    return {each["id"] for each in posted if each.get("router", {}).get("uptime")}


def led(node: str, *, without: int) -> dict[str, Any]:
    """The farm as ``node`` sees it, once another than ``without`` leads it."""
    seen = status(node)
    return seen if seen and seen["leader"] not in (None, without) else {}


def site() -> str:
    """The address of the site, as any node knows it."""
    shown = compose(
        "exec", "-T", NODES[0], "garlicfarm", "keys", "show", "-o", "json", "data/secrets/site.bundle"
    )
    return f"http://{json.loads(shown)['b32']}/"


def fetched(number: int, address: str) -> str:
    """What the site says, fetched through a router's proxy; "" where there is no answer."""
    environment = ("--env", f"http_proxy={PROXY}")
    node = f"i2p{number}"
    return compose("exec", "-T", *environment, node, "python", "-c", FETCH, address, check=False).strip()


def leads(number: int) -> dict[str, Any]:
    """The farm, once that node leads it."""
    seen = status(f"i2p{number}")
    return seen if seen and seen["leader"] == number and seen["role"] == "leader" else {}


def connected() -> bool:
    """Start it; whether every node comes to reach every other one, once more so much later than the
    routers do. False: two routers do not."""
    compose("up", "--detach", *NODES, timeout_s=UP_TIMEOUT_S)
    for _ in range(2):
        deadline = time.monotonic() + REACHED_S
        while time.monotonic() < deadline:
            seen = [status(node) for node in NODES]
            if all(one and all(each["role"] != "unreachable" for each in one["members"]) for one in seen):
                return True
            time.sleep(POLL_S)
        pairs = silent(sides())
        if pairs:
            say(", ".join(f"router{one} hears nothing from router{other}" for one, other in pairs))
            return False
    raise AssertionError(f"all routers get through to each other, and not all nodes: {seen}")


def sides() -> dict[int, Side]:
    """The routers, each seen from the container of its node."""
    [seen, *_] = filter(None, map(status, NODES))
    found = {}
    for member in seen["members"]:
        python = ("docker", "exec", "--interactive", f"{PROJECT}-i2p{member['id']}-1", "python")
        found[member["id"]] = Side(member["endpoint"].removeprefix("i2p://"), 27150, python=python)
    return found


def tour() -> None:
    check_walls()
    for _ in range(NETWORKS):
        if connected():
            break
        say("another network")
        compose("down", "--volumes", "--timeout", "5", timeout_s=UP_TIMEOUT_S)
    else:
        raise AssertionError(f"{NETWORKS} networks, in each of which two routers did not get through")
    compose("up", "--detach", "--wait", *NODES, timeout_s=UP_TIMEOUT_S)
    running = set(compose("ps", "--services").split())
    kinds = ("i2p", "router", "site")
    assert running == {f"{kind}{number}" for kind in kinds for number in (1, 2, 3)}, running
    say("up: three nodes, their routers and their sites run, and no others")

    first = until("a leader and a publisher", lambda: settled("i2p1"))
    endpoints = [member["endpoint"] for member in first["members"]]
    assert len(endpoints) == 3
    assert all(each.startswith("i2p://") and each.endswith(".b32.i2p:27150") for each in endpoints), endpoints
    until("a farm that can lose one more", lambda: health("i2p1") == 0)
    until("every router's figures", lambda: read_routers("i2p1") == {1, 2, 3})
    say(f"status: leader {first['leader']}, publisher {first['publisher']}, healthy, routers are read")

    posted = [post("i2p2", "through a tunnel")]
    for node in NODES:
        until(f"the entry at {node}", partial(has, node, posted))
    say("post: the entry is committed, and every node has it")

    first = until("a leader and a publisher", lambda: settled("i2p1"))
    publisher, address = first["publisher"], site()
    visitor, newcomer = (number for number in (1, 2, 3) if number != publisher)
    until("the site", lambda: fetched(visitor, address) == f"node {publisher}")
    say(f"site: node {publisher} serves {address}, fetched through the router of node {visitor}")

    if first["leader"] != publisher:
        garlicfarm(f"i2p{first['leader']}", "leader", "stepdown", "--to", str(publisher))
        first = until("the publisher as the leader", lambda: leads(publisher))
    leader = publisher
    others = [node for node in NODES if node != f"i2p{leader}"]
    compose("kill", "--signal", "KILL", f"i2p{leader}", f"router{leader}")
    killed = time.monotonic()
    second = until("a new leader", lambda: led(others[0], without=leader))
    took_s = time.monotonic() - killed
    assert took_s < PATIENCE_S + SLACK_S, f"a new leader after {took_s:.0f} s"
    assert second["term"] > first["term"], (first["term"], second["term"])
    # A follower notices later, by what the dead one does not post.
    until("a leader that can lose none", lambda: health(f"i2p{second['leader']}") == 6)
    posted.append(post(others[0], "without the first leader and its router"))
    until(f"both entries at {others[1]}", lambda: has(others[1], posted))
    say(f"killed i2p{leader} and its router: leader {second['leader']} after {took_s:.0f} s, degraded")

    def served() -> str:
        return fetched(newcomer, address)

    until("the site, from another node", lambda: served() in {f"node {visitor}", f"node {newcomer}"})
    took_s = time.monotonic() - killed
    say(f"site: {served() or 'another node'} serves it to a newcomer, {took_s:.0f} s after the kill")


if __name__ == "__main__":
    os.environ["I2P_NET"] = "198.19.78"  # beside one that somebody looks at
    sys.exit(main(tour, "i2p1", "router1"))
