"""Whether routers get through to each other, asked beside the nodes: what comes back through their tunnels.

Where nodes do not reach each other it may be that their routers do not: `silent` tells. At each router,
through its HTTP proxy, an HTTP request goes to every other one's tunnel, in a new stream until an answer
comes, whichever: a node says 404 to one who is no member; `stand_in` answers where no node runs.

What an answer tells: streams pass there and back between the very destinations that nodes use, by the same
port of the same tunnel, over the same sessions of the routers. Then nodes that do not reach each other have
a defect. What silence tells: nobody gets an answer there now, nodes included. It does not tell why: were it
something in the way nodes use streams that sets routers at odds, it would look the same. And a pair that was
silent for long may just have come back: give the nodes some time after an answer. Before nodes start it is
not asked: that they find one another where first streams lead nowhere is part of what they promise.

Of the standard library alone, and nothing of the transport's, whose defects it must not share. As a program,
where the loopback of one router is: ``echo.py LONGEST_S LISTENER_PORT PROXY_PORT NAME:PORT…``; prints which
were silent, and "" for the listener, as a list in JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"
TRY_S = 12.0  # the first stream after a start often leads nowhere
PAUSE_S = 0.5
POLL_S = 0.02  # how long a stand-in may take to end
LONGEST_S = 90.0
START_S = 60.0


class Side(NamedTuple):
    """A router, and what listens behind its tunnel: ``tunnel`` is what others dial, NAME:PORT; ``python``
    runs Python where the ports of loopback are."""

    tunnel: str
    listener: int
    proxy: int = 4444
    python: tuple[str, ...] = (sys.executable,)


def silent(sides: Mapping[int, Side], longest_s: float = LONGEST_S) -> list[tuple[int, int]]:
    """From which router there is no answer of which other one, for so long.

    Raises `AssertionError` where a listener is silent at its own place, or cannot be asked.
    """
    tunnels = {side.tunnel: number for number, side in sides.items()}
    with ThreadPoolExecutor(len(sides)) as pool:
        told = list(pool.map(lambda side: _told(side, list(tunnels), longest_s), sides.values()))
    for number, names in zip(sides, told, strict=True):
        assert "" not in names, f"what listens behind router {number} does not answer at its own place"
    return [(number, tunnels[name]) for number, names in zip(sides, told, strict=True) for name in names]


def _told(side: Side, tunnels: list[str], longest_s: float) -> list[str]:
    """What the program prints at one place."""
    others = [tunnel for tunnel in tunnels if tunnel != side.tunnel]
    arguments = ["-", str(longest_s), str(side.listener), str(side.proxy), *others]
    done = subprocess.run(
        [*side.python, *arguments],
        input=Path(__file__).read_text(encoding="utf-8"),
        capture_output=True,
        text=True,
        timeout=longest_s + TRY_S + START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def _answers(port: int, tunnel: str, longest_s: float) -> bool:
    """Whether anything comes back from a port of loopback, or through the proxy there."""
    deadline = time.monotonic() + longest_s
    while True:
        connection = HTTPConnection(HOST, port, timeout=min(TRY_S, longest_s))
        if tunnel:
            connection.set_tunnel(tunnel)
        try:
            connection.request("GET", "/")
            connection.getresponse()
        except (OSError, HTTPException):
            if time.monotonic() > deadline:
                return False
            time.sleep(PAUSE_S)
        else:
            return True
        finally:
            connection.close()


@contextmanager
def stand_in(port: int) -> Iterator[None]:
    """Answers on a port of loopback, for a node that does not run."""
    with ThreadingHTTPServer((HOST, port), _Curt) as server:
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class _Curt(BaseHTTPRequestHandler):
    """Says 501 to everything, and nothing to the terminal."""

    timeout = TRY_S

    def log_message(self, *_: object) -> None:
        pass


def main(longest_s: str, listener: str, proxy: str, *tunnels: str) -> None:
    ways = {"": int(listener), **dict.fromkeys(tunnels, int(proxy))}
    with ThreadPoolExecutor(len(ways)) as pool:
        answered = list(pool.map(lambda way: _answers(ways[way], way, float(longest_s)), ways))
    print(json.dumps([way for way, came in zip(ways, answered, strict=True) if not came]))


if __name__ == "__main__":
    main(*sys.argv[1:])
