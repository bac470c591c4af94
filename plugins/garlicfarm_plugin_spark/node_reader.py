"""Reads a farm's feed in Spark's own Python processes: no event loop, several nodes tried in turn.

`garlicfarm.client.AdminClient` is for Trio programs. Spark calls a data source from plain threads, one
call after another, and each of these processes may end at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from garlicfarm.errors import (
    AuthError,
    Compacted,
    ConfigError,
    EntryRefused,
    FarmReplaced,
    GarlicFarmError,
    RankingConflict,
    RemoteProtocolError,
    UnreachableError,
)

if TYPE_CHECKING:
    import httpx

    from garlicfarm.client.trust import NodeAccess
    from garlicfarm.feed import Entry

T = TypeVar("T")

MAX_RANGE = 20_000  # indexes that one request may ask for
REPORT_TIMEOUT_S = 2.0
WAIT_S = 2.0  # for a node that lags behind others
_HINT = "is the node running, and the URL right?"
TURNS = 3  # how often each node is tried in a row without any progress


@dataclass(frozen=True, slots=True)
class FarmHead:
    """A farm at one moment: its id (32 hex digits), its application, the oldest index still in the log, and
    the newest committed index."""

    farm_id: str
    application: str
    first_index: int
    commit_index: int


@dataclass(slots=True)
class _Node:
    url: str
    client: httpx.Client

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """A success. ``more``: as for `httpx.Client.request`."""
        with _mapped(self.url):
            response = self.client.request(method, self.url + path, **more)
        _check(self.url, response)
        return response


class NodeReader:
    """Reads farms of nodes, and stores rankings of them there. Used by one thread at a time.

    Methods raise `UnreachableError` (no node gives a usable answer), `AuthError` (password, role, or
    the wrong certificate), `ConfigError` (no such farm, or another one with that name).
    """

    def __init__(self, nodes: NodeAccess) -> None:
        """Raises `ConfigError`: an unusable URL, pin, authority or password file."""
        from garlicfarm_plugin_spark.clients import connect

        if not nodes.urls:
            raise ConfigError(["no admin URL given"])
        self._nodes = [_Node(*connect(url, nodes)) for url in nodes.urls]

    def close(self) -> None:
        """Close the connections."""
        for node in self._nodes:
            node.client.close()

    def heads(
        self,
        required: Iterable[str] = (),
        ids: Mapping[str, str] = {},
        after: Mapping[str, int] = {},
        *,
        strict: bool = True,
    ) -> dict[str, FarmHead]:
        """All farms of the first node that answers, by name, in one request.

        :param required: names; `ConfigError` if one is not among them.
        :param ids: by name, 32 hex digits; `ConfigError` if one of these farms has another id.
        :param after: by name, the last index read. Where that node has deleted the next entry, the others are
            asked for it, and the head is that of one that has it.
        :param strict: whether it is an `UnreachableError` if a node that may have it does not answer.
        """
        found = self._in_turn(_heads)
        _check_heads(self._nodes[0].url, found, required, ids)
        lost = {
            farm: index
            for farm, index in after.items()
            if farm in found and found[farm].first_index > index + 1
        }
        silent = []
        for node in self._nodes[1:] if lost else []:
            try:
                there = _heads(node)
            except UnreachableError as error:
                silent.append(error.cause)
                continue
            _check_heads(node.url, there, required, ids)
            for farm, index in [*lost.items()]:
                head = there.get(farm)
                if head is None or head.farm_id != found[farm].farm_id or head.commit_index <= index:
                    continue  # this node cannot have the next entry
                if head.first_index <= index + 1:
                    found[farm] = head
                    del lost[farm]
        if lost and silent and strict:
            farm, index = next(iter(lost.items()))
            raise UnreachableError(
                f"the nodes that answer have deleted the entries of {farm} after index {index}, and others"
                f" may have them: {'; '.join(silent)}",
                "start those nodes, or leave their URLs out",
            )
        return found

    def ranking(self, farm: str) -> bytes:
        """The body of ``GET …/ranking``."""
        return self._in_turn(lambda node: node.ask("GET", _path(farm, "ranking")).content)

    def report(self, farm: str, query: str, index: int) -> None:
        """Report to the node that answered last that ``query`` has read ``farm`` up to ``index``. Only people
        use these reports, so no other node is tried, and the timeout is short."""
        path = _path(farm, f"readers/{quote(query, safe='')}")
        self._nodes[0].ask("PUT", path, params={"index": index}, timeout=REPORT_TIMEOUT_S)

    def put_ranking(self, farm: str, query: str, batch: int, ranking: bytes, *, asof: int, run: str) -> None:
        """Store a ranking, the body of ``GET …/ranking`` at the index ``asof``, at the first node that takes
        it. It may be there already.

        :raises RankingConflict: it contradicts the last one of this run, or there are too many queries.
        :raises EntryRefused: it is too large.
        """
        path, params = _path(farm, f"rankings/{quote(query, safe='')}/{batch}"), {"asof": asof, "run": run}
        self._in_turn(lambda node: node.ask("PUT", path, params=params, content=ranking))

    def extent(self, farm: str, farm_id: str, after: int, upto: int, max_bytes: int) -> tuple[int, int]:
        """How far a batch of at most ``max_bytes`` bytes of values reaches: its last index, from ``after`` +
        1 (one entry is always in it) to ``upto``, and its bytes.

        :raises Compacted: the entry after ``after`` was deleted, at every node that answers.
        """
        last, size = after, 0
        while last < upto and size < max_bytes:
            asked = min(upto, last + MAX_RANGE)
            params = {"after": last, "limit": asked - last, "max_bytes": max_bytes - size}
            found, more = self._in_turn(partial(_extent, farm, farm_id, params))
            if last > after and size + more > max_bytes:
                break
            last, size = found, size + more
            if last < asked:
                break
        return last, size

    def state(self, farm: str, farm_id: str, least: int = 0) -> tuple[int, bytes]:
        """(index, snapshot) of the application, of the first node that has reached the index ``least``."""
        return self._in_turn(partial(_state, farm, farm_id, "state", least))

    def oldest_state(self, farm: str, farm_id: str) -> tuple[int, bytes]:
        """(index, snapshot): the oldest that the entries of the first node that answers continue. 0 and no
        bytes: they begin at index 1."""
        return self._in_turn(partial(_state, farm, farm_id, "state/oldest", 0))

    def entries(self, farm: str, farm_id: str, after: int, upto: int) -> Iterator[Sequence[Entry]]:
        """All committed entries with ``after`` < index ≤ ``upto``, in order, as they arrive.

        An answer that breaks off is continued, at another node if necessary.
        :raises Compacted: they were deleted, at every node that answers.
        :raises FarmReplaced: no node has the farm, and one has another of its name.
        """
        problems: list[GarlicFarmError] = []
        while after < upto:
            before = after
            try:
                for entries in _page(farm, farm_id, after, upto, self._nodes[0]):
                    after = entries[-1].index
                    yield entries
                if after == before:
                    raise UnreachableError(f"{self._nodes[0].url} has not reached index {upto}")
            except (UnreachableError, Compacted, ConfigError) as error:
                problems = [*problems, error] if after == before else [error]
                if len(problems) >= TURNS * len(self._nodes):
                    # Nodes that still have the entries may be away for a moment: then nothing is lost.
                    raise min(problems, key=_finality) from error
                self._turn()
            else:
                problems = []

    def _in_turn(self, ask: Callable[[_Node], T]) -> T:
        silent: list[UnreachableError] = []
        gone, without = None, None
        for _ in list(self._nodes):
            try:
                return ask(self._nodes[0])
            except UnreachableError as error:
                silent.append(error)
            except Compacted as error:
                gone = error
            except ConfigError as error:  # this node has no such farm, or another one of its name
                without = error
            self._turn()
        if gone is not None:
            raise gone
        if without is not None and not silent:
            raise without
        # A node that answers says itself what to do.
        raise UnreachableError("; ".join(each.cause for each in silent), max(each.hint for each in silent))

    def _turn(self) -> None:
        self._nodes.append(self._nodes.pop(0))
        time.sleep(0.05)


_readers: dict[NodeAccess, NodeReader] = {}


def open_reader(nodes: NodeAccess) -> NodeReader:
    """The reader of ``nodes``, of which a process has one. Raises as `NodeReader`."""
    if nodes not in _readers:
        _readers[nodes] = NodeReader(nodes)
    return _readers[nodes]


def close_readers() -> None:
    """Close what `open_reader` opened in this process."""
    while _readers:
        _readers.popitem()[1].close()


# What one node answers


def _heads(node: _Node) -> dict[str, FarmHead]:
    response = node.ask("GET", "/v1/farms")
    try:
        return {
            str(row["name"]): FarmHead(
                str(row["farm_id"]),
                str(row["application"]),
                int(row["first_index"]),
                int(row["commit_index"]),
            )
            for row in response.json()["farms"]
        }
    except (LookupError, TypeError, ValueError) as error:
        raise _no_admin_api(node.url) from error


def _extent(farm: str, farm_id: str, params: Mapping[str, int], node: _Node) -> tuple[int, int]:
    response = node.ask("GET", _path(farm, "log/extent"), params=params)
    _check_farm(node, response, farm, farm_id)
    try:
        found = response.json()
        last, size = int(found["upto"]), int(found["bytes"])
    except (LookupError, TypeError, ValueError) as error:
        raise _no_admin_api(node.url) from error
    if last <= params["after"]:
        raise UnreachableError(f"{node.url} has not reached index {params['after'] + 1}")
    return last, size


def _state(farm: str, farm_id: str, what: str, least: int, node: _Node) -> tuple[int, bytes]:
    response = node.ask("GET", _path(farm, what))
    _check_farm(node, response, farm, farm_id)
    index = int(response.headers["Garlic-Farm-Next-After"])
    if index < least:
        raise UnreachableError(f"{node.url} has not reached index {least}")
    return index, response.content


def _page(farm: str, farm_id: str, after: int, upto: int, node: _Node) -> Iterator[Sequence[Entry]]:
    from garlicfarm.feed.binary_format import MEDIA_TYPE, RecordDecoder

    params = {
        "after": str(after),
        "limit": str(min(upto - after, MAX_RANGE)),
        "types": "all",
        "wait_s": str(WAIT_S),
    }
    url, headers = node.url + _path(farm, "log"), {"Accept": MEDIA_TYPE}
    with _mapped(node.url), node.client.stream("GET", url, params=params, headers=headers) as response:
        if not response.is_success:
            response.read()
        _check(node.url, response)
        _check_farm(node, response, farm, farm_id)
        decoder = RecordDecoder()
        for data in response.iter_bytes():
            if entries := decoder.receive_data(data):
                yield entries
        decoder.receive_eof()


def _check_farm(node: _Node, response: httpx.Response, farm: str, farm_id: str) -> None:
    found = response.headers.get("Garlic-Farm-Id")
    if found is None:
        raise _no_admin_api(node.url)
    if found != farm_id:
        raise FarmReplaced([_another_farm(node.url, farm, found, farm_id)])


def _path(farm: str, what: str) -> str:
    return f"/v1/farms/{quote(farm, safe='')}/{what}"


@contextmanager
def _mapped(url: str) -> Iterator[None]:
    """Maps errors of HTTP and of records to ours. None of them means that an entry is lost."""
    import httpx

    from garlicfarm.client.answers import certificate_error

    try:
        yield
    except (httpx.TransportError, RemoteProtocolError) as error:
        untrusted = certificate_error(error, url)
        if untrusted is not None:
            raise untrusted from error
        raise UnreachableError(f"{url}: {str(error) or type(error).__name__}", _HINT) from error


def _check(url: str, response: httpx.Response) -> None:
    """Raises the error of a refusal: an `UnreachableError` if another node may still answer."""
    from garlicfarm.client.answers import Answer, failure

    if response.is_success:
        return  # the content may still be arriving
    failed = failure(Answer(response.status_code, dict(response.headers), response.content), url)
    if isinstance(failed, AuthError | Compacted | ConfigError | EntryRefused | RankingConflict):
        raise failed
    if failed is not None:
        raise UnreachableError(str(failed)) from failed


def _no_admin_api(url: str) -> UnreachableError:
    return UnreachableError(f"{url} does not answer as an admin API: give the node's admin.url")


def _finality(problem: GarlicFarmError) -> int:
    """How little hope is left that another attempt succeeds."""
    kinds = (Compacted, FarmReplaced, ConfigError)
    return next((rank for rank, kind in enumerate(kinds, 1) if isinstance(problem, kind)), 0)


def _check_heads(
    url: str, heads: Mapping[str, FarmHead], required: Iterable[str], ids: Mapping[str, str]
) -> None:
    for farm in required:
        if farm not in heads:
            raise ConfigError([f"{url} has no farm {farm!r}, only: {', '.join(heads) or 'none'}"])
    for farm, head in heads.items():
        if head.farm_id != ids.get(farm, head.farm_id):
            raise ConfigError([_another_farm(url, farm, head.farm_id, ids[farm])])


def _another_farm(url: str, farm: str, found: str, wanted: str) -> str:
    return (
        f"the checkpoint belongs to another farm {farm!r} (id {wanted}) than that at {url} (id {found}): name"
        " the checkpoint of this farm, or a new one"
    )
