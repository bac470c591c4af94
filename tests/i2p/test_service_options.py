"""What server tunnels do for HTTP and single ports, over a private network of real routers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.i2p.script import over_i2p, run_script

pytestmark = over_i2p(400)


def test_service_gets_the_requests_of_real_clients_as_it_asks_for_them(tmp_path: Path) -> None:
    requests_were_changed(run_script("service_options", tmp_path, timeout_s=360))


def requests_were_changed(lines: list[dict[str, Any]]) -> None:
    """By `service_options`."""
    told = {each.pop("what"): each for each in lines}
    kept = told["kept alive"]
    assert (kept["answers"], kept["requests"], kept["named"], kept["forged"]) == (4, 4, True, False)
    assert len(set(kept["peers"]) - {"127.0.0.1"}) == 2  # of the proxy, and of the tunnel
    assert told["web socket"] == {"answer": "HTTP/1.1 101 Switching Protocols", "frame": True}
    ok = "HTTP/1.1 200 OK"
    assert told["posts"] == {"statuses": [ok, ok, "HTTP/1.1 429 Too Many Requests"]}
    assert told["in-proxy"] == {"status": "HTTP/1.1 403 Forbidden"}
    assert told["smuggled"] == {"status": "HTTP/1.1 400 Bad Request"}
    assert told["port"] == {"text": "irc", "heads": ["NICK a"]}
    left = told["one target left"]
    assert set(left["texts"]) == {"second"}
    (problem,) = left["problems"]
    assert "is left out until it accepts connections: Connection refused" in problem
    assert left["refused"] == {
        "too many POSTs": 1,
        "HTTP request through an in-proxy": 1,
        "not an HTTP request": 1,
    }
