"""A fault of a peer that holds the farm's secret: numbers as small or as large as the fields allow.

It strikes a farm of its own beside the chaos farm. First a stranger logs in under an id that was never a
member's, and sends requests; then one takes the place of a member, and answers what it is asked. The farm has
to commit during and after both, also once all its nodes were started again.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from garlicfarm.config import load
from garlicfarm.credentials.member_credentials import member_lookup, member_password, read_secret_file
from garlicfarm.errors import AuthError, LocalProtocolError, RemoteProtocolError, TransportError
from garlicfarm.extensions import EXTENSIONS
from garlicfarm.http.digest import ALGORITHMS, REALM, ChallengeCache, DigestVerifier
from garlicfarm.http.upgrade import FarmCredentials
from garlicfarm.lab.processes import ProcessFarm, process_farm
from garlicfarm.levels import THIS
from garlicfarm.net.handshake import (
    DialCredentials,
    Established,
    HandshakeLimiter,
    dial,
    respond,
)
from garlicfarm.plugins import make_transport
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.transport import Endpoint, Peer
from garlicfarm.wire import Limits, RequestDecoder, encode_request, encode_response
from garlicfarm.wire.messages import MessageType, Request, Response
from tests.crash.crash_checks import Violation
from tests.crash.watched_farm import RAFT, WatchedFarm
from tests.raft.test_raft_extreme_numbers import EXTREMES, HEADER, REQUESTS, STRANGER

if TYPE_CHECKING:
    from tests.chaos.chaos_farm import ChaosFarm

NODES = 3
REQUESTS_TO_EACH = 60
ANSWERS = 60
ANSWER_S = 0.3
CONNECT_S = 10.0
_ENDS = (TransportError, AuthError, RemoteProtocolError, trio.BrokenResourceError, trio.TooSlowError)


async def extreme_numbers(chaos: ChaosFarm, rnd: random.Random) -> str:
    """Strike as `faults.Kind` says."""
    directory = chaos.directory / f"extreme-{rnd.getrandbits(64):x}"
    directory.mkdir()
    async with process_farm(directory / "farm", NODES, FarmPlan(raft=RAFT), start=False) as processes:
        farm = WatchedFarm(processes, directory, rnd)
        await farm.start(processes.nodes)
        await farm.until("no note was committed", farm.post_fresh)
        async with trio.open_nursery() as nursery:
            for node in processes.nodes:
                nursery.start_soon(_send, processes, node, _requests(node, rnd))
        await farm.until("after a stranger's extreme numbers, no note was committed", farm.post_fresh)
        impostor = rnd.choice(list(processes.nodes))
        await farm.farm.kill(impostor)
        async with _impostor(processes, impostor, rnd) as answered:

            async def asked() -> bool | None:
                return len(answered) >= ANSWERS or None

            await farm.until("the impostor was hardly asked", asked)
            await farm.until("beside a member's extreme numbers, no note was committed", farm.post_fresh)
        for node in processes.nodes:
            await farm.farm.kill(node)
        await farm.start(processes.nodes)
        _, states = await farm.settle()
        if len({*states.values()}) != 1:
            raise Violation("after extreme numbers, nodes have different states at one index")
    return f"{NODES * REQUESTS_TO_EACH} requests of a stranger and {len(answered)} answers of an impostor"


def _requests(node: int, rnd: random.Random) -> list[Request]:
    """Requests with one extreme number each, and with those terms that would end a farm."""
    plain = [Request(kind, STRANGER, node, 2, 1, 5, 5) for kind in REQUESTS]
    drawn = [
        msgspec.structs.replace(each, **{name: number})
        for each in plain
        for name in HEADER
        for number in EXTREMES
    ]
    append = plain[REQUESTS.index(MessageType.APPEND_ENTRIES_REQUEST)]
    worst = [msgspec.structs.replace(append, term=term) for term in (2**62, 2**63 - 1, 2**64 - 1)]
    return [*worst, *rnd.sample(drawn, REQUESTS_TO_EACH - len(worst))]


async def _send(farm: ProcessFarm, node: int, requests: list[Request]) -> None:
    """Send them one after the other, over another connection where the node has ended one."""
    established: Established | None = None
    for request in requests:
        try:
            data = encode_request(request)
        except LocalProtocolError:  # not even we can say it
            continue
        try:
            if established is None:
                with trio.fail_after(CONNECT_S):
                    established = await _log_in(farm, node)
            await established.stream.send_all(data)
            answer: bytes | bytearray | None = None
            with trio.move_on_after(ANSWER_S):
                answer = await established.stream.receive_some()
            if answer == b"":
                raise trio.BrokenResourceError
        except _ENDS:
            if established is not None:
                await trio.aclose_forcefully(established.stream)
            established = None
    if established is not None:
        await trio.aclose_forcefully(established.stream)


async def _log_in(farm: ProcessFarm, node: int) -> Established:
    config = load(farm.nodes[node].directory / "garlicfarm.toml", {})
    (section,) = config.farm
    (secret, *_) = read_secret_file(section.secret_file)
    password = member_password(secret, farm.farm_id, STRANGER)
    challenges = ChallengeCache(section.algorithms)
    credentials = DialCredentials(
        farm.name, str(STRANGER), password, challenges, farm.farm_id, EXTENSIONS, lambda: THIS
    )
    endpoint = Endpoint.parse(farm.endpoints[node])
    return await dial(make_transport(endpoint.scheme, {}, config.base_dir), endpoint, credentials)


@asynccontextmanager
async def _impostor(farm: ProcessFarm, node: int, rnd: random.Random) -> AsyncIterator[list[Response]]:
    """Listen in the place of a member that is down; yields what was answered."""
    config = load(farm.nodes[node].directory / "garlicfarm.toml", {})
    (section,), (listener,) = config.farm, config.listener
    url = Endpoint.parse(listener.url)
    transport = make_transport(url.scheme, config.transport.get(url.scheme, {}), config.base_dir)
    lookup = member_lookup(read_secret_file(section.secret_file), farm.farm_id, lambda user: {})
    verifier = DigestVerifier(REALM, ALGORITHMS, rnd.randbytes(32), lookup)
    farms = {farm.name: FarmCredentials(farm.name, farm.farm_id, verifier, EXTENSIONS, program=lambda: THIS)}
    limiter, answered = HandshakeLimiter(), list[Response]()

    async def serve(stream: trio.abc.Stream, peer: Peer) -> None:
        try:
            established = await respond(stream, farms, limiter, peer)
            if established is not None:
                async with established.stream:
                    await _answer(established, node, rnd, answered)
        except _ENDS:
            return

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(transport.serve, url, serve))
        yield answered
        nursery.cancel_scope.cancel()


async def _answer(established: Established, node: int, rnd: random.Random, answered: list[Response]) -> None:
    decoder = RequestDecoder(Limits(1 << 20, 1 << 20))
    data: bytes | bytearray = established.leftover
    while True:
        decoder.receive_data(data)
        while (request := decoder.next_message()) is not None:
            is_post = request.type is MessageType.CLIENT_REQUEST
            kind = MessageType.APPEND_ENTRIES_RESPONSE if is_post else MessageType(request.type + 1)
            term = rnd.choice((request.term, *EXTREMES))
            # It never agrees: Raft promises nothing against a member that lies about its votes or its log.
            response = Response(kind, node, request.source, term, rnd.choice(EXTREMES), accepted=False)
            answered.append(response)
            await established.stream.send_all(encode_response(response))
        data = await established.stream.receive_some()
        if not data:
            return
