"""The dashboard: one page about a farm of this node, for people with a browser.

Theory of operation. The server renders the whole page from the API's data. Without script it is complete, and
shows the moment of the request. The script listens to live events. At each it requests the page again, and
takes over the parts marked ``data-live``. So HTML is made and escaped in one place, by Jinja2. The browser
sends its login (Digest) with each request.

Actions are forms, shown to admins only. A browser sends its login with a form of any page, so a form is
accepted only from this origin (``Origin``, which browsers send with every POST, and ``Sec-Fetch-Site``) and
with the token that this process gave to this user. A GET changes nothing.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from urllib.parse import parse_qsl, urlencode

import trio
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from garlicfarm.admin.contract import FarmView, NodeView
from garlicfarm.admin.dashboard_history import HEIGHT, WIDTH, History, plot
from garlicfarm.admin.health import (
    events,
    feed_problems,
    feed_word,
    level_word,
    program_word,
    publishing,
    quorum_loss,
    ranking_word,
    since,
    streams_text,
)
from garlicfarm.admin.problems import Problem, problem_of
from garlicfarm.admin.readers import Readers
from garlicfarm.admin.requests import read_body
from garlicfarm.admin.responses import commit_deadline
from garlicfarm.errors import GarlicFarmError, NotLeader
from garlicfarm.publishing import clients
from garlicfarm.publishing.publication import expiry_problem, sight
from garlicfarm.publishing.ranking import reason

SHOWN = 25
_BANS_H = {"1": 1, "24": 24, "": None}

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not no-referrer: with that, browsers send `Origin: null` with a form.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_STATIC = {"dashboard.css": "text/css", "dashboard.js": "text/javascript"}


def duration_text(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.{int(value < 0.01)}f} ms"
    for most, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if value < most:
            return f"{value / length:.{int(unit == 's')}f} {unit}"
    return f"{value / 86_400:,.0f} d"


def _when(date_ms: int | None) -> str:
    return "" if date_ms is None else f"{datetime.fromtimestamp(date_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _days_left(expires_ms: int | None) -> str:
    if expires_ms is None:
        return "–"
    days = (expires_ms - time.time_ns() // 1_000_000) // 86_400_000
    return f"{days:,} days" if days >= 0 else "expired"


def _is_expiring(expires_ms: int | None) -> bool:
    return expires_ms is not None and expiry_problem(expires_ms, time.time_ns() // 1_000_000) != ""


_PAGES = Environment(
    loader=PackageLoader("garlicfarm.admin"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.tests["expiring"] = _is_expiring
_FILTERS: dict[str, Callable[..., str]] = {
    "days_left": _days_left,
    "feed_word": feed_word,
    "program_word": lambda row: program_word(row) or "–",
    "ranking_word": ranking_word,
    "since": since,
    "figure": lambda value: "–" if value is None else f"{value:,}",
    "seconds": duration_text,
    "part": lambda name: name.replace("_", " "),
    "sight": sight,
    "streams": streams_text,
    "when": _when,
}
_PAGES.filters |= _FILTERS


class Dashboard:
    """The endpoints of the page."""

    def __init__(self, node: NodeView, readers: Readers) -> None:
        self._node = node
        self._readers = readers
        self._key = os.urandom(32)
        self._histories: dict[str, History] = {}

    async def static(self, request: Request, user: str) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise Problem(404, "no-such-endpoint", "no such part", "The page is at `/`.")
        content = files("garlicfarm.admin").joinpath("static", name).read_bytes()
        return Response(content, headers=HEADERS, media_type=_STATIC[name])

    async def page(self, request: Request, user: str) -> Response:
        """The page about the farm in ``?farm=``, or the first one."""
        query = request.query_params
        try:
            farm = self._farm(query.get("farm") or next(iter(self._node.farms), ""))
        except Problem as problem:
            return self._html("refused.html", problem.status, problem=problem, leader_url=None)
        status, ranking, policy = farm.status(), farm.ranking(), farm.policy()
        history = self._histories.setdefault(farm.farm, History())
        lines = await history.lines(
            farm, are_documents=bool(ranking["members"]), counted=ranking.get("counted")
        )
        others = [line for line in lines if line.member is None]
        return self._html(
            "dashboard.html",
            farms=list(self._node.farms),
            uptime_s=trio.current_time() - self._node.started_monotonic,
            user=user,
            role=self._node.users.role(user),
            token=self._token(user),
            status=status,
            ranking=ranking,
            reasons={
                row["id"]: reason(row, ranking["since"], status["events"]) for row in ranking["members"]
            },
            lost=[row["id"] for row in status["members"] if row["role"] == "unreachable"],
            publishing=publishing(status),
            quorum_loss=quorum_loss(status),
            level=level_word(status),
            events=events(status),
            feed_problems=feed_problems(status),
            queries=farm.rankings.queries(),
            readers=self._readers.rows(farm),
            policy=policy,
            clients=clients.rows(policy, time.time_ns() // 1_000_000),
            shown=SHOWN,
            lines=others[: -SHOWN - 1 : -1],
            plot=plot(lines, status["members"]),
            size=(WIDTH, HEIGHT),
            done={name: query[name] for name in ("index", "leader") if query.get(name, "").isdecimal()},
        )

    async def act(self, request: Request, user: str) -> Response:
        """Carry out a form of the page; then redirect to the page, or answer with the error."""
        leader_url = None
        try:
            form = _fields(await read_body(request))
            self._check_source(request, form.get("token", ""), user)
            farm = self._farm(form.get("farm", ""))
            leader_url = farm.leader_url()
            with commit_deadline():
                done = await _do(farm, form, user)
            query = urlencode({"farm": farm.farm, **done})
            return RedirectResponse(f"/?{query}", 303, headers=HEADERS)
        except Problem as error:
            problem = error
        except GarlicFarmError as error:
            known = problem_of(error)
            if known is None:
                raise
            problem = known
            leader_url = leader_url if isinstance(error, NotLeader) else None
        return self._html("refused.html", problem.status, problem=problem, leader_url=leader_url)

    def _html(self, template: str, /, code: int = 200, **values: object) -> Response:
        html = _PAGES.get_template(template).render(node=self._node, **values)
        return HTMLResponse(html, code, headers=HEADERS)

    def _farm(self, name: str) -> FarmView:
        farm = self._node.farms.get(name)
        if farm is None:
            raise Problem(404, "no-such-farm", "this node has no farm of that name", "Go back to the page.")
        return farm

    def _token(self, user: str) -> str:
        return hmac.digest(self._key, user.encode(), "sha256").hex()

    def _check_source(self, request: Request, token: str, user: str) -> None:
        # The login has already checked that an Origin, if sent, is ours.
        ours = "origin" in request.headers and request.headers.get("sec-fetch-site") in (None, "same-origin")
        if not ours or not hmac.compare_digest(token.encode(), self._token(user).encode()):
            raise Problem(
                403,
                "forbidden",
                "this form is not from a page that this node has shown to you since it started",
                "Load the page, and try again.",
            )


def _fields(body: bytes) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=16))
    except ValueError as error:
        raise Problem(400, "bad-body", "the body is not a form", "Use the page.") from error


def _client(text: str) -> str:
    try:
        return clients.hash_text(text)
    except ValueError as error:
        raise Problem(
            400, "bad-body", "this is no client", "Name it by its address, ….b32.i2p, or by that hash."
        ) from error


async def _do(farm: FarmView, form: Mapping[str, str], user: str) -> dict[str, int]:
    action, hash_, text = form.get("action"), form.get("hash", "").strip(), form.get("member", "")
    member = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if action == "override" and member > 0:
        mode = form.get("mode") or None
        index, _ = await farm.administer("override", {"member": member, "mode": mode}, user)
    elif action in ("exclude", "include"):
        index, _ = await farm.administer(action, {"hash": hash_}, user)
    elif action == "ban" and form.get("hours") in _BANS_H:
        hours = _BANS_H[form["hours"]]
        until_ms = None if hours is None else time.time_ns() // 1_000_000 + 3_600_000 * hours
        index, _ = await farm.administer("ban", {"hash": _client(hash_), "until_ms": until_ms}, user)
    elif action in ("unban", "disallow"):
        index, _ = await farm.administer(action, {"hash": _client(hash_)}, user)
    elif action == "publish":
        index, _ = await farm.administer("publish", {}, user)
    elif action == "remove" and member > 0 and form.get("sure"):
        index, _ = await farm.change_member("remove", member, "", False, user)
    elif action == "stepdown" and member >= 0:
        return {"leader": await farm.step_down(member, user)}
    else:
        raise Problem(400, "bad-body", "the form was not filled in", "Go back, and fill it in.")
    return {"index": index}
