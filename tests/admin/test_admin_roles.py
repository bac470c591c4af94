"""Every endpoint of the admin listener, held against every role."""

from __future__ import annotations

import httpx
import pytest
import trio
from starlette.routing import Route, WebSocketRoute

from garlicfarm.admin.app import create_app
from tests.admin.fake_node import PASSWORDS

LEAST = {
    "GET /": "reader",
    "POST /": "admin",
    "GET /static/{name}": "reader",
    "GET /v1/node": "reader",
    "GET /v1/node/drain": "reader",
    "POST /v1/node/drain": "admin",
    "POST /v1/node/undrain": "admin",
    "GET /v1/farms": "reader",
    "GET /v1/farms/{farm}/status": "reader",
    "GET /v1/farms/{farm}/log": "reader",
    "POST /v1/farms/{farm}/log": "writer",
    "POST /v1/farms/{farm}/log/batch": "writer",
    "GET /v1/farms/{farm}/log/extent": "reader",
    "GET /v1/farms/{farm}/events": "reader",
    "GET /v1/farms/{farm}/state": "reader",
    "GET /v1/farms/{farm}/state/oldest": "reader",
    "GET /v1/farms/{farm}/snapshot": "admin",
    "GET /v1/farms/{farm}/ranking": "reader",
    "GET /v1/farms/{farm}/rankings": "reader",
    "GET /v1/farms/{farm}/rankings/{query}": "reader",
    "DELETE /v1/farms/{farm}/rankings/{query}": "admin",
    "PUT /v1/farms/{farm}/rankings/{query}/{batch}": "writer",
    "GET /v1/farms/{farm}/readers": "reader",
    "PUT /v1/farms/{farm}/readers/{query}": "reader",
    "GET /v1/farms/{farm}/policy": "admin",
    "POST /v1/farms/{farm}/policy": "admin",
    "GET /v1/farms/{farm}/members": "admin",
    "POST /v1/farms/{farm}/members": "admin",
    "PATCH /v1/farms/{farm}/members/{id}": "admin",
    "DELETE /v1/farms/{farm}/members/{id}": "admin",
    "POST /v1/farms/{farm}/level": "admin",
    "POST /v1/farms/{farm}/leader/stepdown": "admin",
    "POST /v1/farms/{farm}/repair": "admin",
    "GET /metrics": "token",
    "GET /healthz": "token",
    "GET /readyz": "token",
}
"""The least role that each needs; ``token``: a scraper's, where not over loopback."""
RANK = {"reader": 0, "writer": 1, "admin": 2, "token": 3}


@pytest.mark.parametrize("user", [None, *PASSWORDS])
async def test_endpoint_serves_its_role_and_those_above_and_nobody_else(node, user):
    shutdown = trio.Event()
    shutdown.set()  # so that live events end
    app = create_app(node, shutdown=shutdown, metrics_token="token")  # type: ignore[arg-type]
    routes = [route for route in app.routes if isinstance(route, Route)]
    sockets = [route.path for route in app.routes if isinstance(route, WebSocketRoute)]
    assert sockets == ["/v1/farms/{farm}/events"], "test_watch.py tries it"
    assert len(routes) + len(sockets) == len(app.routes)
    endpoints = {(method, route.path) for route in routes for method in route.methods or ()}
    # HEAD comes with GET, and is asked for like it.
    assert {f"{method} {path}" for method, path in endpoints if method != "HEAD"} == LEAST.keys()
    auth = None if user is None else httpx.DigestAuth(user, PASSWORDS[user][1])
    rank = -1 if user is None else RANK[PASSWORDS[user][0]]
    # Not an address of loopback, where scrapers need no token.
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="https://192.0.2.1", auth=auth
    ) as client:
        for method, path in sorted(endpoints):
            least = LEAST[f"{'GET' if method == 'HEAD' else method} {path}"]
            place = path.format(farm="farm", id=3, name="dashboard.css", query="q", batch=3)
            before = node.farm.commit_index
            response = await client.request(method, place, content=None if method == "GET" else b"x")
            refused = response.status_code in (401, 403)
            # A form without the page's token is refused to an admin too.
            assert refused == (rank < RANK[least] or (method, path) == ("POST", "/")), (method, path)
            by_role = response.status_code == 403 and "needs the role" in response.text
            assert by_role == (0 <= rank < RANK[least] and least != "token" and method != "HEAD")
            if refused:
                assert response.status_code == (403 if least != "token" and user else 401)
                assert node.farm.commit_index == before
