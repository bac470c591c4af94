"""A tour of compose.yaml, each step asserted: up, post, rank, kill the leader, cut a network, heal, down.

``make tour``. Nothing but the standard library and `docker compose`. Where no engine answers, root on
Debian 12 gets one by ``tools/lab-engine.sh``, which ends with the tour. Exit 0 also where no engine can be
had, or what answers cannot do what ``probe.yaml`` asks: stderr then says why. Exit 1: a step failed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from garlicfarm import revision

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "tools" / "lab-engine.sh"
PROBE = Path(__file__).with_name("probe.yaml")
PROJECT = "garlicfarm-tour"
PROFILES = ("--profile", "rank", "--profile", "dafka", "--profile", "i2p")
# Members post their status every second; a publisher's silence is then noticed in seconds.
FASTER = """
from garlicfarm.cli.options import Options
from garlicfarm.cli.node_access import ask
ask(Options(), lambda client, farm: client.administer(farm, "interval", {"ms": 1000}))
"""
# The rankings of some seconds, as the node has them: several batches of Spark end meanwhile.
RANKINGS = """
import json, trio
from garlicfarm.cli.options import Options
from garlicfarm.cli.node_access import ask
async def watch(client, farm):
    with trio.move_on_after(10):
        while True:
            print(json.dumps(await client.ranking(farm)), flush=True)
            await trio.sleep(.1)
ask(Options(), watch)
"""
NETWORK = f"{PROJECT}_garlic"
NODES = ("node1", "node2", "node3")
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
STEP_TIMEOUT_S = 600.0  # Spark alone takes minutes to start on a busy machine
ENGINE_TIMEOUT_S = 900.0
BUILD_TIMEOUT_S = 900.0
POLL_S = 0.5


class Unavailable(Exception):
    """What the tour needs of the machine or its network is not there."""


def docker(*arguments: str, check: bool = True, timeout_s: float = 120, text: str = "") -> str:
    """Run ``docker`` with ``text`` on stdin and return what it wrote on stdout."""
    command = ["docker", *arguments]
    result = subprocess.run(
        command, cwd=ROOT, input=text, text=True, capture_output=True, timeout=timeout_s, check=False
    )
    if check and result.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr[-3000:]}")
    return str(result.stdout)


def compose(*arguments: str, **options: Any) -> str:
    return docker("compose", "--ansi", "never", *PROFILES, "--project-name", PROJECT, *arguments, **options)


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


def settled(node: str, *, without: int | None = None) -> dict[str, Any]:
    """The farm as ``node`` sees it, once it has a quorum, a leader and a publisher other than ``without``."""
    seen = status(node)
    posts = seen and seen["leader"] not in (None, without) and seen["publisher"] not in (None, without)
    return seen if posts and seen["quorum"] else {}


def log_values(node: str, *, check: bool = True) -> list[str]:
    """The committed entries, as ``node`` has them."""
    rows = (json.loads(line) for line in garlicfarm(node, "log", "tail", check=check).splitlines())
    return [row["value"] for row in rows if "value" in row]


def by_index(lines: str) -> dict[int, dict[str, Any]]:
    """Rankings, a line of JSON each, by their index."""
    found = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return {ranking["index"]: ranking for ranking in found}


def ranked(nodes: Sequence[str], since: int, *, without: int | None = None) -> dict[str, Any]:
    """The newest ranking by Spark, of ``since`` or later, that each of ``nodes`` had at the same index; {}
    if there is none yet.

    Whole rankings are compared, at every index that both sides tell: scores, order, publisher and why.
    """

    def watch(node: str) -> dict[int, dict[str, Any]]:
        return by_index(compose("exec", "-T", node, "python", "-c", RANKINGS, check=False))

    with ThreadPoolExecutor() as pool:
        told = dict(zip(nodes, pool.map(watch, nodes), strict=True))
    said = by_index(docker("logs", f"{PROJECT}-rank-1"))
    for node, rankings in told.items():
        for index in said.keys() & rankings.keys():
            theirs, ours = rankings[index], said[index]
            assert ours == theirs, f"at index {index}, Spark ranks otherwise than {node}:\n{ours}\n{theirs}"
    common = [index for index in said.keys() & set.intersection(*map(set, told.values())) if index >= since]
    found = said[max(common)] if common else {}
    if found:
        scores = {member["id"]: member["score"] for member in found["members"]}
        assert sorted(scores) == [1, 2, 3], scores
        assert all(score for score in scores.values()), scores
        assert found["publisher"] not in (None, without), found["publisher"]
    return found


def told_in_words(ranking: dict[str, Any]) -> str:
    scores = ", ".join(f"node{member['id']} {member['score']}" for member in ranking["members"])
    where = f"publisher {ranking['publisher']}, index {ranking['index']}"
    return f"Spark ranks as the nodes do: {scores}; {where}"


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
    compose("up", "--detach", "--wait", *NODES, timeout_s=300)
    say("up: three nodes are healthy")

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

    compose("up", "--detach", "rank")
    found = until("a ranking by Spark", lambda: ranked(NODES, first["commit"]))
    say(f"rank: {told_in_words(found)}")

    compose("up", "--detach", "--wait", "report", timeout_s=STEP_TIMEOUT_S)
    host, port = compose("port", "report", "8080").strip().rsplit(":", 1)
    assert host == "127.0.0.1"
    until("a page that shows each member", lambda: all(f"member {n}" in page(port) for n in (1, 2, 3)))
    say(f"report: a page of the history at http://127.0.0.1:{port}")

    first = until("a leader and a publisher", lambda: settled("node1"))
    leader = first["leader"]
    others = [node for node in NODES if node != name(leader)]
    compose("kill", "--signal", "KILL", name(leader))
    second = until("a new leader and publisher", lambda: settled(others[0], without=leader))
    assert second["term"] > first["term"], (first["term"], second["term"])
    until("a farm that can lose none", lambda: health(others[0]) == 6)
    posted.append(post(others[0], "without the first leader"))
    say(f"killed node{leader}: leader {second['leader']}, publisher {second['publisher']}, degraded")

    found = until("a ranking after that", lambda: ranked(others, second["commit"], without=leader))
    say(f"the ranking goes on: {told_in_words(found)}")

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
    found = until("a ranking beyond the cut", lambda: ranked(rest, third["commit"], without=cut))
    say(f"the ranking goes on: {told_in_words(found)}")

    # The name is not the container's own; who reconnects it has to give it.
    docker("network", "connect", "--alias", name(cut), NETWORK, container)
    until(f"{name(cut)} with every entry", lambda: has(name(cut), posted))
    until("a farm that can lose one more", lambda: health(name(cut)) == 0)
    tails = {node: log_values(node) for node in NODES}
    shortest = min(len(tail) for tail in tails.values())
    assert len({tuple(tail[:shortest]) for tail in tails.values()}) == 1, "the logs differ"
    say("healed: every node has every entry, in one order")
    healed = until("a leader and a publisher", lambda: settled(name(cut)))
    found = until("a ranking after the cut", lambda: ranked(NODES, healed["commit"]))
    say(f"the ranking goes on: {told_in_words(found)}")


def page(port: str) -> str:
    """The page that the service ``report`` serves."""
    with urlopen(f"http://127.0.0.1:{port}", timeout=20) as response:
        return str(response.read(), "utf-8")


def post(node: str, text: str) -> str:
    """Post a note through ``node``; the entry as the log shows it."""
    note = {"cluster": "farm", "date": time.time_ns() // 1_000_000, "id": 0}
    entry = json.dumps({**note, "config": {"by": "local", "note": text}})
    # Where the leader changes meanwhile it is posted again: a note may stand in the log twice.
    until("a committed note", lambda: garlicfarm(node, "log", "post", check=False, text=entry))
    return entry


def has(node: str, wanted: list[str]) -> bool:
    """Whether ``node`` has all these entries; one that is still starting has not."""
    return set(wanted) <= set(log_values(node, check=False))


@contextmanager
def engine() -> Iterator[None]:
    """An engine for as long as the block lasts. Raises `Unavailable`."""
    answered = shutil.which("docker") is not None and docker_can("info")
    with subprocess.Popen(
        [ENGINE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _, told = process.communicate(timeout=ENGINE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # it undoes what it did
            process.wait()
            raise Unavailable(f"there is none after {ENGINE_TIMEOUT_S:.0f} s") from None
    if process.returncode:
        raise Unavailable((told.strip().splitlines() or ["no word why"])[-1])
    try:
        yield
    finally:
        if not answered:
            subprocess.run([ENGINE, "stop"], check=False)  # it says what it could not undo


def docker_can(*arguments: str, timeout_s: float = 60) -> bool:
    try:
        docker(*arguments, timeout_s=timeout_s)
    except (AssertionError, subprocess.TimeoutExpired):
        return False
    return True


def probe() -> None:
    """Raises `Unavailable` where the engine, or the network behind it, is not what the tour needs."""
    project = ("compose", "--ansi", "never", "--file", str(PROBE))
    try:
        docker(*project, "build", timeout_s=300)
        docker(*project, "up", "--detach", "--wait", timeout_s=120)
        docker("network", "disconnect", "garlicfarm-probe_garlic", "garlicfarm-probe-probe-1")
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the engine cannot do what {PROBE.name} asks: {error}") from None
    finally:
        with suppress(subprocess.TimeoutExpired):
            docker(*project, "down", "--volumes", "--timeout", "1", "--rmi", "local", check=False)


def build(services: Sequence[str]) -> None:
    """Raises `Unavailable` where the packages cannot be had."""
    say(f"build: {', '.join(services)}{' (Spark: some 560 MiB to download)' if 'rank' in services else ''}")
    for is_last in (False, True):
        try:
            compose("build", *services, timeout_s=BUILD_TIMEOUT_S)
            return
        except subprocess.TimeoutExpired:
            raise Unavailable(f"the packages have not come in {BUILD_TIMEOUT_S:.0f} s") from None
        except AssertionError as error:
            probe()  # where this fails now, it was the network's fault
            if is_last:
                raise
            say(f"build: it failed though packages can be had: once more\n{error}")


def main(tour: Callable[[], None], *services: str) -> int:
    """Take the ``tour`` with the images of ``services``; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if "CA_BUNDLE" not in os.environ and Path(AUTHORITIES).is_file():
        os.environ["CA_BUNDLE"] = AUTHORITIES
    os.environ.setdefault("GARLICFARM_REVISION", revision())
    try:
        with engine():
            probe()
            compose("down", "--volumes", "--timeout", "1")
            build(services)
            try:
                tour()
            except BaseException:
                print(compose("logs", "--no-color", "--tail", "30", check=False), file=sys.stderr)
                raise
            finally:
                compose("down", "--volumes", "--timeout", "15", timeout_s=300)
            left = docker("ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={PROJECT}")
            assert not left, f"containers are left: {left}"
            say("down: no container, network or volume of it is left")
    except Unavailable as why:
        print(f"no tour: {why}", file=sys.stderr)
    return 0


BEGUN = time.monotonic()
if __name__ == "__main__":
    sys.exit(main(tour, "node1", "rank"))
