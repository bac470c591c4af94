"""``/v1/farms/{farm}/rankings``: rankings that queries store at this node, beside its own.

The newest of each query is kept as it was sent, at this node only, and decides nothing: no entry of the log
depends on it. `PUT` is idempotent, so a query that was killed between it and its own commit repeats it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from garlicfarm.admin.contract import FarmView
from garlicfarm.admin.problems import Problem
from garlicfarm.admin.requests import number, parse_number, read_body
from garlicfarm.admin.responses import Pieces, farm_headers, json_answer
from garlicfarm.errors import LocalProtocolError
from garlicfarm.names import FARM_NAME_RULE, is_farm_name

T = TypeVar("T")

STORE_DEADLINE_S = 30.0
MAX_NUMBER = 2**63 - 1


class Rankings:
    """The endpoints.

    :param find_farm: the farm that a request names.
    """

    def __init__(self, find_farm: Callable[[HTTPConnection], FarmView]) -> None:
        self._find_farm = find_farm

    async def put(self, request: Request, user: str) -> Response:
        """Store a ranking: 201, or 200 where its bytes are stored for that batch already."""
        body = await read_body(request)
        farm, query = self._find_farm(request), _query(request)
        batch = int(parse_number("batch", request.path_params["batch"], MAX_NUMBER))
        asof = int(number(request, "asof", 0, MAX_NUMBER, least=1))
        if not asof:
            raise Problem(400, "bad-query", "asof is missing", "Name the index that the ranking is of.")
        run = checked_name("run", request.query_params.get("run", ""))
        try:
            is_new = await _in_time(farm.rankings.put(query, batch, body, asof=asof, run=run, user=user))
        except LocalProtocolError as error:
            raise Problem(
                400, "bad-body", str(error), "Send the body of `GET …/ranking` at that index."
            ) from error
        answer = {"query": query, "batch": batch, "asof": asof, "run": run}
        return json_answer(answer, farm, status=201 if is_new else 200)

    async def queries(self, request: Request, user: str) -> Response:
        """Which queries store rankings here, and how these compare with the node's own."""
        farm = self._find_farm(request)
        head = {"schema": "garlicfarm.rankings/1", "farm": farm.farm, "index": farm.commit_index}
        rankings = farm.rankings
        return json_answer({**head, "queries": rankings.queries(), "unusable": rankings.unusable}, farm)

    async def body(self, request: Request, user: str) -> Response:
        """The stored ranking of a query, byte for byte."""
        farm, query = self._find_farm(request), _query(request)
        body = await _in_time(farm.rankings.body(query))
        if body is None:
            raise _missing(query)
        return Pieces(body, headers=farm_headers(farm), media_type="application/json")

    async def delete(self, request: Request, user: str) -> Response:
        """Delete a query's ranking."""
        farm, query = self._find_farm(request), _query(request)
        if not await _in_time(farm.rankings.delete(query)):
            raise _missing(query)
        return json_answer({"query": query}, farm)


async def _in_time(answer: Awaitable[T]) -> T:
    """What the disk answers. Raises `Problem` 504: nothing for too long."""
    with trio.move_on_after(STORE_DEADLINE_S):
        return await answer
    raise Problem(
        504,
        "outcome-unknown",
        f"this node's disk has not answered within {STORE_DEADLINE_S:.0f} s",
        "Send it again: a repeated request changes nothing more.",
    )


def checked_name(what: str, text: str) -> str:
    """A name of a query or of a run. Raises `Problem` 400."""
    if not is_farm_name(text):
        raise Problem(400, "bad-query", f"{what} is {text[:64]!r}, not {FARM_NAME_RULE}", "Correct it.")
    return text


def _query(request: Request) -> str:
    return checked_name("the query's name", request.path_params["query"])


def _missing(query: str) -> Problem:
    return Problem(
        404,
        "no-such-ranking",
        f"no query {query} has stored a ranking at this node",
        "`GET …/rankings` lists those that it has; other nodes have theirs.",
    )
