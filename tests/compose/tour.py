"""A tour of compose.yaml, each step asserted: up, post, rank, kill the leader, cut a network, heal, down.

``make tour``. Nothing but the standard library and `docker compose`. Where no engine answers, root on
Debian 12 gets one by ``tools/lab-engine.sh``, which ends with the tour; anybody else is told what is missing,
which is an error only where ``CI`` is set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "tools" / "lab-engine.sh"
PROJECT = "garlicfarm-tour"
# Members post their status every second; a publisher's silence is then noticed in seconds.
FASTER = """
from garlicfarm.cli.options import Options
from garlicfarm.cli.remote import ask
ask(Options(), lambda client, farm: client.administer(farm, "interval", {"ms": 1000}))
"""
NETWORK = f"{PROJECT}_garlic"
NODES = ("node1", "node2", "node3")
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
STEP_TIMEOUT_S = 150.0  # Spark alone takes a minute to start on a busy machine
POLL_S = 0.5


def docker(*arguments: str, check: bool = True, timeout_s: float = 60, **options: Any) -> str:
    """Run ``docker`` and return what it wrote on stdout."""
    command = ["docker", *arguments]
    result = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, timeout=timeout_s, check=False, **options
    )
    if check and result.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr[-3000:]}")
    return str(result.stdout)


def compose(*arguments: str, **options: Any) -> str:
    return docker(
        "compose", "--ansi", "never", "--profile", "rank", "--project-name", PROJECT, *arguments, **options
    )


def garlicfarm(node: str, *arguments: str, **options: Any) -> str:
    """Run the command in the container of ``node`` and return what it wrote on stdout."""
    return compose("exec", "-T", node, "garlicfarm", *arguments, "--timeout", "20", **options)


def health(node: str) -> int:
    """The exit code of ``garlicfarm health`` in the container of ``node``."""
    command = ["docker", "compose", "--project-name", PROJECT, "exec", "-T", node, "garlicfarm", "health"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode


def status(node: str) -> dict[str, Any]:
    """The farm as ``node`` sees it; {} where the node does not answer."""
    text = garlicfarm(node, "status", "-o", "json", check=False)
    return dict(json.loads(text)) if text else {}


def log_values(node: str, *, check: bool = True) -> list[str]:
    """The committed entries, as ``node`` has them."""
    rows = (json.loads(line) for line in garlicfarm(node, "log", "tail", check=check).splitlines())
    return [row["value"] for row in rows if "value" in row]


def ranking() -> dict[str, Any]:
    """The newest ranking that the Spark process printed; {} before the first."""
    lines = docker("logs", "--tail", "20", f"{PROJECT}-rank-1").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return dict(found[-1]) if found else {}


def ranked(index: int, publisher: int | None = None) -> dict[str, Any]:
    """`ranking`, where it is of ``index`` or later and names ``publisher`` (None: any); else {}."""
    found = ranking()
    return found if found and found["index"] >= index and publisher in (None, found["publisher"]) else {}


def name(member: int) -> str:
    return f"node{member}"


def until(what: str, found: Callable[[], Any]) -> Any:
    """Wait until ``found()`` is true and return it; fail where it does not come in time."""
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {STEP_TIMEOUT_S:.0f} s: {what}")
        time.sleep(POLL_S)


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGUN:5.0f} s  {text}", flush=True)


def tour() -> None:
    say("up: the nodes' image is small, Spark's has some 450 MB to download")
    compose("up", "--detach", "--build", "--wait", *NODES, timeout_s=600)
    say("up: three nodes are healthy")

    def settled(node: str, *, without: int | None = None) -> dict[str, Any]:
        seen = status(node)
        posts = seen and seen["leader"] not in (None, without) and seen["publisher"] not in (None, without)
        return seen if posts and seen["quorum"] else {}

    first = until("a leader and a publisher", lambda: settled("node1"))
    assert len(first["members"]) == 3
    assert all(member["endpoint"].startswith("ssl://node") for member in first["members"])
    until("a farm that can lose one more", lambda: health("node1") == 0)
    say(f"status: leader {first['leader']}, publisher {first['publisher']}, healthy")

    compose("exec", "-T", "node1", "python", "-c", FASTER)
    posted = [post("node1", "before the leader's death")]
    for node in NODES:
        until(f"the entry at {node}", partial(has, node, posted))
    say("post: the entry is committed, and every node has it")

    compose("up", "--detach", "--build", "rank", timeout_s=1200)
    found = until("a ranking by Spark", partial(ranked, first["commit"]))
    say(f"rank: Spark ranks what is committed up to index {found['index']}")

    leader = first["leader"]
    others = [node for node in NODES if node != name(leader)]
    compose("kill", "--signal", "KILL", name(leader))
    second = until("a new leader and publisher", lambda: settled(others[0], without=leader))
    assert second["term"] > first["term"], (first["term"], second["term"])
    until("a farm that can lose none", lambda: health(others[0]) == 6)
    posted.append(post(others[0], "without the first leader"))
    say(f"killed node{leader}: leader {second['leader']}, publisher {second['publisher']}, degraded")

    found = until(
        "a ranking after that", lambda: ranked(second["commit"], settled(others[0]).get("publisher", 0))
    )
    say(f"the ranking goes on: index {found['index']}, publisher {found['publisher']}")

    compose("start", name(leader))
    until(f"{name(leader)} with every entry", lambda: has(name(leader), posted))
    until("a farm that can lose one more", lambda: health(others[0]) == 0)
    say(f"started node{leader} again: it caught up, healthy")

    cut = until("a leader", lambda: settled("node1"))["leader"]
    rest = [node for node in NODES if node != name(cut)]
    container = f"{PROJECT}-{name(cut)}-1"
    docker("network", "disconnect", NETWORK, container)
    third = until("a leader on the other side", lambda: settled(rest[0], without=cut))
    posted.append(post(rest[0], "beyond the cut"))
    assert posted[-1] not in log_values(name(cut)), "an entry crossed a cut network"
    until("a node that knows that it is alone", lambda: health(name(cut)) == 5)
    say(f"cut node{cut} off: leader {third['leader']}, publisher {third['publisher']} on the other side")

    # The name is not the container's own; who reconnects it has to give it.
    docker("network", "connect", "--alias", name(cut), NETWORK, container)
    until(f"{name(cut)} with every entry", lambda: has(name(cut), posted))
    until("a farm that can lose one more", lambda: health(name(cut)) == 0)
    tails = {node: log_values(node) for node in NODES}
    shortest = min(len(tail) for tail in tails.values())
    assert len({tuple(tail[:shortest]) for tail in tails.values()}) == 1, "the logs differ"
    say("healed: every node has every entry, in one order")


def post(node: str, text: str) -> str:
    """Post a note through ``node``; the entry as the log shows it."""
    note = {"cluster": "farm", "date": time.time_ns() // 1_000_000, "id": 0}
    entry = json.dumps({**note, "config": {"by": "local", "note": text}})
    # Where the leader changes meanwhile it is posted again: a note may stand in the log twice.
    until("a committed note", lambda: garlicfarm(node, "log", "post", check=False, input=entry))
    return entry


def has(node: str, wanted: list[str]) -> bool:
    """Whether ``node`` has all these entries; one that is still starting has not."""
    return set(wanted) <= set(log_values(node, check=False))


@contextmanager
def engine() -> Iterator[str | None]:
    """An engine for as long as the block lasts; why there is none, where there is none."""
    ours = False
    if not answers("docker", "info"):
        result = subprocess.run([ENGINE], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if result.returncode:
            yield (result.stderr.strip().splitlines() or ["no engine, and no word why"])[-1]
            return
        ours = True
    try:
        yield None if answers("docker", "compose", "version") else "docker compose is not installed"
    finally:
        if ours:
            subprocess.run([ENGINE, "stop"], check=True)


def answers(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main() -> int:
    if "CA_BUNDLE" not in os.environ and Path(AUTHORITIES).is_file():
        os.environ["CA_BUNDLE"] = AUTHORITIES
    with engine() as missing:
        if missing is not None:
            print(f"no tour: {missing}", file=sys.stderr)
            return 1 if os.environ.get("CI") else 0
        compose("down", "--volumes", "--timeout", "1")
        try:
            tour()
        except BaseException:
            print(compose("logs", "--no-color", "--tail", "30", check=False), file=sys.stderr)
            raise
        finally:
            compose("down", "--volumes", "--timeout", "15", timeout_s=120)
        left = docker("ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={PROJECT}")
        assert not left, f"containers are left: {left}"
        say("down: no container, network or volume of it is left")
    return 0


BEGUN = time.monotonic()
if __name__ == "__main__":
    sys.exit(main())
