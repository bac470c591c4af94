"""A client of the admin API (httpcore on Trio): several nodes tried in turn, errors of `garlicfarm.errors`.

A request that changes something is sent to the next node only if the last one certainly did not take it: it
could not be reached, or it said so. Anything else is `OutcomeUnknown`.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

import msgspec
import trio

from garlicfarm.client.answers import Answer, certificate_error, failure, leader_address, refusal
from garlicfarm.client.https import CONNECT_ERRORS, TIMEOUTS, TRANSPORT_ERRORS, HttpsClient, StreamedAnswer
from garlicfarm.client.silence import NodeSilent, SilenceWatch
from garlicfarm.client.trust import NodeAccess, client_tls, node_address
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.errors import (
    AuthError,
    ConfigError,
    DiskHangs,
    EntryRefused,
    GarlicFarmError,
    LocalProtocolError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    RemoteProtocolError,
    UnreachableError,
)

if TYPE_CHECKING:
    from garlicfarm.client.events import EventStream
    from garlicfarm.raft.types import Entry

MAX_LIMIT = 20_000
MAX_PAGE_BYTES = 8 << 20
MAX_FOLLOWED = 16
PATIENCE_S = 60.0
UPLOAD_BYTES_PER_S = 64 << 10
"""A node is not called silent sooner than the request has reached it at this speed"""

_NEXT_AFTER = "Garlic-Farm-Next-After"
_COMMIT_INDEX = "Garlic-Farm-Commit-Index"


@dataclass(frozen=True, slots=True)
class Page:
    """Some committed entries, in order.

    ``next_after`` is the ``after`` of the next page: at least the index of the last entry, more if entries of
    other types were skipped; so it may rise with an empty page. At the end it is the commit index.
    """

    entries: Sequence[Entry]
    next_after: int


class AdminClient:
    """Asks nodes over their admin API. An async context manager.

    :param urls: admin URLs, ``https://host:port``, tried in turn; the one that answered last is first.
        Each may carry the pin of its node's certificate, ``https://host:port?pin=sha256-BASE64URL``.
    :param pin: ``sha256-BASE64URL`` or ``sha256:HEX``: that of the nodes whose URL has none. Nothing is
        sent to any other server. Without a pin, ``ca`` (a file) or the system's authorities identify a node.
    :raises ConfigError: a URL that is not https, an unusable pin or authority (the caller's fault).

    Methods raise `UnreachableError` (no node answers, or it is busy checking another password), `AuthError`
    (password, role, or the wrong certificate), `ConfigError` (no such farm), `NotLeader`, `NoQuorum` and
    `DiskHangs`, `RemoteProtocolError` (an invalid answer). Cancelled: a read has no effect, and a post may
    or may not take effect.
    """

    def __init__(
        self, urls: Sequence[str], *, user: str, password: str, pin: str | None = None, ca: Path | None = None
    ) -> None:
        if not urls:
            raise ConfigError(["no admin URL given"])

        def client(url: str, own: str | None) -> HttpsClient:
            return HttpsClient(url, user=user, password=password, tls=client_tls(pin=own or pin, ca=ca))

        self._client = client
        self._nodes = {url: client(url, own) for url, own in map(node_address, urls)}
        self._followed: set[str] = set()  # URLs that a node named as its leader's
        self._silence = SilenceWatch(lambda: self._nodes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        async with AsyncExitStack() as stack:
            for node in self._nodes.values():
                stack.push_async_callback(node.aclose)

    async def node(self) -> dict[str, Any]:
        """Id, version, uptime, transports and farms of the node that answers."""
        return _object(await self._ask("GET", "/v1/node"))

    async def draining(self) -> dict[str, Any]:
        """Whether the node that answers is drained, whether it may be stopped now (``safe``), and why not
        (``holds``)."""
        return _object(await self._ask("GET", "/v1/node/drain"))

    async def drain(self, drained: bool = True) -> dict[str, Any]:
        """Have the node that answers let go of its part in its farms, or take part again; what `draining`
        says then."""
        return _object(await self._ask("POST", "/v1/node/drain" if drained else "/v1/node/undrain"))

    async def farms(self) -> list[dict[str, Any]]:
        """One row per farm: name, application, farm_id, first_index, commit_index, leader."""
        return _rows(await self._ask("GET", "/v1/farms"), "farms")

    async def status(self, farm: str) -> dict[str, Any]:
        """Leader, publisher and all members of a farm, as the node that answers sees them."""
        return _object(await self._ask("GET", _path(farm, "status")))

    async def ranking(self, farm: str, *, statuses: bool = False) -> dict[str, Any]:
        """The members with their scores, and the publisher; ``statuses``: with their newest statuses."""
        params = {"statuses": "true"} if statuses else None
        return _object(await self._ask("GET", _path(farm, "ranking"), params=params))

    async def rankings(self, farm: str) -> list[dict[str, Any]]:
        """A row for each query that stores rankings at the node that answers: its newest one, and how the
        newest compared one relates to the node's own."""
        return _rows(await self._ask("GET", _path(farm, "rankings")), "queries")

    async def readers(self, farm: str) -> list[dict[str, Any]]:
        """A row for each query that has reported lately what it has read: query, user, index, lag, since_ms,
        age_s."""
        return _rows(await self._ask("GET", _path(farm, "readers")), "readers")

    async def state(
        self, farm: str, *, oldest: bool = False, linearizable: bool = False
    ) -> tuple[int, bytes]:
        """(index, snapshot) of the application: where to start after `Compacted`.

        ``oldest``: not the present one, but the oldest that the entries which the node keeps continue; 0 and
        no bytes if they begin at index 1. ``linearizable``: as for `page`.
        """
        params = {"linearizable": "true"} if linearizable else None
        path = "state/oldest" if oldest else "state"
        answer = await self._ask("GET", _path(farm, path), params=params)
        return _header(answer, _NEXT_AFTER), answer.content

    async def snapshot(
        self, farm: str, write: Callable[[bytes], object], *, linearizable: bool = False
    ) -> None:
        """A saved snapshot of the farm, as it is now at the node that answers; ``write`` is given its bytes,
        piece by piece. Needs the role admin.

        :param linearizable: as for `page`.
        :raises UnreachableError: the answer is incomplete; what was written is of no use.

        Raises what ``write`` raises.
        """
        params = {"linearizable": "true"} if linearizable else None
        answer = await self._ask("GET", _path(farm, "snapshot"), params=params, stream=True)
        assert isinstance(answer, StreamedAnswer)
        assert answer.node is not None
        node = answer.node

        async def read_all() -> None:
            async for data in pieces:
                node.hear()
                write(data)

        async with answer.pieces() as pieces:
            try:
                await self._silence.unless_silent(node, read_all)
            except (*TRANSPORT_ERRORS, NodeSilent) as error:
                why = str(error) or "the answer is incomplete"
                raise UnreachableError(f"{answer.source}: {why}", "try again") from error

    async def metrics(self) -> str:
        """The node's metrics in Prometheus' text format (from the node's own machine)."""
        return (await self._ask("GET", "/metrics")).content.decode(errors="replace")

    async def post(self, farm: str, entry: bytes) -> tuple[int, int]:
        """Append one entry and return its (index, term) once it is committed.

        :param entry: at most 1 MiB.
        :raises EntryRefused: by the application, with the field and the reason (the caller's fault).
        :raises ProposalDropped: not appended, try again.
        :raises OutcomeUnknown: it may or may not be in the log.
        """
        return _place(await self._ask("POST", _path(farm, "log"), content=entry))

    async def post_batch(
        self, farm: str, entries: Sequence[bytes]
    ) -> Sequence[tuple[int, int] | EntryRefused]:
        """Append entries one after another; of each its (index, term), or why it was refused, once all are
        committed. Those that are refused are left out, and the others appended all or none.

        :param entries: 1 to 1024, together with 21 bytes for each at most 1 MiB.
        :raises ProposalDropped: none was appended, try again.
        :raises OutcomeUnknown: they may or may not be in the log.
        """
        from garlicfarm.feed.binary_format import encode_values

        answer = await self._ask("POST", _path(farm, "log/batch"), content=encode_values(entries))
        try:
            outcomes = [_place_or_refusal(outcome) for outcome in _object(answer)["outcomes"]]
            if len(outcomes) == len(entries):
                return outcomes
        except (KeyError, TypeError, ValueError, RemoteProtocolError) as error:
            raise OutcomeUnknown("the node answered without outcomes") from error
        raise OutcomeUnknown("the node answered without the outcome of each")

    async def administer(self, farm: str, action: str, args: Mapping[str, Any]) -> tuple[int, int]:
        """Append an administrative entry (``interval``, ``override`` …; D16: orders are entries); needs the
        role admin.

        Returns and raises what `post` does.
        """
        wanted = msgspec.json.encode({"action": action, "args": args})
        return _place(await self._ask("POST", _path(farm, "policy"), content=wanted))

    async def policy(self, farm: str) -> dict[str, Any]:
        """The values set by administrators, and the entry that set each (``orders``); needs the role
        admin."""
        return _object(await self._ask("GET", _path(farm, "policy")))

    async def members(self, farm: str) -> dict[str, Any]:
        """The members as the node that answers knows them, a joining server, and all used ids; role admin."""
        return _object(await self._ask("GET", _path(farm, "members")))

    async def add_member(self, farm: str, member: int, endpoint: str) -> tuple[int, int]:
        """Add a server to the members; (index, term) of the Configuration. Its store must be made for
        joining.

        Like all changes of the members this needs the role admin and the leader. A node redirects the
        request to the leader if it knows its admin URL; `NotLeader` if no leader was found.

        :raises ProposalDropped: the leader refuses; the text says why and what to do.
        :raises OutcomeUnknown: it has not caught up within 70 s (`members` shows its progress), or the
            leader is lost.
        """
        wanted = msgspec.json.encode({"id": member, "endpoint": endpoint})
        return _place(await self._ask("POST", _path(farm, "members"), content=wanted))

    async def set_member(self, farm: str, member: int, endpoint: str) -> tuple[int, int]:
        """Change a member's endpoint to one where it already listens. Returns and raises as `add_member`."""
        wanted = msgspec.json.encode({"endpoint": endpoint})
        return _place(await self._ask("PATCH", _path(farm, f"members/{member}"), content=wanted))

    async def remove_member(self, farm: str, member: int, *, force: bool = False) -> tuple[int, int]:
        """Remove a member permanently; ``force``: even if those of the remaining members that can be
        reached may be no majority. Returns and raises as `add_member`."""
        params = {"force": "true"} if force else None
        return _place(await self._ask("DELETE", _path(farm, f"members/{member}"), params=params))

    async def raise_level(self, farm: str, level: int) -> tuple[int, int]:
        """Raise the level of the farm, for ever: programs that cannot that level are no members any more.
        Returns and raises as `add_member`."""
        wanted = msgspec.json.encode({"level": level})
        return _place(await self._ask("POST", _path(farm, "level"), content=wanted))

    async def step_down(self, farm: str, to: int = 0) -> int:
        """Transfer the leadership to the member ``to`` (0: the one best placed); the new leader's id.

        Raises as `add_member`; `NoQuorum`: no member took over.
        """
        wanted = msgspec.json.encode({"to": to})
        answer = await self._ask("POST", _path(farm, "leader/stepdown"), content=wanted)
        (leader,) = _numbers(answer, "leader")
        return leader

    async def repair(self, farm: str) -> int:
        """Have the node that answers take the leader's state and the end of its log in place of its own; the
        index up to which that reaches. Until then all stays as it is.

        :raises ProposalDropped: it leads itself, or the farm's level is below 4.
        :raises NoQuorum: it knows no leader, or the leader has not sent them in time.
        :raises OutcomeUnknown: the connection was lost; they may still arrive.
        """
        answer = await self._ask("POST", _path(farm, "repair"), content=b"{}")
        (index,) = _numbers(answer, "index")
        return index

    async def page(
        self,
        farm: str,
        after: int,
        *,
        limit: int = MAX_LIMIT,
        wait_s: float = 0,
        all_types: bool = False,
        linearizable: bool = False,
    ) -> tuple[Page, int]:
        """Entries with index > ``after``, and the commit index when they were read.

        :param limit: 1 … 20,000: the number of indexes that it covers at most. A page also ends after about
            8 MiB, and where the connection broke.
        :param wait_s: how long the node waits for an entry if there is none, 0 … 30.
        :param linearizable: the commit index is at least that of every entry acknowledged before the call. A
            node answers once a majority has confirmed its leader. If it gets no index from the leader it
            names the leader's admin URL, if known, and the client asks there. So give the URLs of all nodes.
        :raises Compacted: the entries are gone; start from `state`.
        :raises NotLeader: or `NoQuorum`, of a linearizable read: no majority confirms it now; try again.
        :raises ProposalDropped: too many linearizable reads wait at the node; try again.
        """
        from garlicfarm.feed.binary_format import MEDIA_TYPE, RecordDecoder  # most commands need no entries

        params = {
            "after": str(after),
            "limit": str(limit),
            "wait_s": str(wait_s),
            "types": "all" if all_types else "application",
            "linearizable": "true" if linearizable else "false",
        }
        headers = {"Accept": MEDIA_TYPE}
        answer = await self._ask("GET", _path(farm, "log"), params=params, headers=headers, stream=True)
        assert isinstance(answer, StreamedAnswer)
        assert answer.node is not None
        node = answer.node
        decoder = RecordDecoder(after)
        entries: list[Entry] = []

        async def read_all() -> bool:
            """Whether it was read to its end."""
            received = 0
            async for data in pieces:
                node.hear()
                entries.extend(decoder.receive_data(data))
                received += len(data)
                if entries and received > MAX_PAGE_BYTES:
                    return False
            return True

        async with answer.pieces() as pieces:
            next_after, commit_index = _header(answer, _NEXT_AFTER), _header(answer, _COMMIT_INDEX)
            try:
                is_whole = await self._silence.unless_silent(node, read_all)
            except (*TRANSPORT_ERRORS, NodeSilent) as error:
                is_whole, why = False, str(error) or "the answer is incomplete"
                if isinstance(error, NodeSilent):
                    self._prefer(error.other)
                if not entries:
                    raise UnreachableError(f"{answer.source}: {why}") from error
        if not is_whole:
            return Page(entries, entries[-1].index), commit_index
        decoder.receive_eof()
        return Page(entries, next_after), commit_index

    async def log(
        self,
        farm: str,
        after: int = 0,
        *,
        limit: int = MAX_LIMIT,
        wait_s: float = 0,
        all_types: bool = False,
        linearizable: bool = False,
    ) -> AsyncIterator[Entry]:
        """Committed entries with index > ``after``, in order, a `page` at a time.

        Ends at the commit index; with ``wait_s`` > 0 (the length of a long poll, at most 30) it never
        ends. Raises what `page` raises.
        """
        while True:
            page, commit_index = await self.page(
                farm, after, limit=limit, wait_s=wait_s, all_types=all_types, linearizable=linearizable
            )
            for entry in page.entries:
                yield entry
            if not wait_s and (page.next_after >= commit_index or page.next_after <= after):
                return
            after = page.next_after

    def events(
        self,
        farm: str,
        after: int | None = None,
        *,
        kinds: Collection[str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> EventStream:
        """Live events, as the nodes push them. An async context manager, to iterate over: ``async with
        client.events("farm", after=7) as events``, and in its block ``async for event in events``.

        Entries come once each, in order, and none is missed: when a connection is lost, or its node is cut
        off from the others for some seconds, the next node is asked for what follows. The other events say
        how things stand (`garlicfarm.feed.events`): first at once, then at each change. To resume in another
        process, keep the ``index`` of the last event.

        :param after: only entries with a larger index. None: those that are committed from now on.
        :param kinds: some of ``entry``, ``leader``, ``publisher``, ``members``, ``health`` and ``position``.
            None: all.
        :param patience_s: how long it tries to connect again after a connection was lost.

        Iterating raises:

        :raises Compacted: the next entries are gone at every node that answers; start from `state`.
        :raises UnreachableError: no node answers, at first or for ``patience_s`` later on.
        :raises NoQuorum: the only node has no place for another watcher.
        :raises RemoteProtocolError: the farm was recovered meanwhile: its indexes mean other entries now.
        """
        from garlicfarm.client.events import EventStream  # most commands need no WebSocket
        from garlicfarm.feed.events import KINDS

        if kinds is None:
            kinds = KINDS
        elif not kinds or not set(kinds) <= set(KINDS):
            raise LocalProtocolError(f"kinds of events are among {', '.join(KINDS)}")
        return EventStream(
            self._nodes.items(), self._silence, _path(farm, "events"), after, kinds, patience_s
        )

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        stream: bool = False,
    ) -> Answer:
        """A success; with ``stream`` the caller reads and closes it."""
        target = f"{path}?{urlencode(params)}" if params else path
        unreachable: dict[str, str] = {}
        declined: GarlicFarmError | None = None
        todo = deque(self._nodes.items())
        while todo:
            url, node = todo.popleft()
            sent = trio.Event()
            request = partial(
                node.request,
                method,
                target,
                headers=headers or {},
                content=content,
                stream=stream,
                on_sent=sent.set,
            )
            try:
                grace_s = len(content or b"") / UPLOAD_BYTES_PER_S
                answer = await self._silence.unless_silent(node, request, grace_s)
            except NodeSilent as silent:
                self._prefer(silent.other)
                if method != "GET" and sent.is_set():
                    raise _unknown(url) from silent
                unreachable[url] = str(silent)
                better = [each for each in todo if each[0] == silent.other]
                todo = deque([*better, *(each for each in todo if each not in better)])
                continue
            except CONNECT_ERRORS as error:
                untrusted = certificate_error(error, url)
                if untrusted is not None and url not in self._followed:
                    raise untrusted from error
                unreachable[url] = str(error) or "no connection in time"
                continue
            except TRANSPORT_ERRORS as error:
                if method != "GET":
                    raise _unknown(url) from error
                if url not in unreachable and not isinstance(error, TIMEOUTS):
                    todo.append((url, node))  # once more, last: it may have closed an idle connection
                unreachable[url] = str(error) or "no answer in time"
                continue
            failed = failure(answer, url)
            if failed is None:
                self._prefer(url)
                return answer
            todo.extendleft(self._newly_followed(answer))
            if _may_succeed_elsewhere(failed, method):
                declined = failed
            elif not isinstance(failed, AuthError) or url not in self._followed:
                raise failed  # else: the user may not exist on the node that we were redirected to
        if declined is not None:
            raise declined
        failures = "; ".join(f"{url}: {error}" for url, error in unreachable.items())
        raise UnreachableError(failures, "is the node running, and the URL right?")

    def _prefer(self, url: str) -> None:
        """Ask the node at this URL first from now on."""
        self._nodes = {url: self._nodes[url], **self._nodes}

    def _newly_followed(self, answer: Answer) -> Iterator[tuple[str, HttpsClient]]:
        """The leader that an answer names, from now on one of the nodes; none if it is one already."""
        leader = leader_address(answer)
        if leader is not None and leader[0] not in self._nodes and len(self._followed) < MAX_FOLLOWED:
            self._followed.add(leader[0])
            self._nodes[leader[0]] = self._client(*leader)
            yield leader[0], self._nodes[leader[0]]


def client_of(access: NodeAccess) -> AdminClient:
    """A client that logs in with the password in ``access.password_file``.

    :raises ConfigError: that file cannot be read, or others can read it; a URL, pin or authority is not
        usable (the caller's fault).
    """
    password = read_private_file(access.password_file).strip()
    return AdminClient(access.urls, user=access.user, password=password, pin=access.pin, ca=access.ca)


def _may_succeed_elsewhere(error: GarlicFarmError, method: str) -> bool:
    """Whether another node may yet do what this one certainly did not, or what may be done twice."""
    if isinstance(error, OutcomeUnknown):
        return method == "GET"
    return isinstance(error, NotLeader | NoQuorum | DiskHangs | UnreachableError)


def _unknown(url: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{url} took the request and did not answer; read the log before you send it again")


def _path(farm: str, what: str) -> str:
    return f"/v1/farms/{quote(farm, safe='')}/{what}"


def _object(answer: Answer) -> dict[str, Any]:
    try:
        body = json.loads(answer.content.decode(), parse_int=_integer, parse_float=_fraction)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("not a JSON object", f"answer of {answer.source}") from error
    if not isinstance(body, dict):
        raise RemoteProtocolError("not a JSON object", f"answer of {answer.source}")
    return body


def _rows(answer: Answer, name: str) -> list[dict[str, Any]]:
    rows = _object(answer).get(name)
    if not isinstance(rows, list):
        raise RemoteProtocolError(f"no list of {name}", f"answer of {answer.source}")
    return rows


# Under unknown keys a status may hold numbers too large for any type: these stay text.


def _integer(text: str) -> int | str:
    return int(text) if len(text) < 20 else text


def _fraction(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _place(answer: Answer) -> tuple[int, int]:
    index, term = _numbers(answer, "index", "term")
    return index, term


def _place_or_refusal(outcome: dict[str, Any]) -> tuple[int, int] | EntryRefused:
    if "index" in outcome:
        return int(outcome["index"]), int(outcome["term"])
    return refusal(outcome)


def _numbers(answer: Answer, *names: str) -> list[int]:
    """The outcome of a request that changes something."""
    try:
        body = _object(answer)
        return [int(body[name]) for name in names]
    except (KeyError, TypeError, ValueError, RemoteProtocolError) as error:
        raise OutcomeUnknown(f"the node answered without {names[0]}") from error


def _header(answer: Answer, name: str) -> int:
    try:
        return int(answer.header(name))
    except ValueError as error:
        raise RemoteProtocolError(f"no number in {name}", f"answer of {answer.source}") from error
