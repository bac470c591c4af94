"""Reads a farm's feed in Spark's own Python processes: no event loop, several nodes tried in turn.

`garlicfarm.client.AdminClient` is for Trio programs. Spark calls a data source from plain threads, one
call after another, and each of these processes may end at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from garlicfarm.errors import (
    AuthError,
    Compacted,
    ConfigError,
    FarmReplaced,
    GarlicFarmError,
    RemoteProtocolError,
    UnreachableError,
)

if TYPE_CHECKING:
    import httpx

    from garlicfarm.feed import Entry
    from garlicfarm_plugin_spark.clients import NodeClients

__all__ = ["FarmHead", "NodeReader", "Nodes", "close_readers", "open_reader"]

T = TypeVar("T")

MAX_RANGE = 20_000  # indexes that one request may ask for
REPORT_TIMEOUT_S = 2.0
WAIT_S = 2.0  # for a node that lags behind others
_HINT = "is the node running, and the URL right?"
TURNS = 3  # how often each node is tried in a row without any progress


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a farm, and the user that logs in there. Hashable, and free of secrets.

    ``urls``: ``https://host:port``, tried in turn; each may carry the pin of its own certificate,
    ``?pin=sha256-…``, like an endpoint. ``pin``: for URLs without one; ``ca``: authorities instead of a pin.
    """

    urls: tuple[str, ...]
    farm: str
    user: str
    password_file: Path
    pin: str | None = None
    ca: Path | None = None

    def of(self, farm: str) -> Nodes:
        """The same nodes, for another of their farms."""
        return replace(self, farm=farm)


@dataclass(frozen=True, slots=True)
class FarmHead:
    """A farm at one moment: its id (32 hex digits), its application (None: unknown), the oldest index still
    in the log, and the newest committed index."""

    farm_id: str
    application: str | None
    first_index: int
    commit_index: int


@dataclass(slots=True)
class _Node:
    url: str
    client: httpx.Client


class NodeReader:
    """Reads one farm. Created by `open_reader`, used by one thread at a time.

    Methods raise `UnreachableError` (no node gives a usable answer), `AuthError` (password, role, or
    the wrong certificate), `ConfigError` (no such farm, or another one with that name).
    """

    def __init__(self, nodes: Nodes, clients: NodeClients | None = None) -> None:
        """Raises `ConfigError`: an unusable URL, pin, authority or password file.

        :param clients: connections to share with other feeds. None: its own ones.
        """
        from garlicfarm_plugin_spark.clients import Login, NodeClients

        if not nodes.urls:
            raise ConfigError(["no admin URL given"])
        self._farm = nodes.farm
        self._own = NodeClients() if clients is None else None
        login = Login(nodes.user, nodes.password_file, nodes.pin, nodes.ca)
        shared = clients or self._own
        assert shared is not None
        self._nodes = [_Node(*shared.client(url, login)) for url in nodes.urls]

    def close(self) -> None:
        """Close the connections, unless they are shared."""
        if self._own is not None:
            self._own.close()

    def farms(self) -> list[str]:
        """The names of all farms of the first node that answers."""
        return list(self.heads())

    def head(self, farm_id: str | None = None) -> FarmHead:
        """The farm according to the first node that answers.

        :param farm_id: 32 hex digits; `ConfigError` if the farm has another id.
        """
        return self.heads((self._farm,), {} if farm_id is None else {self._farm: farm_id})[self._farm]

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
        found = self._in_turn(self._heads)
        _check_heads(self._nodes[0].url, found, required, ids)
        lost = {
            farm: index
            for farm, index in after.items()
            if farm in found and found[farm].first_index > index + 1
        }
        silent = []
        for node in self._nodes[1:] if lost else []:
            try:
                there = self._heads(node)
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

    def ranking(self) -> bytes:
        """The body of ``GET …/ranking``."""
        return self._in_turn(lambda node: self._get(node, self._path("ranking")).content)

    def report(self, farm: str, query: str, index: int) -> None:
        """Report to the node that answered last that ``query`` has read ``farm`` up to ``index``. Only people
        use these reports, so no other node is tried, and the timeout is short."""
        node = self._nodes[0]
        path = f"/v1/farms/{quote(farm, safe='')}/readers/{quote(query, safe='')}"
        with _mapped(node.url):
            response = node.client.put(node.url + path, params={"index": index}, timeout=REPORT_TIMEOUT_S)
        _check(node.url, response)

    def extent(self, after: int, upto: int, max_bytes: int, farm_id: str) -> tuple[int, int]:
        """How far a batch of at most ``max_bytes`` bytes of values reaches: its last index, from ``after`` +
        1 (one entry is always in it) to ``upto``, and its bytes.

        :raises Compacted: the entry after ``after`` was deleted, at every node that answers.
        """

        last, size = after, 0
        while last < upto and size < max_bytes:
            asked = min(upto, last + MAX_RANGE)
            found, more = self._in_turn(partial(self._extent, last, asked, max_bytes - size, farm_id))
            if last > after and size + more > max_bytes:
                break
            last, size = found, size + more
            if last < asked:
                break
        return last, size

    def _extent(self, after: int, upto: int, max_bytes: int, farm_id: str, node: _Node) -> tuple[int, int]:
        query = {"after": after, "limit": upto - after, "max_bytes": max_bytes}
        response = self._get(node, self._path("log/extent"), query)
        self._check_farm(node, response, farm_id)
        try:
            found = response.json()
            last, size = int(found["upto"]), int(found["bytes"])
        except (LookupError, TypeError, ValueError) as error:
            raise _no_admin_api(node.url) from error
        if last <= after:
            raise UnreachableError(f"{node.url} has not reached index {after + 1}")
        return last, size

    def state(self, farm_id: str, least: int = 0) -> tuple[int, bytes]:
        """(index, snapshot) of the application, of the first node that has reached the index ``least``."""

        def ask(node: _Node) -> tuple[int, bytes]:
            response = self._get(node, self._path("state"))
            self._check_farm(node, response, farm_id)
            index = int(response.headers["Garlic-Farm-Next-After"])
            if index < least:
                raise UnreachableError(f"{node.url} has not reached index {least}")
            return index, response.content

        return self._in_turn(ask)

    def oldest_state(self, farm_id: str) -> tuple[int, bytes]:
        """(index, snapshot): the oldest that the entries of the first node that answers continue. 0 and no
        bytes: they begin at index 1."""

        def ask(node: _Node) -> tuple[int, bytes]:
            response = self._get(node, self._path("state/oldest"))
            self._check_farm(node, response, farm_id)
            return int(response.headers["Garlic-Farm-Next-After"]), response.content

        return self._in_turn(ask)

    def entries(self, after: int, upto: int, farm_id: str) -> Iterator[Sequence[Entry]]:
        """All committed entries with ``after`` < index ≤ ``upto``, in order, as they arrive.

        An answer that breaks off is continued, at another node if necessary.
        :raises Compacted: they were deleted, at every node that answers.
        :raises FarmReplaced: no node has the farm, and one has another of its name.
        """
        problems: list[GarlicFarmError] = []
        while after < upto:
            before = after
            try:
                for entries in self._page(self._nodes[0], after, upto, farm_id):
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

    def _page(self, node: _Node, after: int, upto: int, farm_id: str) -> Iterator[Sequence[Entry]]:
        from garlicfarm.feed.binary_format import MEDIA_TYPE, RecordDecoder

        query = {
            "after": str(after),
            "limit": str(min(upto - after, MAX_RANGE)),
            "types": "all",
            "wait_s": str(WAIT_S),
        }
        with (
            _mapped(node.url),
            node.client.stream(
                "GET", node.url + self._path("log"), params=query, headers={"Accept": MEDIA_TYPE}
            ) as response,
        ):
            if not response.is_success:
                response.read()
            _check(node.url, response)
            self._check_farm(node, response, farm_id)
            decoder = RecordDecoder()
            for data in response.iter_bytes():
                if entries := decoder.receive_data(data):
                    yield entries
            decoder.receive_eof()

    def _heads(self, node: _Node) -> dict[str, FarmHead]:
        response = self._get(node, "/v1/farms")
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

    def _check_farm(self, node: _Node, response: httpx.Response, farm_id: str) -> None:
        found = response.headers.get("Garlic-Farm-Id")
        if found is None:
            raise _no_admin_api(node.url)
        if found != farm_id:
            raise FarmReplaced([_another_farm(node.url, self._farm, found, farm_id)])

    def _path(self, what: str) -> str:
        return f"/v1/farms/{quote(self._farm, safe='')}/{what}"

    def _get(self, node: _Node, path: str, query: Mapping[str, int] | None = None) -> httpx.Response:
        with _mapped(node.url):
            response = node.client.get(node.url + path, params=query)
        _check(node.url, response)
        return response

    def _in_turn(self, ask: Callable[[_Node], T]) -> T:
        silent, gone, without = [], None, None
        for _ in list(self._nodes):
            try:
                return ask(self._nodes[0])
            except UnreachableError as error:
                silent.append(error.cause)
            except Compacted as error:
                gone = error
            except ConfigError as error:  # this node has no such farm, or another one of its name
                without = error
            self._turn()
        if gone is not None:
            raise gone
        if without is not None and not silent:
            raise without
        raise UnreachableError("; ".join(silent), _HINT)

    def _turn(self) -> None:
        self._nodes.append(self._nodes.pop(0))
        time.sleep(0.05)


_readers: dict[Nodes, NodeReader] = {}
_clients: list[NodeClients] = []  # those of `_readers`; none or one


def open_reader(nodes: Nodes) -> NodeReader:
    """The reader of ``nodes``. A process has one for each, and all of them share one client for each
    node. Raises as `NodeReader`."""
    if nodes not in _readers:
        if not _clients:
            from garlicfarm_plugin_spark.clients import NodeClients

            _clients.append(NodeClients())
        _readers[nodes] = NodeReader(nodes, _clients[0])
    return _readers[nodes]


def close_readers() -> None:
    """Close what `open_reader` opened in this process."""
    while _readers:
        _readers.popitem()[1].close()
    while _clients:
        _clients.pop().close()


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
    if isinstance(failed, AuthError | Compacted | ConfigError):
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
